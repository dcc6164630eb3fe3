"""Those who fetch, in one process: each acknowledges what it has got, and fetches again."""

import json
import threading
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from ctypes import c_int64
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Control
from typing import Any, Final

from benchmarks.connection import STREAM, Answer, Connection, Refused
from benchmarks.receipts import JobLog, Receipts

OK: Final = 200
NOTHING: Final = 204
TURNED_AWAY: Final = b"\r\nretry-after: "
"""Who is answered so had no place to wait in."""
END: Final = "end"
"""Ends the fetching; everything else asks for a report."""
AGAIN_SECONDS: Final = 1.0
"""When it comes again, as the answer says."""
EMPTY_SECONDS: Final = 0.005
"""When it comes again where it does not want to wait, and nothing was there."""
LEEWAY_SECONDS: Final = 1.0
"""So much earlier than was wanted an empty answer may come."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Whose mailbox is fetched from, and how."""

    web: str
    token: str
    mailbox: str
    consumers: int
    most: int
    """Messages in one call."""
    wait: float
    """Seconds that the broker is asked to wait for a message."""
    again: int | None = None
    """The stream of messages that others had until their time was over: these alone say that they come again, once."""


def _seconds() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Taken:
    """What came since the last report."""

    receipts: Receipts = field(default_factory=Receipts)
    fetched: "array[float]" = field(default_factory=_seconds)
    """How long each call took that brought something; where it may wait, most of it is waiting."""
    in_vain: "array[float]" = field(default_factory=_seconds)
    """How long each call took that brought nothing, though it had a place to wait in."""
    others: "array[int]" = field(default_factory=lambda: array("q"))
    """At each call that brought something: how many others were under way."""
    acknowledged: "array[float]" = field(default_factory=_seconds)
    turned_away: "array[float]" = field(default_factory=_seconds)
    """How long it took to hear that there is no place to wait in."""
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """What should not have been answered so, since the beginning."""


@dataclass(slots=True)
class Shared:
    """What all consumers write down."""

    count: c_int64
    """How many messages are acknowledged."""
    log: JobLog = field(default_factory=JobLog)
    taken: Taken = field(default_factory=Taken)
    faults: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    """Calls that want messages and have no answer yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def report(self) -> Taken:
        """Return what came since the last report."""
        with self.lock:
            reported, self.taken = self.taken, Taken()
            reported.receipts, reported.faults = self.log.report(), self.faults.copy()
            return reported


class Consumer(threading.Thread):
    """One connection that fetches and acknowledges by turns."""

    def __init__(self, number: int, errand: Errand, shared: Shared) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._shared = shared
        self._connection = Connection(errand.web, errand.token)
        self._errand = errand
        self._path = f"/api/v1/mailboxes/{errand.mailbox}/".encode()
        self._wish = json.dumps({"max": errand.most, "wait": errand.wait}).encode()

    def run(self) -> None:
        """Fetch until it is over."""
        try:
            while not self._shared.over.is_set():
                self._fetch()
        except (Refused, OSError) as problem:
            with self._shared.lock:
                self._shared.faults[f"fetching failed: {problem}"] += 1

    def _fetch(self) -> None:
        began = time.monotonic()
        status, head, content = self._asked()
        seconds = time.monotonic() - began
        if status == OK:
            messages = json.loads(content)["messages"]
            self._note(messages, seconds)
            self._acknowledge(messages)
        elif status != NOTHING:
            raise Refused(f"next answered {status}: {content.decode(errors='replace')}")
        elif TURNED_AWAY in head:
            with self._shared.lock:
                self._shared.taken.turned_away.append(seconds)
            self._shared.over.wait(AGAIN_SECONDS)
        else:
            self._note_in_vain(seconds)
            self._shared.over.wait(0 if self._errand.wait else EMPTY_SECONDS)

    def _asked(self) -> Answer:
        with self._shared.lock:
            self._shared.under_way += 1
        try:
            return self._connection.call(self._path + b"next", self._wish)
        finally:
            with self._shared.lock:
                self._shared.under_way -= 1

    def _note(self, messages: Sequence[dict[str, Any]], seconds: float) -> None:
        with self._shared.lock:
            taken = self._shared.taken
            taken.fetched.append(seconds)
            taken.others.append(self._shared.under_way)
            taken.messages += len(messages)
            for message in messages:
                body = message["body"].encode()
                self._shared.log.note(self._number, b"", body)
                if message["redeliveries"] != (int(body[STREAM]) == self._errand.again):
                    self._shared.faults["a wrong number of redeliveries"] += 1

    def _note_in_vain(self, seconds: float) -> None:
        with self._shared.lock:
            self._shared.taken.in_vain.append(seconds)
            if seconds < self._errand.wait - LEEWAY_SECONDS:
                self._shared.faults["an empty answer to somebody who wanted to wait"] += 1

    def _acknowledge(self, messages: Sequence[dict[str, Any]]) -> None:
        body = json.dumps({"receipts": [message["receipt"] for message in messages]}).encode()
        began = time.monotonic()
        content = self._connection.post(self._path + b"ack", body, expected=OK)
        seconds = time.monotonic() - began
        codes = Counter(result["code"] for result in json.loads(content)["results"])
        with self._shared.lock:
            self._shared.taken.acknowledged.append(seconds)
            self._shared.count.value += codes.pop("acknowledged", 0)
            self._shared.faults.update(codes)


def fetch(control: Control, errand: Errand, count: c_int64) -> None:
    """Be those who fetch, and report whenever asked: the whole life of a process."""
    shared = Shared(count)
    consumers = [Consumer(number, errand, shared) for number in range(errand.consumers)]
    for consumer in consumers:
        consumer.start()
    control.send(errand.consumers)
    while True:
        try:
            wish = control.recv()
        except EOFError:
            return
        if wish == END:
            shared.over.set()
            for consumer in consumers:
                consumer.join()
        control.send(shared.report())
