"""Mailbox consumers in one process: each acknowledges what it has fetched, then fetches again."""

import contextlib
import json
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes import c_int64
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Control
from typing import Any, ClassVar, Final, cast

from benchmarks.connection import STREAM, Answer, Connection, Refused
from benchmarks.processes import Receiving, shared, spawned
from benchmarks.receipts import JobLog, Receipts

OK: Final = 200
EMPTY: Final = 204
RETRY_AFTER: Final = b"\r\nretry-after: "
"""Only an empty answer to a client without a place to wait has it."""
REPORT: Final = "report"
END: Final = "end"
AGAIN_SECONDS: Final = 1.0
"""Pause after such an answer, as it asks for."""
EMPTY_SECONDS: Final = 0.005
"""Pause after an empty answer to a client that does not wait."""
LEEWAY_SECONDS: Final = 1.0
"""How much too early an empty answer to a waiting client may come."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Which mailbox is fetched from, and how."""

    web: str
    token: str
    mailbox: str
    consumers: int
    max_messages: int
    """In one call."""
    wait_seconds: float
    """How long the broker is asked to wait for a message."""
    redelivered_stream: int | None = None
    """The stream whose messages were fetched once before and timed out; only these are redeliveries."""


def _seconds() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Fetched:
    """What the consumers did since the last report."""

    receipts: Receipts = field(default_factory=Receipts)
    fetched: "array[float]" = field(default_factory=_seconds)
    """Durations of the calls that returned messages, waiting included."""
    empty: "array[float]" = field(default_factory=_seconds)
    """Durations of the calls that returned none, though there was a place to wait."""
    others: "array[int]" = field(default_factory=lambda: array("q"))
    """Other calls in flight, at each call that returned messages."""
    acknowledged: "array[float]" = field(default_factory=_seconds)
    turned_away: "array[float]" = field(default_factory=_seconds)
    """Durations of the calls that found no place to wait."""
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Answers that should not have been given, since the start."""


@dataclass(slots=True)
class Shared:
    """What all consumers record."""

    count: c_int64
    """Acknowledged messages."""
    log: JobLog = field(default_factory=JobLog)
    fetched: Fetched = field(default_factory=Fetched)
    faults: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    """Fetches without an answer."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def report(self) -> Fetched:
        """Return what was done since the last report."""
        with self.lock:
            reported, self.fetched = self.fetched, Fetched()
            reported.receipts, reported.faults = self.log.report(), self.faults.copy()
            return reported


class Consumer(threading.Thread):
    """One connection that fetches and acknowledges alternately."""

    def __init__(self, number: int, plan: FetchPlan, shared: Shared) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._shared = shared
        self._connection = Connection(plan.web, plan.token)
        self._plan = plan
        self._path = f"/api/v1/mailboxes/{plan.mailbox}/".encode()
        self._body = json.dumps({"max_messages": plan.max_messages, "wait_seconds": plan.wait_seconds}).encode()

    def run(self) -> None:
        """Fetch until stopped."""
        try:
            while not self._shared.over.is_set():
                self._shared.over.wait(self._fetch())
        except (Refused, OSError) as problem:
            with self._shared.lock:
                self._shared.faults[f"fetching failed: {problem}"] += 1

    def _fetch(self) -> float:
        """Fetch once and acknowledge; return the seconds to pause."""
        began = time.monotonic()
        status, head, content = self._answer()
        seconds = time.monotonic() - began
        if status == OK:
            messages = json.loads(content)["messages"]
            self._record(messages, seconds)
            self._acknowledge(messages)
            return 0.0
        if status != EMPTY:
            raise Refused(f"next answered {status}: {content.decode(errors='replace')}")
        with self._shared.lock:
            if RETRY_AFTER in head:
                self._shared.fetched.turned_away.append(seconds)
                return AGAIN_SECONDS
            self._shared.fetched.empty.append(seconds)
            if seconds < self._plan.wait_seconds - LEEWAY_SECONDS:
                self._shared.faults["an empty answer to a client that wanted to wait"] += 1
        return 0.0 if self._plan.wait_seconds else EMPTY_SECONDS

    def _answer(self) -> Answer:
        with self._shared.lock:
            self._shared.in_flight += 1
        try:
            return self._connection.call(self._path + b"next", self._body)
        finally:
            with self._shared.lock:
                self._shared.in_flight -= 1

    def _record(self, messages: Sequence[dict[str, Any]], seconds: float) -> None:
        with self._shared.lock:
            fetched = self._shared.fetched
            fetched.fetched.append(seconds)
            fetched.others.append(self._shared.in_flight)
            fetched.messages += len(messages)
            for message in messages:
                body = message["body"].encode()
                self._shared.log.record(self._number, b"", body)
                if message["redeliveries"] != (int(body[STREAM]) == self._plan.redelivered_stream):
                    self._shared.faults["a wrong number of redeliveries"] += 1

    def _acknowledge(self, messages: Sequence[dict[str, Any]]) -> None:
        body = json.dumps({"receipts": [message["receipt"] for message in messages]}).encode()
        began = time.monotonic()
        content = self._connection.post(self._path + b"ack", body, expected=OK)
        seconds = time.monotonic() - began
        codes = Counter(result["code"] for result in json.loads(content)["results"])
        with self._shared.lock:
            self._shared.fetched.acknowledged.append(seconds)
            self._shared.count.value += codes.pop("acknowledged", 0)
            self._shared.faults.update(codes)


def fetch(control: Control, plan: FetchPlan, count: c_int64) -> None:
    """Run the consumers' process, with a report for each command."""
    shared = Shared(count)
    consumers = [Consumer(number, plan, shared) for number in range(plan.consumers)]
    for consumer in consumers:
        consumer.start()
    control.send(plan.consumers)
    with contextlib.suppress(EOFError):
        while True:
            if control.recv() == END:
                shared.over.set()
                for consumer in consumers:
                    consumer.join()
            control.send(shared.report())


@dataclass(frozen=True, slots=True)
class RunningConsumers(Receiving):
    """The consumers' process, seen from outside."""

    name: ClassVar = "consumers"

    def report(self) -> Fetched:
        """Return what was done since the last report."""
        return cast("Fetched", self.ask(REPORT))

    def end(self) -> Fetched:
        """Let each consumer acknowledge what it has and stop; return what was done since the last report."""
        return cast("Fetched", self.ask(END))


@contextlib.contextmanager
def fetching(plan: FetchPlan) -> Iterator[RunningConsumers]:
    """Fetch from now on."""
    count = shared(c_int64, 0)
    with spawned(fetch, plan, count) as (process, control):
        control.recv()
        yield RunningConsumers(process, control, count)
