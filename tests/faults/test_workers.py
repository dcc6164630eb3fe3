"""Workers killed or asked to stop: at most what was under way comes once more, and says so."""

import signal
import time

import pytest

from tests.faults.breaking import flush_redis, restarted, send
from tests.faults.figures import Report
from tests.faults.killing import KILL_EVERY, KILLS, LONGEST_RESTART, victims, wait_until_there
from tests.faults.load import AFTERWARDS, Load
from tests.receiver import wait_until

STOP_SECONDS = 20.0


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.10")
@pytest.mark.behaviour("4.11")
@pytest.mark.selected
@pytest.mark.case("worker-killed")
def test_a_worker_is_killed_while_requests_are_under_way(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    victim = load.first_driver()
    with restarted(victim):
        with load.fault():
            victim.kill()
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.most_of_a_line) == ({}, 1)
    assert seen.pause <= LONGEST_RESTART


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.10")
@pytest.mark.behaviour("4.11")
@pytest.mark.case("worker-killed-every-5s")
def test_workers_are_killed_again_and_again(load: Load, figures: Report) -> None:
    load.start()
    for number, victim in enumerate(victims(load.broker.workers(), KILLS)):
        wait_until_there(victim)
        if number % 2:  # the others at any moment, also while it settles or claims
            load.wait_until_all_are_under_way()
        with load.fault():
            victim.kill()
        load.go_on()
        time.sleep(KILL_EVERY)
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert seen.broken == {}
    assert seen.most_of_a_fault <= 1
    assert seen.duplicated > 0
    assert seen.pause <= LONGEST_RESTART


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.10")
@pytest.mark.behaviour("4.11")
@pytest.mark.case("workers-killed-redis-flushed")
def test_every_worker_is_killed_and_redis_flushed_at_the_same_time(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    with restarted(*load.broker.workers()):
        with load.fault():
            for worker in load.broker.workers():
                worker.kill()
            flush_redis(load.broker)
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.most_of_a_line, seen.duplicated) == ({}, 1, len(load.endpoints))
    assert seen.pause <= LONGEST_RESTART


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.11")
@pytest.mark.case("celery-killed")
def test_all_of_celery_is_killed(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    celery = [*load.broker.workers(), load.broker.stack.supervisor["beat"]]
    with restarted(*celery):
        with load.fault():
            for process in celery:
                process.kill()
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.most_of_a_line, seen.duplicated) == ({}, 1, len(load.endpoints))
    assert seen.pause <= LONGEST_RESTART


@pytest.mark.behaviour("4.11")
@pytest.mark.case("worker-asked-to-stop")
def test_a_worker_asked_to_stop_lets_its_requests_end(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    worker = load.first_driver()
    asked = worker.pid
    with restarted(worker):
        with load.fault():
            send(signal.SIGTERM, worker)
        wait_until(lambda: "Warm shutdown" in worker.tail(), saying=worker.tail)
        wait_until(lambda: not worker.service.is_ready())
        assert worker.pid == asked
        load.go_on()
        wait_until(lambda: worker.pid != asked, STOP_SECONDS)
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert not any(one.flagged for endpoint in load.endpoints.values() for one in endpoint.exchanges)
