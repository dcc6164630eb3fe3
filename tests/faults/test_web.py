"""The web process dies while it publishes, and SYNC calls while PostgreSQL restarts."""

import signal

import pytest

from broker_project.stack.load.wait import wait_until
from tests.support.faults.breakage import away, restarted, send
from tests.support.faults.calls import SyncLoad
from tests.support.faults.figures import Report
from tests.support.faults.load import AFTERWARDS, Load

KILLS = 6
"""Each at another moment of what is being published."""

AROUND = 100
"""Calls before and after."""


@pytest.mark.behaviour("2.1", "11.3")
@pytest.mark.case("web-killed")
def test_the_web_process_is_killed_again_and_again_while_publishing(load: Load, figures: Report) -> None:
    load.start()
    for _ in range(KILLS):
        with load.fault(), away(load.broker.stack.supervisor["web"]):
            pass
        load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert sum(publisher.repeated for publisher in load.publishers) >= KILLS


@pytest.mark.behaviour("7.1", "7.2", "10.3")
@pytest.mark.case("sync-postgresql-restarted")
def test_postgresql_is_restarted_while_calls_are_answered(calling: SyncLoad) -> None:
    calling.start()
    wait_until(lambda: len(calling.answered()) >= AROUND, 30)
    postgres = calling.broker.stack.supervisor["postgres"]
    with restarted(postgres):
        send(signal.SIGQUIT, postgres)
    before = len(calling.answered())
    wait_until(lambda: len(calling.answered()) >= before + AROUND, 30)
    calling.stop()
    seen = calling.figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert all(call.message_id for call in calling.answered())
