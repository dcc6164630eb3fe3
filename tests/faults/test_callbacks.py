"""Replies to callbacks: stored once however often they are posted, and never lost."""

import time
from contextlib import ExitStack

import pytest

from tests.support.faults.breakage import away
from tests.support.faults.calls import AT_ONCE, Replying, post
from tests.support.faults.exchanges import Fault
from tests.support.receiver import wait_until

JOBS = range(1, 11)
BEFORE, MEANWHILE = range(1, 21), range(21, 31)


@pytest.mark.behaviour("6.8")
@pytest.mark.behaviour("6.10")
@pytest.mark.case("callbacks-posted-twenty-times")
def test_a_reply_that_is_posted_twenty_times_at_once_is_stored_and_delivered_once(replying: Replying) -> None:
    replying.publish(JOBS)
    for number in JOBS:
        answers = replying.reply(number)
        assert len(answers) == AT_ONCE
        assert {status // 100 for status, _ in answers} == {2}
        assert len({text for _, text in answers}) == 1
        assert post(replying.addresses()[number], b'{"number": 0}').status_code == 409
    replying.wait_until_through()
    seen = replying.figures()
    assert (seen.broken, seen.duplicated, seen.delivered) == ({}, 0, len(JOBS))


@pytest.mark.behaviour("6.8")
@pytest.mark.behaviour("11.3")
@pytest.mark.case("callbacks-everything-restarted")
def test_everything_is_killed_while_replies_are_under_way(replying: Replying) -> None:
    replying.publish([*BEFORE, *MEANWHILE])
    replying.original.is_stuck = True
    for number in BEFORE:
        replying.reply(number, times=1)
    wait_until(lambda: len(replying.original.exchanges) == len(BEFORE))
    stack, begun = replying.broker.stack.supervisor, time.monotonic()
    with ExitStack() as until_all_are_down:  # the last to go is the first to come back
        for child in [*replying.broker.workers(), stack["beat"], stack["web"], stack["redis"], stack["postgres"]]:
            until_all_are_down.enter_context(away(child))
    replying.faults.append(Fault(begun, time.monotonic()))
    replying.original.is_stuck = False
    for number in MEANWHILE:
        assert {status // 100 for status, _ in replying.reply(number, times=1)} == {2}
    replying.wait_until_through()
    seen = replying.figures()
    assert (seen.broken, seen.duplicated) == ({}, len(BEFORE))
    assert seen.acknowledged == len(BEFORE) + len(MEANWHILE)
