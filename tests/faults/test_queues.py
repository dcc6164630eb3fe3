"""QUEUE messages and callbacks under faults: every job is done once, every reply is stored once."""

import time
from contextlib import ExitStack

import pytest

from broker_project.stack.load.wait import wait_until
from tests.support.faults.breakage import away, restarted
from tests.support.faults.calls import AT_ONCE, ReplyLoad, post
from tests.support.faults.exchanges import Fault
from tests.support.faults.figures import UNDER_WAY
from tests.support.faults.load import AFTERWARDS
from tests.support.faults.queue_load import QueueLoad

JOBS = range(1, 11)
BEFORE, MEANWHILE = range(1, 21), range(21, 31)


@pytest.mark.behaviour("6.4", "11.3")
@pytest.mark.case("queue-{killed}-killed")
@pytest.mark.parametrize("killed", [pytest.param("workers", marks=pytest.mark.selected), "celery"])
def test_processes_are_killed_while_jobs_are_in_flight(jobs: QueueLoad, killed: str) -> None:
    jobs.start()
    jobs.wait_until_under_way()
    beat = [jobs.broker.stack.supervisor["beat"]] if killed == "celery" else []
    processes = [*jobs.broker.workers(), *beat]
    with restarted(*processes):
        with jobs.fault():
            for process in processes:
                process.kill()
        jobs.go_on()
    jobs.wait_for(AFTERWARDS)
    jobs.stop()
    seen = jobs.figures()
    assert seen.broken == {}
    assert 0 < seen.max_per_fault <= UNDER_WAY


@pytest.mark.behaviour("6.8", "6.10")
@pytest.mark.case("callbacks-posted-twenty-times")
def test_a_reply_that_is_posted_twenty_times_at_once_is_stored_and_delivered_once(replying: ReplyLoad) -> None:
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


@pytest.mark.behaviour("6.8", "11.3")
@pytest.mark.case("callbacks-everything-restarted")
def test_everything_is_killed_while_replies_are_under_way(replying: ReplyLoad) -> None:
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
