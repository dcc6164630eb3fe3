"""Publishers and endpoints around a broker, for TOPIC and volatile messages."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from broker_project.stack.load.exchanges import Call, Published
from broker_project.stack.load.publisher import Caller, Event, Publisher
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from broker_project.stack.supervisor import Child
from tests.support.faults.endpoints import Endpoint, body_of, note_stored
from tests.support.faults.exchanges import Fault
from tests.support.faults.figures import Figures, figures
from tests.support.real_broker import Broker, Subscribed

PUBLISH_EVERY_SECONDS = 0.05
BATCH = 5
LARGE_BATCH = 100
WARM = 50
"""Events acknowledged before a fault: every line is at work."""

AFTERWARDS = 50
"""Events acknowledged after a fault."""

STORED = """
    SELECT count(*)::int FROM delivery_message message JOIN subscriptions_eventtype event_type
        ON event_type.id = message.event_type_id WHERE event_type.name = %(event_type)s
"""


def publisher_of(
    broker: Broker,
    event_types: Sequence[str],
    numbers: Iterator[int],
    size: int,
    *,
    every: float = PUBLISH_EVERY_SECONDS,
    headers: Mapping[str, str] | None = None,
) -> Publisher:
    """Return a publisher of numbered events, of each type in turn; it does nothing yet."""
    types = itertools.cycle(event_types)
    events = (Event(number, next(types), body_of(number), headers=headers or {}) for number in numbers)
    return Publisher(broker.web, broker.publisher(), events, batch_size=size, interval_seconds=every)


def stop_all(publishers: Sequence[Publisher]) -> None:
    """Let each publisher end the call in progress; raise `RuntimeError` if one was refused."""
    for publisher in publishers:
        publisher.enough.set()
    for publisher in filter(Publisher.is_alive, publishers):
        publisher.join(PATIENCE_SECONDS)
    if problems := [publisher.problem for publisher in publishers if publisher.problem]:
        raise RuntimeError(f"publishing failed: {problems}")


OPEN = """
    SELECT count(*) FROM delivery_open delivery JOIN delivery_message message ON message.id = delivery.message_id
    JOIN subscriptions_eventtype event_type ON event_type.id = message.event_type_id
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


def open_deliveries(broker: Broker, event_type: str) -> int:
    """Return how many deliveries of an event type have not ended."""
    ((count,),) = broker.ask(OPEN, event_type=event_type)
    return int(count)


@contextmanager
def noting_fault(faults: list[Fault]) -> Iterator[None]:
    """Break something inside: copies may repeat only what was in flight then."""
    begun = time.monotonic()
    try:
        yield
    finally:
        faults.append(Fault(begun, time.monotonic()))


@dataclass(slots=True, kw_only=True)
class Publishing:
    """Publishers at work around a broker that breaks."""

    broker: Broker
    publishers: list[Publisher] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unfinished: int = 0
    """Deliveries that the broker still had to do when time was up."""

    def published(self) -> dict[int, Published]:
        """Return every event whose publish was answered 2xx, by its number."""
        return {event.number: event for publisher in self.publishers for event in publisher.published}

    def begun(self) -> set[int]:
        """Return the number of every event that a publisher began to publish."""
        return {number for publisher in self.publishers for number in publisher.begun}

    def acknowledged(self) -> int:
        return sum(len(publisher.published) for publisher in self.publishers)

    def wait_for(self, more: int) -> None:
        """Wait until `more` further events have been acknowledged."""
        wanted = self.acknowledged() + more
        wait_until(lambda: self.acknowledged() >= wanted, saying=self.acknowledged)

    def give_up(self) -> None:
        """Let no publisher do anything more."""
        for publisher in self.publishers:
            publisher.give_up()


