"""Publishers and workers of a QUEUE, one of them down, around a broker that something happens to."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from broker_project.stack.load.endpoint import Endpoint
from broker_project.stack.load.exchanges import Exchange
from broker_project.stack.load.publisher import Publisher, stop_all
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from broker_project.stack.ports import LOOPBACK, any_free
from tests.support.faults.exchanges import Fault
from tests.support.faults.figures import Figures, figures_of_jobs
from tests.support.faults.load import PUBLISH_EVERY_SECONDS, THROUGH_SECONDS, WARM, begun_by, give_up_all, publisher_of
from tests.support.real_broker import Broker

WORKERS = 2
BATCH = 20
MANY = 40
"""Requests under way: half of what the senders may have."""

OPEN = """
    SELECT count(*) FROM delivery_open delivery
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
    WHERE event_type.name = %(event_type)s
"""
WINNERS = """
    SELECT (convert_from(message.body, 'UTF8')::jsonb ->> 'number')::int,
           count(*) FILTER (WHERE delivery.status = 'DELIVERED')
    FROM delivery_message message JOIN subscriptions_eventtype event_type ON event_type.id = message.event_type_id
    LEFT JOIN delivery_delivery delivery ON delivery.message_id = message.id
    WHERE event_type.name = %(event_type)s AND message.answers IS NULL
    GROUP BY 1
"""


@dataclass(slots=True)
class QueueLoad:
    """Publishers at work, the endpoints that share the jobs, and when something happened."""

    broker: Broker
    event_type: str
    endpoints: list[Endpoint]
    publishers: list[Publisher]
    faults: list[Fault] = field(default_factory=list)
    unfinished: int = 0
    """Deliveries that the broker still had to do when time was up."""
    winners: dict[int, int] = field(default_factory=dict)
    """What the books say in the end: how many deliveries of each job are DELIVERED."""

    def start(self) -> None:
        """Publish from now on; return when jobs are being done."""
        for publisher in self.publishers:
            publisher.start()
        self.wait_for(WARM)

    def acknowledged(self) -> list[int]:
        return [event.number for publisher in self.publishers for event in publisher.published]

    def wait_for(self, more: int) -> None:
        """Wait until so many more jobs have been acknowledged."""
        wanted = len(self.acknowledged()) + more
        wait_until(lambda: len(self.acknowledged()) >= wanted, THROUGH_SECONDS)

    def wait_until_under_way(self) -> None:
        """Let every endpoint keep its requests waiting; return when there are many."""
        self._let_wait(True)
        wait_until(lambda: sum(one.status is None for one in self.requests()) >= MANY, THROUGH_SECONDS)

    def go_on(self) -> None:
        """Let every endpoint answer."""
        self._let_wait(False)

    @contextmanager
    def fault(self) -> Iterator[None]:
        """Break something inside: copies may only repeat what was under way then."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.faults.append(Fault(begun, time.monotonic()))

    def stop(self) -> None:
        """Stop publishing and wait until everything is through, or has had time enough; read the books."""
        stop_all(self.publishers)
        until = time.monotonic() + THROUGH_SECONDS
        while self.open() and time.monotonic() < until:
            time.sleep(0.05)
        self.read_books()

    def read_books(self) -> None:
        """Read what the broker says of the jobs."""
        self.unfinished = self.open()
        self.winners = dict(self.broker.ask(WINNERS, event_type=self.event_type))

    def requests(self) -> list[Exchange]:
        """Return every request for a job, in the order of arrival."""
        return sorted((one for endpoint in self.endpoints for one in endpoint.exchanges), key=lambda one: one.at)

    def figures(self) -> Figures:
        """Return what became of it all."""
        return figures_of_jobs(
            self.acknowledged(),
            begun_by(self.publishers),
            self.requests(),
            winners=self.winners,
            faults=self.faults,
            unfinished=self.unfinished,
        )

    def _let_wait(self, whether: bool) -> None:
        for endpoint in self.endpoints:
            endpoint.is_stuck = whether

    def open(self) -> int:
        """Return how many deliveries have not ended."""
        ((count,),) = self.broker.ask(OPEN, event_type=self.event_type)
        return int(count)


@contextmanager
def queue_loaded(broker: Broker, receiver: Receiver, *, every: float = PUBLISH_EVERY_SECONDS) -> Iterator[QueueLoad]:
    """Give a QUEUE with two endpoints that do their work and one that is down; leave no work for the next test."""
    event_type, numbers = broker.event_type("Test.Job", "QUEUE"), itertools.count(1)
    endpoints = [Endpoint(f"worker-{number + 1}", receiver) for number in range(WORKERS)]
    for endpoint in endpoints:
        broker.subscribe(receiver.url(f"/{endpoint.name}"), event_type)
    broker.subscribe(f"http://{LOOPBACK}:{any_free()}/down", event_type)
    publishers = [publisher_of(broker, [event_type], numbers, size, every=every) for size in (1, BATCH)]
    jobs = QueueLoad(broker, event_type, endpoints, publishers)
    try:
        yield jobs
    finally:
        give_up_all(publishers)
        broker.inactivate_all()
