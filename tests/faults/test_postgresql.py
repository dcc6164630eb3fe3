"""PostgreSQL killed, restarted, away, its sessions ended: what was acknowledged is kept, in order."""

import signal
import time
from contextlib import AbstractContextManager

import pytest

from tests.support.faults.breakage import away, beat_going_on, hung, read_only, restarted, send
from tests.support.faults.figures import Report
from tests.support.faults.load import AFTERWARDS, Load
from tests.support.real_broker import Broker

pytestmark = pytest.mark.behaviour("4.11", "11.3")

MAX_RESTART = 15.0
AWAY_SECONDS = 60.0
MAX_REFUSAL = 8.0
"""After which a publisher knows that its call was not taken."""
MAX_RETURN = 5.0
"""After which a publisher is answered 2xx again."""
BEGINNING = 1.0
"""Calls that were under way when it went away may have been answered 2xx."""


@pytest.mark.behaviour("2.1")
@pytest.mark.case("postgresql-{ended}")
@pytest.mark.parametrize("ended", ["killed", pytest.param("restarted", marks=pytest.mark.selected)])
def test_postgresql_is_killed_or_restarted_under_load(load: Load, figures: Report, ended: str) -> None:
    load.start()
    postgres = load.broker.stack.supervisor["postgres"]
    with beat_going_on(load.broker), load.fault(), restarted(postgres):
        if ended == "killed":
            postgres.kill()
        else:
            send(signal.SIGQUIT, postgres)
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert seen.broken == {}
    assert seen.max_per_line <= 1
    assert seen.pause <= MAX_RESTART


@pytest.mark.case("postgresql-killed-before-the-answers")
def test_answers_received_while_postgresql_is_away_are_stored(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    postgres = load.broker.stack.supervisor["postgres"]
    with load.fault(), restarted(postgres):
        postgres.kill()
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert seen.pause <= MAX_RESTART


def taking_nothing(broker: Broker, way: str) -> AbstractContextManager[object]:
    """Return a context in which PostgreSQL stores nothing."""
    postgres = broker.stack.supervisor["postgres"]
    return {"away": away(postgres), "hung": hung(postgres), "read-only": read_only(broker)}[way]


@pytest.mark.behaviour("2.1", "11.5")
@pytest.mark.case("postgresql-{way}-60s")
@pytest.mark.parametrize("way", ["away", "hung", "read-only"])
def test_postgresql_takes_nothing_for_a_minute(load: Load, figures: Report, way: str) -> None:
    load.start()
    with beat_going_on(load.broker):
        with taking_nothing(load.broker, way), load.fault():
            time.sleep(AWAY_SECONDS)
        back = time.monotonic()
        load.wait_for(1)
        assert time.monotonic() - back <= MAX_RETURN
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert seen.broken == {}
    assert seen.max_per_line <= 1
    assert seen.pause <= AWAY_SECONDS + MAX_RETURN + MAX_RESTART
    calls = [call for call in load.calls() if call.begun > load.faults[-1].begun + BEGINNING]
    assert len(calls) >= AWAY_SECONDS / MAX_REFUSAL
    assert {call.status for call in calls} == {503}
    assert max(call.seconds for call in calls) <= MAX_REFUSAL
