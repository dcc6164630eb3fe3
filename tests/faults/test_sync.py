"""SYNC calls beside a PostgreSQL that is restarted: each is answered, and what was answered is recorded."""

import signal

import pytest

from tests.faults.breaking import restarted, send
from tests.faults.calling import Calling
from tests.receiver import wait_until

AROUND = 100
"""Calls before and after."""


@pytest.mark.behaviour("7.1")
@pytest.mark.behaviour("7.2")
@pytest.mark.behaviour("10.3")
@pytest.mark.case("sync-postgresql-restarted")
def test_postgresql_is_restarted_while_calls_are_answered(calling: Calling) -> None:
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
