"""The endpoint of every subscriber: one process, one epoll loop over raw sockets, the same answer, late if so told.

It notes each request and checks it against those before of the same stream: some 10 µs, so that what is measured is
the broker.
"""

import gc
import os
import resource
import select
import socket
import time
from collections import deque
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.connection import PATH
from benchmarks.receipts import Log
from broker_project.stack.ports import LOOPBACK

TAKEN: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
FAILED: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"

FAILING: Final = 99_999
"""The subscriber that is answered 500 at once; of what it gets no more is noted than when it came."""

HEAD_END: Final = b"\r\n\r\n"
LENGTH: Final = b"ontent-Length: "
CHUNK: Final = 262_144
BACKLOG: Final = 4096

REPORT: Final = "report"
"""Asks for the receipts since the last report."""
ANSWER_ALL: Final = "answer all"
"""Ends the hanging."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How all others are answered."""

    answer: bytes = TAKEN
    hanging: int = 0
    """Subscribers below this number are left without an answer."""
    delay: float = 0.0
    """Seconds until each answer."""


class Sink:
    """Connections by descriptor, and the requests that come over them."""

    def __init__(self, control: Connection, delivered: c_int64, log: Log, manner: Manner) -> None:
        self._control = control
        self._delivered = delivered
        self._hanging = manner.hanging
        self._delay = manner.delay
        self._usual = manner.answer
        self._unanswered: list[int] = []
        self._waiting: deque[tuple[float, int]] = deque()
        """When each is to be answered."""
        self._partial: dict[int, bytes] = {}
        self._log = log
        self._poll = select.epoll()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)

    def serve(self) -> None:
        """Say on which port it listens; serve until the control connection is closed."""
        self._control.send(self._listener.getsockname()[1])
        listener, control = self._listener.fileno(), self._control.fileno()
        self._poll.register(listener, select.EPOLLIN)
        self._poll.register(control, select.EPOLLIN)
        while True:
            for descriptor, _ in self._poll.poll(self._seconds_to_wait()):
                if descriptor == listener:
                    self._accept()
                elif descriptor != control:
                    self._read(descriptor)
                elif not self._obey():
                    return
            self._answer_the_due()
            self._delivered.value = self._log.count

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll.register(accepted.detach(), select.EPOLLIN)

    def _obey(self) -> bool:
        try:
            wish = self._control.recv()
        except EOFError:
            return False
        if wish == ANSWER_ALL:
            self._answer_all()
        else:
            self._control.send(self._log.report())
        return True

    def _read(self, descriptor: int) -> None:
        """Take what has come: usually one whole request."""
        try:
            data = os.read(descriptor, CHUNK)
        except ConnectionError:
            data = b""
        if not data:
            self._close(descriptor)
            return
        if descriptor in self._partial:
            data = self._partial.pop(descriptor) + data
        while data:
            end = _end_of_request(data)
            if end > len(data):
                self._partial[descriptor] = data
                return
            self._take(descriptor, data[:end])
            data = data[end:]

    def _take(self, descriptor: int, request: bytes) -> None:
        head, _, body = request.partition(HEAD_END)
        subscriber = int(head[PATH])
        if subscriber == FAILING:
            self._log.note_failed()
            self._answer(descriptor, FAILED)
            return
        self._log.note(subscriber, head, body)
        self._log.example = request
        if subscriber < self._hanging:
            self._unanswered.append(descriptor)
        elif self._delay:
            self._waiting.append((time.monotonic() + self._delay, descriptor))
        else:
            self._answer(descriptor, self._usual)

    def _answer_all(self) -> None:
        self._hanging = 0
        for descriptor in self._unanswered:
            self._answer(descriptor, self._usual)
        self._unanswered.clear()

    def _seconds_to_wait(self) -> float | None:
        """Return until when nothing is to be answered, if anything is at all."""
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None

    def _answer_the_due(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            self._answer(self._waiting.popleft()[1], self._usual)

    def _answer(self, descriptor: int, answer: bytes) -> None:
        try:
            os.write(descriptor, answer)
        except ConnectionError:
            return  # reading from it will say so

    def _close(self, descriptor: int) -> None:
        os.close(descriptor)
        self._partial.pop(descriptor, None)
        if descriptor in self._unanswered:
            self._unanswered.remove(descriptor)
        self._waiting = deque(late for late in self._waiting if late[1] != descriptor)


def _end_of_request(data: bytes) -> int:
    """Return where the first request ends; behind the data where it is not complete."""
    head = data.find(HEAD_END)
    if head < 0:
        return len(data) + 1
    start = data.index(LENGTH) + len(LENGTH)
    return head + len(HEAD_END) + int(data[start : data.index(b"\r", start)])


def serve(control: Connection, delivered: c_int64, log: Log, manner: Manner) -> None:
    """Be the sink: the whole life of a process."""
    gc.disable()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Sink(control, delivered, log, manner).serve()
