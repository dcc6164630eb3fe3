"""Publishers and workers of a QUEUE, one of them down, around a broker that something happens to."""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from broker_project.stack.load.exchanges import Exchange
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from broker_project.stack.ports import LOOPBACK, any_free
from tests.support.faults.endpoints import Endpoint, note_stored
from tests.support.faults.figures import Figures, figures_of_jobs
from tests.support.faults.load import PUBLISH_EVERY_SECONDS, OneTypeLoad, noting_fault, publisher_of, stop_all
from tests.support.real_broker import Broker

WORKERS = 2
BATCH = 20
MANY = 40
"""Requests under way: half of what the senders may have."""


@dataclass(slots=True, kw_only=True)
class QueueLoad(OneTypeLoad):
    """Publishers of jobs, the endpoints that share them, and the faults."""

    endpoints: list[Endpoint]

    def wait_until_under_way(self) -> None:
        """Let every endpoint hold its requests; return when there are many."""
        for endpoint in self.endpoints:
            endpoint.is_stuck = True
        wait_until(lambda: sum(one.status is None for one in self.requests()) >= MANY)

    def go_on(self) -> None:
        """Let every endpoint answer."""
        for endpoint in self.endpoints:
            endpoint.is_stuck = False

    def fault(self) -> AbstractContextManager[None]:
        """Break something inside."""
        return noting_fault(self.faults)

    def stop(self) -> None:
        """Stop publishing and wait until everything is through."""
        stop_all(self.publishers)
        self.wait_until_through()
        note_stored(self.broker, self.endpoints)

    def requests(self) -> list[Exchange]:
        """Return every request for a job, in the order of arrival."""
        return sorted((one for endpoint in self.endpoints for one in endpoint.exchanges), key=lambda one: one.at)

    def figures(self) -> Figures:
        """Return the figures of everything."""
        return figures_of_jobs(
            self.published(),
            self.begun(),
            self.requests(),
            winners=self.winners,
            faults=self.faults,
            unfinished=self.unfinished,
        )


@contextmanager
def queue_loaded(broker: Broker, receiver: Receiver, *, every: float = PUBLISH_EVERY_SECONDS) -> Iterator[QueueLoad]:
    """Give a QUEUE with two endpoints that do their work and one that is down; leave no work for the next test."""
    event_type, numbers = broker.event_type("Test.Job", "QUEUE"), itertools.count(1)
    endpoints = [Endpoint(f"worker-{number + 1}", receiver) for number in range(WORKERS)]
    for endpoint in endpoints:
        broker.subscribe(receiver.url(f"/{endpoint.name}"), event_type)
    broker.subscribe(f"http://{LOOPBACK}:{any_free()}/down", event_type)
    publishers = [publisher_of(broker, [event_type], numbers, size, every=every) for size in (1, BATCH)]
    jobs = QueueLoad(broker=broker, event_type=event_type, publishers=publishers, endpoints=endpoints)
    try:
        yield jobs
    finally:
        jobs.give_up()
        broker.inactivate_all()
