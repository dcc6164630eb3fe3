"""Backfills while workers are killed: what is asked for is made once, and in its order."""

import random
import time
from functools import partial

import psycopg
import pytest
import requests

from broker_project.stack.load.wait import wait_until
from tests.support.faults.endpoints import Endpoint
from tests.support.faults.exchanges import extra_copies, misnumbered, out_of_order, unexplained
from tests.support.faults.figures import Report
from tests.support.faults.load import AFTERWARDS, Load
from tests.support.faults.verdicts import Verdict
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

KILL_EVERY = 3.0
"""How long workers run between two kills."""
STARTED_SECONDS = 15.0
THROUGH_SECONDS = 300.0
KEPT = 3_000
"""Events from before the backfill."""


def ask(broker: Broker, path: str, **asked: object) -> str:
    """Ask for a job; return where it can be watched."""
    headers = {"Authorization": f"Bearer {broker.management.token}"}
    answer = requests.post(f"{broker.web}/api/v1/{path}", json=asked, headers=headers, timeout=TIMEOUT_SECONDS)
    answer.raise_for_status()
    return answer.headers.get("Location", "").removeprefix("/api/v1/")


def kill_one(load: Load) -> None:
    """Kill a worker at random, once it is there."""
    (victim,) = random.sample(load.broker.workers(), 1)
    wait_until(partial(getattr, victim, "pid"), STARTED_SECONDS)
    with load.fault():
        victim.kill()


def kill_until(state: str, load: Load, job: str) -> int:
    """Kill again and again, once at least, until the job is in this state; return how many were killed."""
    kills, until = 0, time.monotonic() + THROUGH_SECONDS
    while load.broker.get(job)["state"] != state or not kills:
        assert time.monotonic() < until, load.broker.get(job)
        kill_one(load)
        kills += 1
        time.sleep(KILL_EVERY)
    return kills


@pytest.mark.behaviour("5.8", "11.3")
@pytest.mark.case("backfill-ended-killed")
def test_workers_are_killed_while_a_backfill_is_ended(load: Load, figures: Report, verdict: Verdict) -> None:
    load.publish(KEPT)
    wait_until(lambda: load.broker.has_finished(load.endpoints), THROUGH_SECONDS)
    load.start()
    wanted = load.event_types[0]
    subscribed = load.broker.subscribe(load.receiver.url("/late"), wanted, status="INACTIVE")
    subscription = load.broker.subscription(subscribed.name)
    late, backfill = Endpoint("late", load.receiver), f"subscriptions/{subscription['id']}/backfill"
    with psycopg.connect(load.broker.stack.environment["DATABASE_URL"]) as held_open:
        held_open.execute("SELECT 1")
        ended = ask(load.broker, backfill)
        wait_until(lambda: load.broker.get(ended)["state"] == "WAITING", THROUGH_SECONDS)
        load.wait_for(AFTERWARDS)
        ask(load.broker, f"{ended}/cancel")
        kill_one(load)
        load.wait_for(AFTERWARDS)
    kills = 1 + kill_until("CANCELLED", load, ended)
    assert (late.exchanges, load.broker.has_finished([subscribed])) == ([], True)

    again = ask(load.broker, backfill)
    kills += kill_until("DONE", load, again)
    load.wait_for(AFTERWARDS)
    seen = figures()
    wait_until(lambda: load.broker.has_finished([subscribed]), THROUGH_SECONDS)
    events = {number: event for number, event in load.published().items() if event.type == wanted}
    copies = [copy.request for copy in extra_copies(late.exchanges)]
    verdict.measured |= {"kills": kills, "copies": len(copies)}
    assert seen.broken == {}
    assert late.accepted() == events.keys()
    assert (out_of_order(late.exchanges, events), misnumbered(late.exchanges)) == (0, 0)
    assert unexplained(late.exchanges, load.faults) == 0
    assert all(one.flagged for one in copies)
