"""The processes around the broker: the sink, the publishers, and what a bare client can do."""

import contextlib
import time
from collections.abc import Iterator
from ctypes import c_bool, c_int64
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, Final, Protocol, cast

import pycurl

from benchmarks import asker, mailbox_client, publisher, sink
from benchmarks.asker import Asked, Questions
from benchmarks.connection import path_of
from benchmarks.mailbox_client import Errand, Taken
from benchmarks.processes import shared, spawned
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import Log, Receipts
from benchmarks.sink import Manner
from broker_project.stack.ports import LOOPBACK

CONNECTIONS: Final = 100
SELECT_SECONDS: Final = 1.0
HEAD_END: Final = b"\r\n\r\n"
OWN: Final = (b"host:", b"content-length:", b"accept:")
"""Headers that libcurl writes itself."""


def post_bare(control: Connection, port: int, request: bytes, seconds: float) -> None:
    """Send back how many such requests a second were answered: the whole life of a process."""
    head, _, body = request.partition(HEAD_END)
    first, *headers = head.split(b"\r\n")
    url = f"http://{LOOPBACK}:{port}{first.split()[1].decode()}"
    kept = [header.decode() for header in headers if not header.lower().startswith(OWN)]
    control.send(_rate([_handle(url, kept, body) for _ in range(CONNECTIONS)], seconds))


def _handle(url: str, headers: list[str], body: bytes) -> Any:
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.HTTPHEADER, headers)
    handle.setopt(pycurl.POSTFIELDS, body)
    handle.setopt(pycurl.PROXY, "")
    return handle


def _rate(handles: list[Any], seconds: float) -> float:
    """Post over all handles side by side, each again as soon as it is answered."""
    multi = pycurl.CurlMulti()
    multi.setopt(pycurl.M_MAXCONNECTS, 2 * len(handles))
    for handle in handles:
        multi.add_handle(handle)
    began, done = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        multi.perform()
        done += _again(multi)
        multi.select(SELECT_SECONDS)
    return done / (time.monotonic() - began)


def _again(multi: Any) -> int:
    """Start again what is answered; return how much that was."""
    count, left = 0, 1
    while left:
        left, answered, failed = multi.info_read()
        if failed:
            raise ConnectionError(failed[0][2])
        for handle in answered:
            multi.remove_handle(handle)
            multi.add_handle(handle)
        count += len(answered)
    return count


class Receiving(Protocol):
    """A process that gets what is published."""

    name: ClassVar[str]

    @property
    def process(self) -> BaseProcess:
        """What to look at for its CPU time."""

    @property
    def count(self) -> c_int64:
        """How much it has got, as other processes may read it."""

    @property
    def delivered(self) -> int:
        """How much it has got."""

    def report(self) -> object:
        """Return what came since the last report."""


@dataclass(frozen=True, slots=True)
class RunningSink:
    """The sink's process, as seen from outside."""

    name: ClassVar = "sink"

    process: BaseProcess
    control: Connection
    port: int
    count: c_int64

    @property
    def delivered(self) -> int:
        """How many deliveries it has got."""
        return self.count.value

    def endpoint(self, subscriber: int) -> str:
        """Return a subscriber's address."""
        return f"http://{LOOPBACK}:{self.port}{path_of(subscriber)}"

    def report(self) -> Receipts:
        """Return what came since the last report."""
        self.control.send(sink.REPORT)
        return cast("Receipts", self.control.recv())

    def answer_all(self) -> None:
        """Let nobody hang any more."""
        self.control.send(sink.ANSWER_ALL)

    def bare_rate(self, request: bytes, seconds: float) -> float:
        """Return how many such requests a second a bare client can post here."""
        with spawned(post_bare, self.port, request, seconds) as (_, control):
            return float(control.recv())


@dataclass(frozen=True, slots=True)
class RunningConsumers:
    """The process of those who fetch, as seen from outside."""

    name: ClassVar = "consumers"
    process: BaseProcess
    control: Connection
    count: c_int64

    @property
    def delivered(self) -> int:
        """How many messages they have acknowledged."""
        return self.count.value

    def report(self) -> Taken:
        """Return what came since the last report."""
        self.control.send(sink.REPORT)
        return cast("Taken", self.control.recv())

    def end(self) -> Taken:
        """Let each acknowledge what it has and fetch no more; return what came since the last report."""
        self.control.send(mailbox_client.END)
        return cast("Taken", self.control.recv())


@dataclass(frozen=True, slots=True)
class RunningPublisher:
    """The publishers' process, as seen from outside."""

    process: BaseProcess
    control: Connection
    enough: c_bool

    def stop(self) -> list[Published]:
        """Let every stream finish its call; return what they have published."""
        self.enough.value = True
        return cast("list[Published]", self.control.recv())


@contextlib.contextmanager
def running_sink(*, log: Log | None = None, **manner: Any) -> Iterator[RunningSink]:
    """Run a sink that answers in the `Manner` that is named, or takes everything at once."""
    count, how = shared(c_int64, 0), Manner(**manner)
    with spawned(sink.serve, count, log or Log(how.hanging), how) as (process, control):
        yield RunningSink(process, control, control.recv(), count)


@contextlib.contextmanager
def publishing(plan: Plan, to: Receiving) -> Iterator[RunningPublisher]:
    """Publish from now on; the window of the plan counts from what has already been got."""
    enough = shared(c_bool, False)
    counted = replace(plan, window=plan.window + to.delivered)
    with spawned(publisher.publish, counted, to.count, enough) as (process, control):
        try:
            yield RunningPublisher(process, control, enough)
        finally:
            enough.value = True


@contextlib.contextmanager
def fetching(errand: Errand) -> Iterator[RunningConsumers]:
    """Fetch from now on, until we are done with it."""
    count = shared(c_int64, 0)
    with spawned(mailbox_client.fetch, errand, count) as (process, control):
        control.recv()
        yield RunningConsumers(process, control, count)


def asking(questions: Questions) -> Asked:
    """Return how the questions were answered, once all have been asked."""
    with spawned(asker.ask, questions) as (_, control):
        return cast("Asked", control.recv())