@dataclass(slots=True, kw_only=True)
class OneTypeLoad(Publishing):
    """Publishers of one event type, and what the broker has recorded of it in the end."""

    event_type: str
    winners: dict[int, int] = field(default_factory=dict)
    """How many deliveries of each event are DELIVERED."""

    def start(self) -> None:
        """Publish from now on; return when everything is warm."""
        for publisher in self.publishers:
            publisher.start()
        self.wait_for(WARM)

    def open(self) -> int:
        """Return how many deliveries have not ended."""
        return open_deliveries(self.broker, self.event_type)

    def wait_until_through(self) -> None:
        """Wait until nothing is open or time is up, then read what the broker has recorded."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self.open() and time.monotonic() < until:
            time.sleep(0.05)
        self.read_records()

    def read_records(self) -> None:
        """Read what the broker has recorded of the events."""
        self.unfinished = self.open()
        self.winners = dict(self.broker.ask(WINNERS, event_type=self.event_type))


def volatile_caller(broker: Broker, event_type: str, *, every: float = 0.005) -> Caller:
    """Return a caller that publishes one numbered volatile message after the other, from 0."""
    session = broker.publisher()
    session.headers["Broker-Durability"] = "volatile"
    address = f"{broker.web}/api/v1/events/{event_type}"
    return Caller(
        address, session, itertools.count(), lambda number: b'{"number": %d}' % number, interval_seconds=every
    )


@dataclass(slots=True, kw_only=True)
class Load(Publishing):
    """Publishers at work, the endpoints of as many subscribers that get everything, and when a fault happened."""

    receiver: Receiver
    event_types: tuple[str, str]
    endpoints: dict[Subscribed, Endpoint] = field(default_factory=dict)
    fault_at: float = 0.0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def subscribe(self, name: str, fails: Callable[[int], bool] = lambda _: False) -> Endpoint:
        """Add a subscriber with a subscription to each of the two event types, and its endpoint."""
        subscribed = self.broker.subscribe(self.receiver.url(f"/{name}"), *self.event_types)
        self.endpoints[subscribed] = Endpoint(name, self.receiver, fails=fails)
        return self.endpoints[subscribed]

    def publisher(self, size: int, every: float = PUBLISH_EVERY_SECONDS) -> Publisher:
        """Add a publisher that does nothing yet."""
        self.publishers.append(publisher_of(self.broker, self.event_types, self._numbers, size, every=every))
        return self.publishers[-1]

    def start(self) -> None:
        """Let one publisher publish singly and one in batches; return when every line is at work."""
        for size in (1, BATCH):
            self.publisher(size).start()
        self.wait_for(WARM)

    def publish(self, count: int) -> None:
        """Publish `count` events at once, in large batches."""
        publisher = self.publisher(LARGE_BATCH)
        for _ in range(count // LARGE_BATCH):
            publisher.publish()

    def wait_until_all_are_under_way(self) -> None:
        """Let every endpoint keep a request waiting."""
        endpoints = self.endpoints.values()
        for endpoint in endpoints:
            endpoint.is_stuck = True
        wait_until(lambda: all(endpoint.has_one_in_flight() for endpoint in endpoints))

    def note_fault(self) -> None:
        """Measure pauses from now on."""
        self.fault_at = time.monotonic()

    @contextmanager
    def fault(self) -> Iterator[None]:
        """Break something inside; pauses count from the first fault on."""
        self.fault_at = self.fault_at or time.monotonic()
        with noting_fault(self.faults):
            yield

    def calls(self) -> list[Call]:
        """Return every publish call that lay within the last fault, singly and in batches."""
        calls = [call for publisher in self.publishers for call in publisher.calls]
        return [call for call in calls if self.faults[-1].begun <= call.begun and call.ended <= self.faults[-1].ended]

    def pending(self) -> int:
        """Return how many deliveries of acknowledged events have not been accepted."""
        return sum(self.acknowledged() - len(endpoint.accepted()) for endpoint in self.endpoints.values())

    def go_on(self) -> None:
        """Let every endpoint answer."""
        for endpoint in self.endpoints.values():
            endpoint.is_stuck = False

    def stop(self) -> None:
        """Stop publishing and wait until everything is through, or has had time enough."""
        stop_all(self.publishers)
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.is_through() and time.monotonic() < until:
            time.sleep(0.05)
        self.unfinished = self.broker.unfinished(self.endpoints.keys())
        note_stored(self.broker, self.endpoints.values())

    def first_driver(self) -> Child:
        """Return the worker that drives the first subscriber's line, once there is one."""
        return self.broker.wait_for_driver_of(next(iter(self.endpoints)))

    def figures(self) -> Figures:
        """Return the figures of everything."""
        return figures(
            self.published(),
            self.begun(),
            {endpoint.name: endpoint.exchanges for endpoint in self.endpoints.values()},
            steady=[one.name for one in self.endpoints.values() if self.fault_at and one.name.startswith("steady")],
            fault_at=self.fault_at,
            faults=self.faults,
            unfinished=self.unfinished,
        )

    def is_through(self) -> bool:
        """Return whether all that was acknowledged has been taken, and nothing is on its way."""
        wanted = self.published().keys()
        accepted = all(wanted <= endpoint.accepted() for endpoint in self.endpoints.values())
        return accepted and self.broker.has_finished(self.endpoints.keys())


@contextmanager
def loaded(broker: Broker, receiver: Receiver) -> Iterator[Load]:
    """Give a load around the broker; leave no work for the next test."""
    load = Load(broker=broker, receiver=receiver, event_types=(broker.event_type(), broker.event_type()))
    try:
        yield load
    finally:
        load.give_up()
        broker.inactivate_all()


COUNTS = """
    SELECT subscription_id, sum(accepted)::int, sum(delivered)::int,
           sum(filtered + refused + no_answer + not_allowed + skipped + expired + dropped + lost)::int
    FROM delivery_volatilecount count JOIN subscriptions_eventtype event_type ON event_type.id = count.event_type_id
    WHERE event_type.name = %(event_type)s GROUP BY subscription_id
"""
