"""The endpoint of every subscriber: one process with an epoll loop over raw sockets that gives the same answer to all.

It checks each request against the one before it in its stream. That costs about 10 µs, so that the broker stays the
limit; the scripted receiver of the load kit costs thirty times as much.
"""

import contextlib
import gc
import os
import resource
import select
import socket
import time
from collections.abc import Iterator
from ctypes import c_int64
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Final, cast

import pycurl

from benchmarks.connection import HEAD_END
from benchmarks.processes import Receiving, shared, spawned
from benchmarks.receipts import Log, Receipts, key_in
from broker_project.stack.ports import LOOPBACK

TAKEN: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
FAILED: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"

SUBSCRIBER: Final = slice(6, 11)
"""Where a request has the number of its subscriber."""
FAILING: Final = 99_999
"""The subscriber that is answered 500 at once; only the times of its requests are recorded."""

HANGING: Final = 99_998
"""The subscriber that is never answered, and whose requests are not recorded."""

LENGTH: Final = b"ontent-Length: "
CHUNK: Final = 262_144
BACKLOG: Final = 4096

REPORT: Final = "report"
"""Asks for the receipts since the last report."""
ANSWER_ALL: Final = "answer all"
"""Ends the hanging."""

CONNECTIONS: Final = 100
"""Of the bare client."""
OWN_HEADERS: Final = (b"host:", b"content-length:", b"accept:")
"""Headers that libcurl writes itself."""


