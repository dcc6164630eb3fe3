"""Publishers that repeat a call until it is answered 2xx, and write down how each was answered."""

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import requests

from broker_project.stack.demo.records import Published
from tests.faults.endpoints import body_of
from tests.real_broker import TIMEOUT, Broker

PUBLISH_EVERY = 0.05
LONGEST_CALL = 60.0
"""Until a call is taken, repeated for as long as that may be."""
REPEAT_AFTER = 0.1
"""What was not answered 2xx is published again, under the same idempotency key."""


@dataclass(frozen=True, slots=True)
class Call:
    """One publish call, on the monotonic clock."""

    begun: float
    ended: float
    status: int | None
    """None: no answer."""

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


class Publisher(threading.Thread):
    """Publishes until told that it is enough, one call after the other, each repeated until it is answered 2xx."""

    def __init__(
        self,
        broker: Broker,
        event_types: Sequence[str],
        numbers: Iterator[int],
        size: int,
        *,
        every: float = PUBLISH_EVERY,
        terms: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name=f"publisher of {size}", daemon=True)
        self.published: list[Published] = []
        self.begun: list[int] = []
        self.calls: list[Call] = []
        self.enough = threading.Event()
        self._is_over = threading.Event()
        self._address = f"{broker.web}/api/v1/events"
        self._session = broker.publisher()
        self._event_types = itertools.cycle(event_types)
        self._numbers = numbers
        self._size = size
        self._every = every
        self._terms = terms or {}
        """Headers of each call that publishes one event."""

    @property
    def repeated(self) -> int:
        return sum(call.status is None or call.status // 100 != 2 for call in self.calls)

    def run(self) -> None:
        while not self.enough.wait(self._every):
            self.publish()

    def publish(self) -> None:
        """Make one call."""
        items = [(number, next(self._event_types)) for number in itertools.islice(self._numbers, self._size)]
        self.begun += [number for number, _ in items]
        started = time.monotonic()
        call = self._one if self._size == 1 else self._batch
        while not call(items):
            if self._is_over.wait(REPEAT_AFTER):
                return
        ended = time.monotonic()
        self.published += [
            Published(number, event_type, "", "", started, ended, position, 0)
            for position, (number, event_type) in enumerate(items)
        ]

    def give_up(self) -> None:
        """Publish nothing more, nor repeat what was not taken: the broker may be gone for good."""
        self.enough.set()
        self._is_over.set()

    def _one(self, items: list[tuple[int, str]]) -> bool:
        ((number, event_type),) = items
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"event-{number}", **self._terms}
        return self._is_taken(f"{self._address}/{event_type}", body_of(number), headers)

    def _batch(self, items: list[tuple[int, str]]) -> bool:
        texts = [
            f'{{"event": "{event_type}", "idempotency_key": "event-{number}", "body": {body_of(number).decode()}}}'
            for number, event_type in items
        ]
        return self._is_taken(self._address, f'{{"events": [{", ".join(texts)}]}}'.encode(), {})

    def _is_taken(self, address: str, body: bytes, headers: dict[str, str]) -> bool:
        begun = time.monotonic()
        try:
            answered = self._session.post(address, body, headers=headers, timeout=TIMEOUT)
        except requests.RequestException:
            self.calls.append(Call(begun, time.monotonic(), None))
            return False
        self.calls.append(Call(begun, time.monotonic(), answered.status_code))
        assert answered.ok or answered.status_code in {409, 503}, answered.text
        return answered.ok


def stop_all(publishers: Sequence[Publisher]) -> None:
    """Let each end the call that it has begun."""
    for publisher in publishers:
        publisher.enough.set()
    for publisher in filter(Publisher.is_alive, publishers):
        publisher.join(LONGEST_CALL)


def give_up_all(publishers: Iterable[Publisher]) -> None:
    """Let none of them do anything more."""
    for publisher in publishers:
        publisher.give_up()


def published_by(publishers: Iterable[Publisher]) -> list[Published]:
    """Return every event whose publish was answered 2xx."""
    return [event for publisher in publishers for event in publisher.published]


def begun_by(publishers: Iterable[Publisher]) -> set[int]:
    """Return the number of every event that somebody began to publish."""
    return {number for publisher in publishers for number in publisher.begun}
