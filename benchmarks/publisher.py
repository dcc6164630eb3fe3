"""Publishers in one process: streams of calls, either as fast as the broker keeps up or by a timetable."""

import contextlib
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from ctypes import c_bool, c_int64
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Control
from multiprocessing.process import BaseProcess
from typing import Final, cast

from benchmarks.connection import Connection, Refused, body_of
from benchmarks.processes import Receiving, shared, spawned

ACCEPTED: Final = 202
LOOK_SECONDS: Final = 0.005
"""How soon a stream notices that the broker has caught up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is published: calls over all event types in turn, from several connections."""

    web: str
    token: str
    event_types: Sequence[str]
    connections: int
    per_call: int
    """Messages in a call."""
    window: int = 0
    """Most messages in flight, each for one subscriber; no stream publishes while there are more."""
    per_second: float = 0.0
    """Messages a second, evenly spaced; 0: as fast as the window allows."""


@dataclass(frozen=True, slots=True)
class Published:
    """What one stream has published."""

    stream: int
    counts: Sequence[int]
    """Messages of each event type."""
    due: "array[float]"
    """When each call was due, on the monotonic clock."""
    accept_seconds: "array[float]"
    """Time from then to the answer."""
    problem: str = ""


@dataclass(slots=True)
class Flow:
    """What the streams share: how much is in flight, and whether they stop."""

    plan: Plan
    delivered: c_int64
    enough: c_bool
    _published: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def by_window(self) -> Iterator[float]:
        """Yield the time of each call of a stream, as soon as the window allows it."""
        while not self.enough.value:
            with self._lock:
                goes = self._published + self.plan.per_call - self.delivered.value <= self.plan.window
                self._published += self.plan.per_call * goes
            if goes:
                yield time.monotonic()
            else:
                time.sleep(LOOK_SECONDS)

    def by_timetable(self, stream: int) -> Iterator[float]:
        """Yield when each call of a stream is due, as soon as it is; a late call counts from when it was due."""
        step = self.plan.per_call / self.plan.per_second
        due = time.monotonic() + stream * step
        while not self.enough.value:
            time.sleep(max(0.0, due - time.monotonic()))
            yield due
            due += step * self.plan.connections


class Stream:
    """One connection and its counters."""

    def __init__(self, number: int, flow: Flow) -> None:
        self._number = number
        self._flow = flow
        self._plan = flow.plan
        self._connection = Connection(self._plan.web, self._plan.token)
        self._counts = [0] * len(self._plan.event_types)
        self._next = number * self._plan.per_call
        """The next message, counted over all connections; it decides the event type."""
        self._due = array("d")
        self._accept_seconds = array("d")
        self._problem = ""

    def run(self) -> None:
        """Publish until stopped."""
        flow = self._flow
        try:
            for due in flow.by_timetable(self._number) if self._plan.per_second else flow.by_window():
                self._publish(due)
        except (Refused, OSError) as problem:
            self._problem = str(problem)

    def published(self) -> Published:
        """Return what it has published."""
        self._connection.close()
        return Published(self._number, self._counts, self._due, self._accept_seconds, self._problem)

    def _publish(self, due: float) -> None:
        items = []
        for message in range(self._next, self._next + self._plan.per_call):
            position = message % len(self._counts)
            self._counts[position] += 1
            body = body_of(self._number, self._counts[position], int(due * 1e9))
            items.append((self._plan.event_types[position].encode(), body))
        self._next += self._plan.connections * self._plan.per_call
        if self._plan.per_call == 1:
            ((name, body),) = items
            self._connection.post(b"/api/v1/events/" + name, body, expected=ACCEPTED)
        else:
            texts = [b'{"event":"%s","body":%s}' % item for item in items]
            self._connection.post(b"/api/v1/events", b'{"events":[%s]}' % b",".join(texts), expected=ACCEPTED)
        self._due.append(due)
        self._accept_seconds.append(time.monotonic() - due)


def publish(control: Control, plan: Plan, delivered: c_int64, enough: c_bool) -> None:
    """Run the publishers' process."""
    flow = Flow(plan, delivered, enough)
    streams = [Stream(number, flow) for number in range(plan.connections)]
    threads = [threading.Thread(target=stream.run) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    control.send([stream.published() for stream in streams])


@dataclass(frozen=True, slots=True)
class RunningPublisher:
    """The publishers' process, seen from outside."""

    process: BaseProcess
    control: Control
    enough: c_bool

    def stop(self) -> list[Published]:
        """Let every stream finish its call; return what they have published."""
        self.enough.value = True
        return cast("list[Published]", self.control.recv())


@contextlib.contextmanager
def publishing(plan: Plan, to: Receiving) -> Iterator[RunningPublisher]:
    """Publish from now on; the window counts from what has been received before."""
    enough = shared(c_bool, False)
    counted = replace(plan, window=plan.window + to.delivered)
    with spawned(publish, counted, to.count, enough) as (process, control):
        try:
            yield RunningPublisher(process, control, enough)
        finally:
            enough.value = True
