"""Send what may be a poison message in a process of its own: the worker's side (contract 4.19).

`isolated_process` is the program of such a process. The line, its lease and its settle stay with the worker.
"""

import math
import mmap
import os
import pickle  # nosec B403
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

import structlog
from django.conf import settings

from broker_project.core import boot_clock
from delivery.http.transfer import LEASE_ENDED, Answer, RequestNotCompleted
from delivery.limits import ISOLATED_GRACE_SECONDS, MAX_ISOLATED_PROCESSES
from delivery.webhook.request import Outgoing
from delivery.worker.slots import Slot, SlotState

if TYPE_CHECKING:
    from delivery.worker.line import ActiveLine

PROGRAM: Final = "import django; django.setup(); from delivery.worker import isolated_process; isolated_process.run()"
READY: Final = b"R"
"""What a process says once it can send."""
GO: Final = b"G"
"""What it is told once its request is in the shared memory."""
START_SECONDS: Final = 30
"""A process that is not ready by then is ended, and another one started."""
START_AGAIN_SECONDS: Final = 5.0
"""Pause after a process that could not be started, or was not ready in time."""
RECEIVED_AT_ONCE: Final = 65_536
SECONDS: Final = struct.Struct("d")
BEFORE_SENDING: Final = frozenset({SlotState.SETTLING, SlotState.LOCKED, SlotState.PACING})
ENDED: Final = "its request ended the process that sent nothing else"

log = structlog.get_logger(__name__)


class SharedLease:
    """When a lease ends, in memory shared with a process: the worker renews it during the request."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SECONDS.size)

    @property
    def lease_ends_at(self) -> float:
        """Time since boot by which the request may not be in flight any more."""
        (seconds,) = SECONDS.unpack_from(self._memory)
        return float(seconds)

    @lease_ends_at.setter
    def lease_ends_at(self, seconds: float) -> None:
        SECONDS.pack_into(self._memory, 0, seconds)


class IsolatedProcess:
    """A process that sends one request and ends; nothing here waits for it."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            self._shared = os.memfd_create("isolated")
            stack.callback(os.close, self._shared)
            os.ftruncate(self._shared, SECONDS.size)
            self.lease = SharedLease(self._shared)
            self.socket, theirs = socket.socketpair()
            stack.callback(self.socket.close)
            self.socket.setblocking(False)
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own program
                    [sys.executable, "-c", PROGRAM, *map(str, (os.getpid(), self._shared, theirs.fileno()))],
                    pass_fds=[self._shared, theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd=settings.BASE_DIR,
                    start_new_session=True,
                )
            self._descriptors = stack.pop_all()
        self._said = b""
        self.is_sending = False
        self.seconds_left: float = START_SECONDS
        """Counted one by one: the whole machine may have been stopped meanwhile."""

    @property
    def is_ready(self) -> bool:
        """Whether it can send."""
        return self._said.startswith(READY)

    def receive(self) -> bool:
        """Take what it says; return whether it has ended."""
        with suppress(ConnectionError):
            try:
                while said := self.socket.recv(RECEIVED_AT_ONCE):
                    self._said += said
            except BlockingIOError:
                if self.is_ready and not self.is_sending:
                    self.seconds_left = math.inf
                return False
        return True

    def send(self, delivery: Outgoing, sequence: int, started_at: datetime) -> None:
        """Let it send a request.

        Raises:
            OSError: it has ended.
        """
        os.pwrite(self._shared, pickle.dumps((delivery, sequence, started_at)), SECONDS.size)
        self.socket.send(GO)
        self.is_sending = True
        self.seconds_left = delivery.destination.timeout_seconds + ISOLATED_GRACE_SECONDS

    def answer(self, how: str) -> Answer:
        """Return the answer to its request; `how` it has ended is the failure if there is none."""
        try:
            answer: Answer = pickle.loads(self._said[len(READY) :])  # noqa: S301 - our own program # nosec B301
        except (EOFError, pickle.UnpicklingError):
            return Answer(None, 0, b"", b"", 0, RequestNotCompleted(f"{ENDED} ({how})", was_sent=True, is_poison=True))
        return answer

    def end(self) -> str:
        """End it, if it has not ended; return how it has."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        self._descriptors.close()
        status = self._process.returncode or 0
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


class Isolation:
    """The isolated processes of a worker, a fresh one for each request; belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._processes: dict[Slot, IsolatedProcess] = {}
        self._unsent: list[Slot] = []
        """Those whose process ended before it was told of their request."""
        self._poll = select.epoll()
        self._start_at = 0.0
        """Time since boot from which a process may be started."""
        self._counted_at = 0.0

    def fileno(self) -> int:
        """Return what is readable when a process says something, or ends."""
        return self._poll.fileno()

    def is_ready(self, slot: Slot) -> bool:
        """Return whether a process can send this slot's request; start one if there is room.

        The last place is for a line that has none: no line keeps all of them.
        """
        if process := self._processes.get(slot):
            return process.is_ready
        has_one = any(other.line is slot.line for other in self._processes)
        if MAX_ISOLATED_PROCESSES - len(self._processes) > has_one and boot_clock.since_boot() >= self._start_at:
            try:
                self._processes[slot] = process = IsolatedProcess()
                self._poll.register(process.socket, select.EPOLLIN)
            except OSError as failure:
                self._start_later(str(failure))
        return False

    def start(self, slot: Slot, delivery: Outgoing, sequence: int, started_at: datetime) -> None:
        """Let the process of a slot send its request."""
        try:
            process = self._processes[slot]
            process.lease.lease_ends_at = slot.line.lease_ends_at
            process.send(delivery, sequence, started_at)
        except (KeyError, OSError):
            self._unsent.append(slot)

    def finished(self) -> list[Answer]:
        """Return the answers that have come; the leases of other requests are kept up to date.

        A process that was ready and has no request to send is ended.
        """
        now = boot_clock.since_boot()
        seconds = 1 if now >= self._counted_at + 1 else 0
        self._counted_at = now if seconds else self._counted_at
        answers = [
            Answer(slot, 0, b"", b"", 0, RequestNotCompleted(LEASE_ENDED, was_sent=True, is_abandoned=True))
            for slot in self._unsent
        ]
        self._unsent = []
        for slot, process in [*self._processes.items()]:
            process.lease.lease_ends_at = slot.line.lease_ends_at
            process.seconds_left -= seconds
            has_ended = process.receive()
            if has_ended or process.seconds_left <= 0:
                how = self._end(slot) if has_ended else f"hung, {self._end(slot)}"
                if process.is_sending:
                    answers.append(process.answer(how))
                    answers[-1].token = slot
                else:
                    self._start_later(how)
            elif not process.is_sending and slot.state not in BEFORE_SENDING:
                self._end(slot)
        return answers

    def drop(self, line: "ActiveLine") -> None:
        """End the requests of a line."""
        for slot in self._processes.keys() & {*line.slots}:
            self._end(slot)

    def close(self) -> None:
        """End all processes."""
        for slot in [*self._processes]:
            self._end(slot)
        self._poll.close()

    def _end(self, slot: Slot) -> str:
        return self._processes.pop(slot).end()

    def _start_later(self, reason: str) -> None:
        log.error("isolation.process_failed", reason=reason)
        self._start_at = boot_clock.since_boot() + START_AGAIN_SECONDS
