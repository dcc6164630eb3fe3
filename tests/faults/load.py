"""Publishers and endpoints that write down what they do, around a broker that something happens to."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import requests

from broker_project.stack.demo.records import Published
from tests.faults.figures import Exchange, Figures, figures
from tests.real_broker import TIMEOUT, Broker, Subscribed
from tests.receiver import Received, Receiver, answer, wait_until

ANSWER_SECONDS = 0.003
"""How long an endpoint takes: a worker that is killed is then nearly always waiting for an answer."""
BATCH = 5
LARGE_BATCH = 100
WARM = 50
"""Events acknowledged before a fault: every line is at work."""

PUBLISH_EVERY = 0.05
REPEAT_AFTER = 0.1
"""What was not answered 2xx is published again, under the same idempotency key."""
THROUGH_SECONDS = 60.0


def body_of(number: int) -> bytes:
    """Return an event's body, odd enough to tell whether anybody wrote it anew."""
    return f'{{ "number":{number}, "size":1.50, "size":"{"x" * (number % 700)}" }}'.encode()


class Endpoint:
    """One subscriber's application: answers after a moment as it is told, and writes everything down."""

    def __init__(self, name: str, receiver: Receiver, *, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.exchanges: list[Exchange] = []
        self.is_busy = False
        """Whether it answers 503."""
        self.is_stuck = False
        """Whether it lets every request wait until it is no longer so."""
        self.name = name
        self._receiver = receiver
        self._fails = fails
        self._failed: set[int] = set()
        receiver.on(f"/{name}", self)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        exchange = exchange_of(self._receiver.log[-1])  # it is logged right before we are asked
        self.exchanges.append(exchange)
        await asyncio.sleep(ANSWER_SECONDS)
        while self.is_stuck:
            await asyncio.sleep(ANSWER_SECONDS)
        exchange.status = self._status(exchange.number)
        return await answer(exchange.status, Retry_After="1")(reader, writer)

    def has_one_under_way(self) -> bool:
        return bool(self.exchanges) and self.exchanges[-1].status is None

    def accepted(self) -> set[int]:
        return {one.number for one in self.exchanges if one.status == 200}

    def _status(self, number: int) -> int:
        if self.is_busy:
            return 503
        if self._fails(number) and number not in self._failed:
            self._failed.add(number)
            return 500
        return 200


def exchange_of(request: Received) -> Exchange:
    """Return what an endpoint writes down of a request."""
    number = int(json.loads(request.body)["number"])
    return Exchange(
        number=number,
        webhook_id=request.headers["webhook-id"],
        sequence=request.sequence,
        flagged=request.is_flagged,
        altered=request.body != body_of(number),
        at=request.begun,
    )


class Publisher(threading.Thread):
    """Publishes until told that it is enough, one call after the other, each repeated until it is answered 2xx."""

    def __init__(self, broker: Broker, event_types: Sequence[str], numbers: Iterator[int], size: int) -> None:
        super().__init__(name=f"publisher of {size}", daemon=True)
        self.published: list[Published] = []
        self.begun: list[int] = []
        self.repeated = 0
        self.enough = threading.Event()
        self._address = f"{broker.web}/api/v1/events"
        self._session = broker.publisher()
        self._event_types = itertools.cycle(event_types)
        self._numbers = numbers
        self._size = size

    def run(self) -> None:
        while not self.enough.wait(PUBLISH_EVERY):
            self.publish()

    def publish(self) -> None:
        """Make one call."""
        items = [(number, next(self._event_types)) for number in itertools.islice(self._numbers, self._size)]
        self.begun += [number for number, _ in items]
        started = time.monotonic()
        call = self._one if self._size == 1 else self._batch
        while not call(items):
            self.repeated += 1
            time.sleep(REPEAT_AFTER)
        ended = time.monotonic()
        self.published += [
            Published(number, event_type, "", "", started, ended, position, 0)
            for position, (number, event_type) in enumerate(items)
        ]

    def _one(self, items: list[tuple[int, str]]) -> bool:
        ((number, event_type),) = items
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"event-{number}"}
        return self._is_taken(f"{self._address}/{event_type}", body_of(number), headers)

    def _batch(self, items: list[tuple[int, str]]) -> bool:
        texts = [
            f'{{"event": "{event_type}", "idempotency_key": "event-{number}", "body": {body_of(number).decode()}}}'
            for number, event_type in items
        ]
        return self._is_taken(self._address, f'{{"events": [{", ".join(texts)}]}}'.encode(), {})

    def _is_taken(self, address: str, body: bytes, headers: dict[str, str]) -> bool:
        try:
            answered = self._session.post(address, body, headers=headers, timeout=TIMEOUT)
        except requests.RequestException:
            return False
        assert answered.ok or answered.status_code in {409, 503}, answered.text
        return answered.ok


