"""Mailbox consumers in one process: each acknowledges what it has fetched, then fetches again."""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes import c_int64
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Control
from typing import Any, ClassVar, Final, cast

from benchmarks.connection import STREAM, Answer, Connection, Refused
from benchmarks.processes import Receiving, shared, spawned
from benchmarks.receipts import JobLog, Receipts
from benchmarks.sink import REPORT

OK: Final = 200
EMPTY: Final = 204
RETRY_AFTER: Final = b"\r\nretry-after: "
"""Only an empty answer to a client without a place to wait has it."""
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


@dataclass(slots=True)
class Fetched:
    """What the consumers did since the last report; durations are in seconds."""

    receipts: Receipts = field(default_factory=Receipts)
    fetched: list[float] = field(default_factory=list)
    """Durations of the calls that returned messages, waiting included."""
    empty: list[float] = field(default_factory=list)
    """Durations of the calls that returned none, though there was a place to wait."""
    others: list[int] = field(default_factory=list)
    """Other calls in flight, at each call that returned messages."""
    acknowledged: list[float] = field(default_factory=list)
    turned_away: list[float] = field(default_factory=list)
    """Durations of the calls that found no place to wait."""
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Answers that should not have been given, since the start."""

    def problems(self) -> list[str]:
        """Return what should not have been answered like this."""
        return [f"{count} times {what}" for what, count in sorted(self.faults.items())]


class Consumers:
    """Connections that fetch and acknowledge alternately, a thread each, and what all of them record."""

    def __init__(self, plan: FetchPlan, count: c_int64) -> None:
        self._plan = plan
        self._count = count
        """Acknowledged messages."""
        self._path = f"/api/v1/mailboxes/{plan.mailbox}/".encode()
        self._body = json.dumps({"max_messages": plan.max_messages, "wait_seconds": plan.wait_seconds}).encode()
        self._log = JobLog()
        self._fetched = Fetched()
        self._in_flight = 0
        """Fetches without an answer."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[n], daemon=True) for n in range(plan.consumers)]
        for thread in self._threads:
            thread.start()

    def report(self) -> Fetched:
        """Return what was done since the last report."""
        with self._lock:
            reported, self._fetched = self._fetched, Fetched(faults=self._fetched.faults.copy())
            reported.receipts = self._log.report()
            return reported

    def end(self) -> None:
        """Let each consumer acknowledge what it has and stop."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        try:
            connection = Connection(self._plan.web, self._plan.token)
            while not self._over.is_set():
                self._over.wait(self._fetch(number, connection))
        except (Refused, OSError) as problem:
            with self._lock:
                self._fetched.faults[f"fetching failed: {problem}"] += 1

    def _fetch(self, number: int, connection: Connection) -> float:
        """Fetch once and acknowledge; return the seconds to pause."""
        began = time.monotonic()
        status, head, content = self._answer(connection)
        seconds = time.monotonic() - began
        if status == OK:
            messages = json.loads(content)["messages"]
            self._record(number, messages, seconds)
            self._acknowledge(connection, messages)
            return 0.0
        if status != EMPTY:
            raise Refused(f"next answered {status}: {content.decode(errors='replace')}")
        with self._lock:
            if RETRY_AFTER in head:
                self._fetched.turned_away.append(seconds)
                return AGAIN_SECONDS
            self._fetched.empty.append(seconds)
            if seconds < self._plan.wait_seconds - LEEWAY_SECONDS:
                self._fetched.faults["an empty answer to a client that wanted to wait"] += 1
        return 0.0 if self._plan.wait_seconds else EMPTY_SECONDS

    def _answer(self, connection: Connection) -> Answer:
        with self._lock:
            self._in_flight += 1
        try:
            return connection.call(self._path + b"next", self._body)
        finally:
            with self._lock:
                self._in_flight -= 1

    def _record(self, number: int, messages: Sequence[dict[str, Any]], seconds: float) -> None:
        with self._lock:
            self._fetched.fetched.append(seconds)
            self._fetched.others.append(self._in_flight)
            self._fetched.messages += len(messages)
            for message in messages:
                body = message["body"].encode()
                self._log.record(number, b"", body)
                if message["redeliveries"] != (int(body[STREAM]) == self._plan.redelivered_stream):
                    self._fetched.faults["a wrong number of redeliveries"] += 1

    def _acknowledge(self, connection: Connection, messages: Sequence[dict[str, Any]]) -> None:
        body = json.dumps({"receipts": [message["receipt"] for message in messages]}).encode()
        began = time.monotonic()
        content = connection.post(self._path + b"ack", body, expected=OK)
        seconds = time.monotonic() - began
        codes = Counter(result["code"] for result in json.loads(content)["results"])
        with self._lock:
            self._fetched.acknowledged.append(seconds)
            self._count.value += codes.pop("acknowledged", 0)
            self._fetched.faults.update(codes)


def fetch(control: Control, plan: FetchPlan, count: c_int64) -> None:
    """Run the consumers' process, with a report for each command."""
    consumers = Consumers(plan, count)
    control.send(plan.consumers)
    with contextlib.suppress(EOFError):
        while True:
            if control.recv() == END:
                consumers.end()
            control.send(consumers.report())


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
