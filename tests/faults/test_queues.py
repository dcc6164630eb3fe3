"""QUEUE messages and callbacks under faults: every job is done once, every reply is stored once."""

import signal
import time

import pytest

from tests.support.faults.breakage import KILL_EVERY, KILLS, restarted, send, victims, wait_until_there
from tests.support.faults.figures import UNDER_WAY, Figures
from tests.support.faults.load import AFTERWARDS
from tests.support.faults.queue_load import Jobs

pytestmark = [pytest.mark.behaviour("6.4"), pytest.mark.behaviour("11.3")]


def judged(jobs: Jobs) -> Figures:
    """Wait until everything is through; return the figures."""
    jobs.wait_for(AFTERWARDS)
    jobs.stop()
    return jobs.figures()


@pytest.mark.selected
@pytest.mark.case("queue-workers-killed")
def test_every_worker_is_killed_while_jobs_are_under_way(jobs: Jobs) -> None:
    jobs.start()
    jobs.wait_until_under_way()
    workers = jobs.broker.workers()
    with restarted(*workers):
        with jobs.fault():
            for worker in workers:
                worker.kill()
        jobs.go_on()
    seen = judged(jobs)
    assert seen.broken == {}
    assert 0 < seen.most_of_a_fault <= UNDER_WAY


@pytest.mark.case("queue-worker-killed-every-5s")
def test_workers_are_killed_again_and_again(jobs: Jobs) -> None:
    jobs.start()
    for number, victim in enumerate(victims(jobs.broker.workers(), KILLS)):
        wait_until_there(victim)
        if number % 2:  # the others at any moment, also while it settles or claims
            jobs.wait_until_under_way()
        with jobs.fault():
            victim.kill()
        jobs.go_on()
        time.sleep(KILL_EVERY)
    seen = judged(jobs)
    assert seen.broken == {}
    assert 0 < seen.most_of_a_fault <= UNDER_WAY


@pytest.mark.case("queue-celery-killed")
def test_all_of_celery_is_killed(jobs: Jobs) -> None:
    jobs.start()
    jobs.wait_until_under_way()
    celery = [*jobs.broker.workers(), jobs.broker.stack.supervisor["beat"]]
    with restarted(*celery):
        with jobs.fault():
            for process in celery:
                process.kill()
        jobs.go_on()
    seen = judged(jobs)
    assert seen.broken == {}
    assert 0 < seen.most_of_a_fault <= UNDER_WAY


@pytest.mark.case("queue-postgresql-restarted")
def test_postgresql_is_restarted_under_load(jobs: Jobs) -> None:
    jobs.start()
    postgres = jobs.broker.stack.supervisor["postgres"]
    with jobs.fault(), restarted(postgres):
        send(signal.SIGQUIT, postgres)
    seen = judged(jobs)
    assert seen.broken == {}
    assert seen.most_of_a_fault <= UNDER_WAY
