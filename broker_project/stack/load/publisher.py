"""Threads that publish: each call repeated until it is accepted, or made once with its answer kept."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import requests

from broker_project.stack.load.exchanges import Call, Published

TIMEOUT_SECONDS: Final = 20.0
REPEAT_SECONDS: Final = 0.1
"""Pause before a call that was not accepted is repeated."""
PASSING: Final = frozenset({409, 429, 503})
"""Statuses of calls that are worth repeating; any other refusal ends a publisher."""
JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Event:
    """One event to be published."""

    number: int
    """Also in its body."""
    type: str
    body: bytes
    """JSON."""
    region: str = ""
    """Its filter string."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the call that publishes it alone."""


class Publisher(threading.Thread):
    """Publishes events, call after call, each repeated under the same idempotency keys until it is accepted."""

    def __init__(
        self,
        web: str,
        session: requests.Session,
        events: Iterator[Event],
        *,
        batch_size: int = 1,
        interval_seconds: float,
        suffix: str = "",
    ) -> None:
        super().__init__(name=f"publisher of {batch_size}", daemon=True)
        self.published: list[Published] = []
        self.begun: list[int] = []
        """The numbers of all events that it tried to publish."""
        self.calls: list[Call] = []
        self.problem = ""
        """Why it gave up; empty: it did not."""
        self.enough = threading.Event()
        """Ends it after the call in progress."""
        self._is_over = threading.Event()
        self._address = f"{web}/api/v1/events"
        self._session = session
        self._events = events
        self._batch_size = batch_size
        self._interval_seconds = interval_seconds
        self._suffix = suffix

    def run(self) -> None:
        """Publish until there are no more events, or until `enough`."""
        while not self.enough.wait(self._interval_seconds) and self.publish():
            pass

    def publish(self) -> bool:
        """Make one call; return whether there was something to publish and it was accepted."""
        events = [*itertools.islice(self._events, self._batch_size)]
        if not events:
            return False
        self.begun += [event.number for event in events]
        started = time.monotonic()
        while (results := self._call(events)) is None:
            if self._is_over.wait(REPEAT_SECONDS):
                return False
        ended = time.monotonic()
        self.published += [
            Published(
                event.number, event.type, started, ended, position, event.region, result["deliveries"], result["id"]
            )
            for position, (event, result) in enumerate(zip(events, results, strict=True))
        ]
        return True

    def give_up(self) -> None:
        """Publish nothing more and repeat nothing: the broker may be gone for good."""
        self.enough.set()
        self._is_over.set()

    def _call(self, events: Sequence[Event]) -> list[dict[str, Any]] | None:
        """Return what the broker says of each event, None if it did not accept them."""
        call = Call(time.monotonic())
        self.calls.append(call)
        try:
            answer = self._post(events)
        except requests.RequestException:
            return None
        finally:
            call.ended = time.monotonic()
        call.status = answer.status_code
        if answer.ok:
            content = answer.json()
            return [content] if self._batch_size == 1 else list(content["results"])
        if answer.status_code not in PASSING:
            self.problem = f"{answer.status_code}: {answer.text}"
            self.give_up()
        return None

    def _post(self, events: Sequence[Event]) -> requests.Response:
        """Post one event alone, or a batch with the events' bodies byte for byte."""
        if self._batch_size == 1:
            (event,) = events
            filter_string = {"FILTER_STRING": event.region} if event.region else {}
            headers = {**JSON, "Idempotency-Key": f"event-{event.number}", **filter_string, **event.headers}
            address = f"{self._address}/{event.type}{self._suffix}"
            return self._session.post(address, event.body, headers=headers, timeout=TIMEOUT_SECONDS)
        items = []
        for event in events:
            region = f'"filter_string": "{event.region}", ' if event.region else ""
            terms = f'"event": "{event.type}{self._suffix}", "idempotency_key": "event-{event.number}", {region}'
            items.append(b'{%s"body": %s}' % (terms.encode(), event.body))
        body = b'{"events": [%s]}' % b", ".join(items)
        return self._session.post(self._address, body, headers=JSON, timeout=TIMEOUT_SECONDS)


class Caller(threading.Thread):
    """Publishes numbered bodies to one event type, each once, and keeps the answers."""

    def __init__(
        self,
        address: str,
        session: requests.Session,
        numbers: Iterator[int],
        body_of: Callable[[int], bytes],
        *,
        interval_seconds: float,
    ) -> None:
        super().__init__(name="caller", daemon=True)
        self.calls: list[Call] = []
        self.enough = threading.Event()
        self._address = address
        self._session = session
        self._numbers = numbers
        self._body_of = body_of
        self._interval_seconds = interval_seconds

    def run(self) -> None:
        """Call until there are no more numbers, or until `enough`."""
        while not self.enough.wait(self._interval_seconds) and (number := next(self._numbers, None)) is not None:
            self._call(number)

    def stop(self) -> None:
        """Finish the call in progress and end."""
        self.enough.set()
        self.join(TIMEOUT_SECONDS)

    def _call(self, number: int) -> None:
        call = Call(time.monotonic(), number)
        self.calls.append(call)
        try:
            answer = self._session.post(self._address, self._body_of(number), headers=JSON, timeout=TIMEOUT_SECONDS)
        except requests.RequestException:
            return
        finally:
            call.ended = time.monotonic()
        call.status, call.body = answer.status_code, answer.content
        call.message_id = answer.headers.get("Broker-Message-Id", "")