@dataclass(slots=True)
class Load:
    """Publishers at work, the endpoints of as many subscribers that get everything, and when a fault happened."""

    broker: Broker
    receiver: Receiver
    event_types: tuple[str, str]
    endpoints: dict[Subscribed, Endpoint] = field(default_factory=dict)
    publishers: list[Publisher] = field(default_factory=list)
    fault_at: float = 0.0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def subscribe(self, name: str, fails: Callable[[int], bool] = lambda _: False) -> Endpoint:
        """Add a subscriber with a subscription to each of the two event types, and its endpoint."""
        subscribed = self.broker.subscribe(self.receiver.url(f"/{name}"), *self.event_types)
        self.endpoints[subscribed] = Endpoint(name, self.receiver, fails=fails)
        return self.endpoints[subscribed]

    def publisher(self, size: int) -> Publisher:
        """Add a publisher that does nothing yet."""
        self.publishers.append(Publisher(self.broker, self.event_types, self._numbers, size))
        return self.publishers[-1]

    def start(self) -> None:
        """Let one publisher publish singly and one in batches; return when every line is at work."""
        for size in (1, BATCH):
            self.publisher(size).start()
        self.wait_for(WARM)

    def publish(self, count: int) -> None:
        """Publish so many events at once, in large batches."""
        publisher = self.publisher(LARGE_BATCH)
        for _ in range(count // LARGE_BATCH):
            publisher.publish()

    def acknowledged(self) -> int:
        return sum(len(publisher.published) for publisher in self.publishers)

    def wait_for(self, more: int) -> None:
        """Wait until so many more events have been acknowledged."""
        wanted = self.acknowledged() + more
        wait_until(
            lambda: self.acknowledged() >= wanted, THROUGH_SECONDS, saying=lambda: f"acknowledged {self.acknowledged()}"
        )

    def wait_until_all_are_under_way(self) -> None:
        """Let every endpoint keep a request waiting."""
        for endpoint in self.endpoints.values():
            endpoint.is_stuck = True
        endpoints = self.endpoints.values()
        wait_until(lambda: all(endpoint.has_one_under_way() for endpoint in endpoints), THROUGH_SECONDS)

    def note_fault(self) -> None:
        """Measure pauses from now on."""
        self.fault_at = time.monotonic()

    def pending(self) -> int:
        """Return how many deliveries of acknowledged events have not been accepted."""
        return sum(self.acknowledged() - len(endpoint.accepted()) for endpoint in self.endpoints.values())

    def go_on(self) -> None:
        """Let every endpoint answer."""
        for endpoint in self.endpoints.values():
            endpoint.is_stuck = False

    def stop(self) -> None:
        """Stop publishing and wait until everything is through, or has had time enough."""
        for publisher in self.publishers:
            publisher.enough.set()
        for publisher in self.publishers:
            if publisher.is_alive():
                publisher.join(THROUGH_SECONDS)
        until = time.monotonic() + THROUGH_SECONDS
        while not self._is_through() and time.monotonic() < until:
            time.sleep(0.05)

    def figures(self) -> Figures:
        """Return what became of it all."""
        names = [endpoint.name for endpoint in self.endpoints.values()]
        return figures(
            [event for publisher in self.publishers for event in publisher.published],
            {number for publisher in self.publishers for number in publisher.begun},
            {endpoint.name: endpoint.exchanges for endpoint in self.endpoints.values()},
            steady=[name for name in names if name.startswith("steady")] if self.fault_at else [],
            fault_at=self.fault_at,
        )

    def _is_through(self) -> bool:
        wanted = {event.number for publisher in self.publishers for event in publisher.published}
        accepted = all(wanted <= endpoint.accepted() for endpoint in self.endpoints.values())
        return accepted and self.broker.has_finished(self.endpoints.keys())


@contextmanager
def loaded(broker: Broker, receiver: Receiver) -> Iterator[Load]:
    """Give a load around the broker; leave no work for the next test."""
    load = Load(broker, receiver, (broker.event_type(), broker.event_type()))
    try:
        yield load
    finally:
        for publisher in load.publishers:
            publisher.enough.set()
        broker.inactivate_all()
