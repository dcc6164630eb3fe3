"""Publishers in one process: streams of calls, either as fast as the broker keeps up or by a timetable."""

import threading
import time
from collections.abc import Iterator, Sequence
from ctypes import c_bool, c_int64
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Control
from typing import Final

from benchmarks.connection import KILOBYTE, Connection, Refused, body_of

LOOK_SECONDS: Final = 0.005
"""How soon a stream notices that the broker has caught up."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much is published, and how fast."""

    per_call: int = 1
    """Messages in a call."""
    window: int = 0
    """Most deliveries in flight; no stream publishes while there are more."""
    per_second: float = 0.0
    """Messages a second, evenly spaced; 0: as fast as the window allows."""
    connections: int = 4
    first_stream: int = 0
    """The number of the first connection's stream: publishers that follow each other in one run have others."""
    fan_out: int = 1
    """Subscribers that get each message."""
    rests: Sequence[bytes] = (KILOBYTE,)
    """What the bodies end with, in turn."""
    expected: int = 202
    """The status of the answers."""
    added: bytes = b""
    """Added to the head of each request, or to each item of a batch; `%(number)d` is the message's number."""


@dataclass(frozen=True, slots=True)
class Published:
    """What one stream has published."""

    stream: int
    counts: Sequence[int]
    """Messages of each event type."""
    due: Sequence[float]
    """When each call was due, on the monotonic clock."""
    accept_seconds: Sequence[float]
    """Time from then to the answer."""
    problem: str


@dataclass(slots=True)
class Flow:
    """What the streams share: how much is in flight, and whether they stop."""

    pace: Pace
    delivered: c_int64
    enough: c_bool
    _published: int = 0
    """Deliveries."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def dues(self, stream: int) -> Iterator[float]:
        """Yield when each call of a stream is due, as soon as it is; a late call counts from when it was due."""
        if self.pace.per_second:
            step = self.pace.per_call / self.pace.per_second
            due = time.monotonic() + stream * step
            while True:
                time.sleep(max(0.0, due - time.monotonic()))
                if self.enough.value:
                    return
                yield due
                due += step * self.pace.connections
        while not self.enough.value:
            with self._lock:
                more = self.pace.per_call * self.pace.fan_out
                goes = self._published + more - self.delivered.value <= self.pace.window
                self._published += more * goes
                if not goes:
                    time.sleep(LOOK_SECONDS)  # with the lock: one stream looks, and the others wait for it
            if goes:
                yield time.monotonic()


class Stream(threading.Thread):
    """One connection, which publishes calls over all event types in turn, and its counters."""

    def __init__(self, number: int, web: str, token: str, event_types: Sequence[str], flow: Flow) -> None:
        super().__init__()
        self._number = number
        self._stream = flow.pace.first_stream + number
        self._flow = flow
        self._event_types = [name.encode() for name in event_types]
        self._connection = Connection(web, token)
        self._counts = [0] * len(event_types)
        self._due: list[float] = []
        self._accept_seconds: list[float] = []
        self._problem = ""

    def run(self) -> None:
        """Publish until stopped."""
        pace = self._flow.pace
        first = self._number * pace.per_call  # counted over all connections; decides the event type
        try:
            for due in self._flow.dues(self._number):
                self._publish(range(first, first + pace.per_call), due)
                first += pace.connections * pace.per_call
        except (Refused, OSError) as problem:
            self._problem = str(problem)
        self._connection.close()

    def published(self) -> Published:
        """Return what it has published in the end."""
        self.join()
        return Published(self._stream, self._counts, self._due, self._accept_seconds, self._problem)

    def _publish(self, messages: range, due: float) -> None:
        items, pace = [], self._flow.pace
        for message in messages:
            position = message % len(self._counts)
            self._counts[position] += 1
            rest = pace.rests[message % len(pace.rests)]
            body = body_of(self._stream, self._counts[position], int(due * 1e9), rest)
            items.append((self._event_types[position], body, pace.added % {b"number": message}))
        if len(items) == 1:
            ((name, body, headers),) = items
            self._connection.post(b"/api/v1/events/" + name, body, expected=pace.expected, headers=headers)
        else:
            texts = [b'{"event":"%s","body":%s%s}' % item for item in items]
            self._connection.post(b"/api/v1/events", b'{"events":[%s]}' % b",".join(texts), expected=202)
        self._due.append(due)
        self._accept_seconds.append(time.monotonic() - due)


def publish(
    control: Control, web: str, token: str, event_types: Sequence[str], pace: Pace, delivered: c_int64, enough: c_bool
) -> None:
    """Run the publishers' process."""
    flow = Flow(pace, delivered, enough)
    streams = [Stream(number, web, token, event_types, flow) for number in range(pace.connections)]
    for stream in streams:
        stream.start()
    control.send([stream.published() for stream in streams])
