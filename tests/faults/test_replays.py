"""Replays while workers are killed: what was asked for is made again once, and in its order."""

import random
import time
from functools import partial

import pytest
import requests

from tests.faults.figures import Report
from tests.faults.load import Load
from tests.faults.replayed import compared, total
from tests.faults.verdicts import Verdict
from tests.real_broker import TIMEOUT
from tests.receiver import wait_until

EVENTS = 7_000
"""For three subscribers: about twenty thousand deliveries."""
KILL_EVERY = 3.0
STARTED_SECONDS = 15.0
THROUGH_SECONDS = 300.0


def begin(load: Load) -> list[str]:
    """Ask for all that each subscriber was delivered; return the addresses of the replays."""
    web, headers = load.broker.web, {"Authorization": f"Bearer {load.broker.management.token}"}
    addresses = []
    for subscribed in load.endpoints:
        asked = {"subscriber": subscribed.name, "statuses": ["DELIVERED"]}
        answer = requests.post(f"{web}/api/v1/replays", json=asked, headers=headers, timeout=TIMEOUT)
        answer.raise_for_status()
        addresses.append(answer.headers["Location"].removeprefix("/api/v1/"))
    return addresses


@pytest.mark.behaviour("5.8")
@pytest.mark.behaviour("11.3")
@pytest.mark.audited
@pytest.mark.case("replay-killed")
def test_workers_are_killed_during_a_replay(load: Load, figures: Report, verdict: Verdict) -> None:
    load.publish(EVENTS)
    seen = figures()
    assert (seen.broken, seen.acknowledged) == ({}, EVENTS)
    endpoints = [*load.endpoints.values()]
    firsts = [[*endpoint.exchanges] for endpoint in endpoints]
    for endpoint in endpoints:
        endpoint.exchanges.clear()

    replays, kills, until = begin(load), 0, time.monotonic() + THROUGH_SECONDS
    while not all(load.broker.get(replay)["state"] == "DONE" for replay in replays) or not kills:
        assert time.monotonic() < until, [load.broker.get(replay) for replay in replays]
        (victim,) = random.sample(load.broker.workers(), 1)
        wait_until(partial(getattr, victim, "pid"), STARTED_SECONDS)
        victim.kill()
        kills += 1
        time.sleep(KILL_EVERY)
    wait_until(lambda: load.broker.has_finished(load.endpoints), THROUGH_SECONDS)

    done = [load.broker.get(replay) for replay in replays]
    assert [(one["filed"], one["skipped"], one["total"]) for one in done] == [(EVENTS, 0, EVENTS)] * len(done)
    lines = [compared(first, endpoint.exchanges) for first, endpoint in zip(firsts, endpoints, strict=True)]
    for first, endpoint in zip(firsts, endpoints, strict=True):
        endpoint.exchanges[:] = first  # what the load itself is judged by
    verdict.measured |= {"kills": kills, "copies": sum(line.copies for line in lines)}
    assert total(lines) == {}
    assert max(line.copies for line in lines) <= kills
