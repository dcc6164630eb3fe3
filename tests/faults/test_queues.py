"""A QUEUE with one endpoint down: whatever breaks, every job is done, and stands in the books as done once."""

import signal
import time

import pytest

from tests.faults.breaking import restarted, send
from tests.faults.figures import Figures
from tests.faults.jobs import UNDER_WAY
from tests.faults.killing import KILL_EVERY, KILLS, victims, wait_until_there
from tests.faults.load import AFTERWARDS
from tests.faults.queue_load import Jobs

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