class Sink:
    """Connections by descriptor, and the requests that come over them."""

    def __init__(
        self,
        control: Connection,
        delivered: c_int64,
        log: Log,
        answer: bytes,
        delay_seconds: float,
        hanging: int,
        slow_keys: int,
    ) -> None:
        self._control = control
        self._delivered = delivered
        self._usual = answer
        self._delay = delay_seconds
        self._hanging = hanging
        self._unanswered: list[int] = []
        self._slow_keys = slow_keys
        self._waiting: list[tuple[float, int]] = []
        """A heap: when each is to be answered."""
        self._partial: dict[int, bytes] = {}
        self._log = log
        self._poll = select.epoll()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)

    def serve(self) -> None:
        """Send the port, then serve until the control connection is closed."""
        self._control.send(self._listener.getsockname()[1])
        listener, control = self._listener.fileno(), self._control.fileno()
        self._poll.register(listener, select.EPOLLIN)
        self._poll.register(control, select.EPOLLIN)
        while True:
            due_in = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            for descriptor, _ in self._poll.poll(due_in):
                if descriptor == listener:
                    accepted, _ = self._listener.accept()
                    accepted.setblocking(False)
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._poll.register(accepted.detach(), select.EPOLLIN)
                elif descriptor != control:
                    self._read(descriptor)
                elif not self._command():
                    return
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                self._answer(heappop(self._waiting)[1], self._usual)
            self._delivered.value = self._log.count

    def _command(self) -> bool:
        """Carry out a command; return False when the connection is closed."""
        try:
            command = self._control.recv()
        except EOFError:
            return False
        if command == ANSWER_ALL:
            self._hanging = self._slow_keys = 0
            for descriptor in self._unanswered:
                self._answer(descriptor, self._usual)
            self._unanswered.clear()
        else:
            self._control.send(self._log.report())
        return True

    def _read(self, descriptor: int) -> None:
        """Read what has arrived, usually one whole request."""
        try:
            data = os.read(descriptor, CHUNK)
        except ConnectionError:
            data = b""
        if not data:
            os.close(descriptor)
            self._partial.pop(descriptor, None)
            self._unanswered = [other for other in self._unanswered if other != descriptor]
            self._waiting = [late for late in self._waiting if late[1] != descriptor]
            heapify(self._waiting)
            return
        if descriptor in self._partial:
            data = self._partial.pop(descriptor) + data
        while data:
            head = data.find(HEAD_END)
            start = data.find(LENGTH) + len(LENGTH)
            end = head + len(HEAD_END) + int(data[start : data.index(b"\r", start)]) if head >= 0 else None
            if end is None or end > len(data):
                self._partial[descriptor] = data
                return
            self._take(descriptor, data[:end])
            data = data[end:]

    def _take(self, descriptor: int, request: bytes) -> None:
        head, _, body = request.partition(HEAD_END)
        subscriber = int(head[SUBSCRIBER])
        if subscriber == FAILING:
            self._log.receipts.failed_at.append(time.monotonic_ns())
            self._answer(descriptor, FAILED)
            return
        if subscriber == HANGING:
            return
        self._log.record(subscriber, head, body)
        self._log.example = request
        if subscriber < self._hanging:
            self._unanswered.append(descriptor)
        elif self._delay:
            is_slow = self._slow_keys > 0 and int(key_in(head)) < self._slow_keys
            heappush(self._waiting, (time.monotonic() + self._delay * (10 if is_slow else 1), descriptor))
        else:
            self._answer(descriptor, self._usual)

    def _answer(self, descriptor: int, answer: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the next read closes it
            os.write(descriptor, answer)


def serve(control: Connection, *arguments: Any) -> None:
    """Run the sink's process, with the arguments of `Sink`."""
    gc.disable()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Sink(control, *arguments).serve()


@dataclass(frozen=True, slots=True)
class RunningSink(Receiving):
    """The sink's process, seen from outside."""

    name: ClassVar = "sink"

    port: int

    def endpoint(self, subscriber: int) -> str:
        """Return a subscriber's address."""
        return f"http://{LOOPBACK}:{self.port}/{subscriber:05d}"

    def report(self) -> Receipts:
        """Return the receipts since the last report."""
        return cast("Receipts", self.ask(REPORT))

    def answer_all(self) -> None:
        """Answer the subscribers that were left hanging."""
        self.control.send(ANSWER_ALL)


@contextlib.contextmanager
def running_sink(
    *,
    log: Log | None = None,
    answer: bytes = TAKEN,
    delay_seconds: float = 0.0,
    hanging: int = 0,
    slow_keys: int = 0,
) -> Iterator[RunningSink]:
    """Run a sink that gives this answer, late or to subscribers below the number `hanging` not at all.

    To ordering keys below the number `slow_keys` it comes ten times as late.
    """
    count = shared(c_int64, 0)
    with spawned(serve, count, log or Log(hanging), answer, delay_seconds, hanging, slow_keys) as (process, control):
        yield RunningSink(process, control, count, control.recv())


def post_bare(control: Connection, port: int, request: bytes, seconds: float) -> None:
    """Run the bare client's process: post a request over many connections and send back the answers a second."""
    head, _, body = request.partition(HEAD_END)
    first, *headers = head.split(b"\r\n")
    multi = pycurl.CurlMulti()
    multi.setopt(pycurl.M_MAXCONNECTS, 2 * CONNECTIONS)
    handles = [pycurl.Curl() for _ in range(CONNECTIONS)]
    for handle in handles:
        handle.setopt(pycurl.URL, f"http://{LOOPBACK}:{port}{first.split()[1].decode()}")
        kept = [header.decode() for header in headers if not header.lower().startswith(OWN_HEADERS)]
        handle.setopt(pycurl.HTTPHEADER, kept)
        handle.setopt(pycurl.POSTFIELDS, body)
        handle.setopt(pycurl.PROXY, "")
        multi.add_handle(handle)
    began, done = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        multi.perform()
        left = 1
        while left:
            left, answered, failed = multi.info_read()
            if failed:
                raise ConnectionError(failed[0][2])
            for handle in answered:  # is started again
                multi.remove_handle(handle)
                multi.add_handle(handle)
            done += len(answered)
        multi.select(1.0)
    control.send(done / (time.monotonic() - began))
