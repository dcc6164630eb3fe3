"""Under every fault: nothing lost, order kept, at most one copy more per line and kill, and each copy says so."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from broker_project.stack.children import Child
from tests.faults.figures import Figures
from tests.faults.load import Load, loaded
from tests.real_broker import Broker
from tests.receiver import Receiver, wait_until

pytestmark = pytest.mark.faults

PENDING = 1_000
AFTERWARDS = 50
"""Events acknowledged after a fault."""
LONGEST_PAUSE = 5.0
"""Without Redis."""
LONGEST_RESTART = 15.0
"""A worker that comes back takes its lines back, long before their leases run out."""
STOP_SECONDS = 20.0

Report = Callable[[], Figures]


@pytest.fixture
def load(broker: Broker, receiver: Receiver) -> Iterator[Load]:
    """Three subscribers, one of which answers 500 now and then."""
    with loaded(broker, receiver) as load:
        load.subscribe("steady-1")
        load.subscribe("steady-2")
        load.subscribe("failing", fails=lambda number: number % 20 == 0)
        yield load


@pytest.fixture
def figures(load: Load, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Report:
    """Wait until everything is through; print and return the figures."""

    def print_figures() -> Figures:
        load.stop()
        made = load.figures()
        with capsys.disabled():
            print(f"\n{request.node.name}: {made}")
        return made

    return print_figures


@contextmanager
def restarted(*children: Child) -> Iterator[None]:
    """End when each of them has been started again and is ready."""
    before = {child.pid for child in children}
    yield
    wait_until(lambda: all(child.pid not in {None, *before} and child.service.is_ready() for child in children), 60)


def flush_redis(broker: Broker) -> None:
    with broker.redis() as redis:
        redis.flushall()


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.10")
@pytest.mark.behaviour("4.11")
def test_redis_is_flushed_while_a_thousand_deliveries_are_pending(load: Load, figures: Report) -> None:
    busy = [load.subscribe("busy-1"), load.subscribe("busy-2")]
    for endpoint in busy:
        endpoint.is_busy = True
    load.start()
    load.publish(PENDING // len(busy))
    assert load.pending() >= PENDING
    load.note_fault()
    flush_redis(load.broker)
    load.wait_for(AFTERWARDS)
    for endpoint in busy:
        assert endpoint.accepted() == set()
        endpoint.is_busy = False
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert seen.pause <= LONGEST_PAUSE


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.10")
@pytest.mark.behaviour("4.11")
def test_a_worker_is_killed_while_requests_are_under_way(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    victim = load.broker.worker_driving(next(iter(load.endpoints)))
    load.note_fault()
    with restarted(victim):
        victim.kill()
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.most_of_a_line) == ({}, 1)
    assert seen.pause <= LONGEST_RESTART


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.10")
@pytest.mark.behaviour("4.11")
def test_every_worker_is_killed_and_redis_flushed_at_the_same_time(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    load.note_fault()
    with restarted(*load.broker.workers()):
        for worker in load.broker.workers():
            worker.kill()
        flush_redis(load.broker)
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.most_of_a_line, seen.duplicated) == ({}, 1, len(load.endpoints))
    assert seen.pause <= LONGEST_RESTART


@pytest.mark.behaviour("4.11")
def test_a_worker_asked_to_stop_lets_its_requests_end(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    worker = load.broker.worker_driving(next(iter(load.endpoints)))
    process = worker._process
    assert process
    with restarted(worker):
        load.note_fault()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Warm shutdown" in worker.tail(), saying=worker.tail)
        wait_until(lambda: not worker.service.is_ready())
        assert process.poll() is None
        load.go_on()
        assert process.wait(STOP_SECONDS) == 0
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert not any(one.flagged for endpoint in load.endpoints.values() for one in endpoint.exchanges)


@pytest.mark.behaviour("2.1")
@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.11")
def test_postgresql_is_killed_under_load(load: Load, figures: Report) -> None:
    load.start()
    postgres = load.broker.stack.supervisor["postgres"]
    load.note_fault()
    with restarted(postgres):
        postgres.kill()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert seen.broken == {}
    assert seen.most_of_a_line <= 1


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.11")
def test_what_is_answered_while_postgresql_is_away_is_not_forgotten(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    postgres = load.broker.stack.supervisor["postgres"]
    load.note_fault()
    with restarted(postgres):
        postgres.kill()
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert seen.pause <= LONGEST_RESTART


@pytest.mark.behaviour("2.1")
@pytest.mark.behaviour("11.3")
def test_the_web_process_is_killed_while_publishing(load: Load, figures: Report) -> None:
    load.start()
    web = load.broker.stack.supervisor["web"]
    load.note_fault()
    with restarted(web):
        web.kill()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert sum(publisher.repeated for publisher in load.publishers) > 0
