"""Send what was in flight at two unclean ends of a worker where nothing else is: in a child process (contract 4.19).

Whatever ends that process too, while the worker lives, is held. The child does all that a worker does with a request
and its answer; the line, its lease and its settle stay with the worker.
"""

import mmap
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Final

import structlog
from django.conf import settings
from django.db import Error

from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.db import forget_connection, rows
from broker_project.core.egress import EgressPolicy
from delivery.filing import HISTORY_LINE
from delivery.http.client import HttpClient
from delivery.http.transfer import Answer, Lease, RequestNotCompleted
from delivery.limits import LONE_GRACE_SECONDS, LONE_PROCESSES
from delivery.webhook.request import Outgoing, add_sequence, request_of
from delivery.worker.slots import RequestSent, Slot
from delivery.worker.topic import outcome_of, settlement_of

PROGRAM: Final = "import django; django.setup(); from delivery.worker import alone; alone.serve()"
PARENT_SECONDS: Final = 0.1
"""How often a child looks whether its parent lives: nobody else waits for the answer."""
START_SECONDS: Final = 30
"""A child that has said nothing by then, beside the grace, is not waited for."""
SECONDS: Final = struct.Struct("d")
ENDED: Final = "its request ended the process that sent it, alone"
NOT_STARTED: Final = "no process could be started to send it alone"

HOLD: Final = f"""
WITH mine AS MATERIALIZED (
  SELECT l.id FROM delivery_line l WHERE l.id = %(line_id)s AND l.epoch = %(epoch)s FOR NO KEY UPDATE OF l),
held AS (
  UPDATE delivery_open d SET status = 'HELD', waits_for = 'RELEASE', due_at = NULL, reason = %(reason)s
    FROM mine m
   WHERE d.line_id = m.id AND d.id = %(delivery_id)s AND d.status = 'IN_FLIGHT' AND NOT d.cancel_requested
  RETURNING d.id, d.line_id, d.sequence, d.group_id),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'held; it may never have been received'
    FROM held WHERE sequence IS NOT NULL),
others AS (
  UPDATE delivery_queuegroup g SET first_id = NULL FROM held WHERE g.id = ANY (ARRAY[held.group_id]))
SELECT id FROM held
"""
"""Hold a delivery in flight; the other endpoints of its QUEUE group are asked instead."""

log = structlog.get_logger(__name__)


def hold(slot: Slot, reason: str) -> bool:
    """Hold what a slot has sent until an operator releases it; return False if that was too late, or has failed."""
    line, delivery = slot.line, slot.in_flight
    assert delivery  # noqa: S101 - it was sent
    log.error("delivery.held", line_id=line.id, delivery_id=delivery.id, reason=reason)
    which = {"line_id": line.id, "epoch": line.claim.epoch, "delivery_id": delivery.id, "reason": reason}
    try:
        return bool(rows(HOLD, which))
    except Error as failure:
        log.warning("event_loop.database_failed", reason=failure)
        forget_connection()
        return False


class SharedLease:
    """When a lease ends, in memory that a worker shares with a child: the worker renews it during the request."""

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


class Child:
    """A process that sends one request after the other for this one."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("lease")
        os.ftruncate(self._descriptor, SECONDS.size)
        self.lease = SharedLease(self._descriptor)
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", PROGRAM, str(os.getpid()), str(self._descriptor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._descriptor],
            cwd=settings.BASE_DIR,
            start_new_session=True,
        )

    def answer(self, seconds: int) -> Answer | None:
        """Return the answer to what it was sent; None, to nothing, once it has started.

        Raises:
            EOFError, OSError: it has ended.
            TimeoutError: it says nothing.
        """
        assert self._process.stdout  # noqa: S101 - a pipe
        for _ in range(seconds + LONE_GRACE_SECONDS):  # one by one: the whole machine may have been stopped meanwhile
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                answer: Answer | None = pickle.load(self._process.stdout)  # noqa: S301 - our own program
                return answer
        raise TimeoutError

    def ask(self, errand: bytes) -> None:
        """Let it send a request.

        Raises:
            OSError: it has ended.
        """
        assert self._process.stdin  # noqa: S101 - a pipe
        self._process.stdin.write(errand)
        self._process.stdin.flush()

    def kill(self) -> None:
        """End it, and what it sends."""
        self._process.kill()

    def end(self) -> str:
        """End it, if it has not ended; return how it has."""
        self.kill()
        self._process.communicate()
        os.close(self._descriptor)
        status: int = self._process.returncode
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


@dataclass(slots=True, eq=False)
class LoneRequest:
    """A request that a child sends, or will once one is free."""

    token: Hashable
    errand: bytes
    """What the child is told."""
    seconds: int
    """Its time-out."""
    lease: Lease
    child: Child | None = None
    """Which sends it now."""


class WorkerClient(HttpClient):
    """A worker's HTTP client, which sends suspects in child processes, a few at a time."""

    def __init__(self, *, egress: EgressPolicy, on_failure: Callable[[], object]) -> None:
        super().__init__(egress=egress)
        self._on_failure = on_failure
        self._waiting: SimpleQueue[LoneRequest | None] = SimpleQueue()
        self._alone: dict[LoneRequest, None] = {}
        """Those that are waited for."""
        self._lock = threading.Lock()
        """Held while a child gets a request or its lease: it must not get the lease of another request."""
        self._answered: SimpleQueue[tuple[LoneRequest, Answer]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        """One for each child."""

    def start_alone(self, token: Hashable, delivery: Outgoing, sequence: int, *, lease: Lease) -> None:
        """Take on a request as `start` does, for a process in which nothing else is in flight."""
        errand = pickle.dumps((delivery, sequence, DATABASE_CLOCK.offset))
        request = LoneRequest(token, errand, delivery.destination.timeout_seconds, lease)
        self._alone[request] = None
        self._waiting.put(request)
        if len(self._threads) < min(len(self._alone), LONE_PROCESSES):
            self._threads.append(threading.Thread(target=self._run, name="alone", daemon=True))
            self._threads[-1].start()

    def wait(self, seconds: float) -> list[Answer]:
        """Return what has been answered, also to children, whose leases are kept up to date."""
        answers = super().wait(seconds)
        if self._alone:
            with self._lock:
                for request in self._alone:
                    if request.child:
                        request.child.lease.lease_ends_at = request.lease.lease_ends_at
            while not self._answered.empty():
                request, answer = self._answered.get()
                if request in self._alone:
                    del self._alone[request]
                    answers.append(answer)
        return answers

    def abandon(self, tokens: Collection[Hashable]) -> None:
        """End these requests, also of children."""
        super().abandon(tokens)
        with self._lock:
            for request in [one for one in self._alone if one.token in tokens]:
                del self._alone[request]
                if request.child:
                    request.child.kill()

    def close(self) -> None:
        """Close sockets, descriptors and children."""
        for _ in self._threads:
            self._waiting.put(None)
        super().close()

    def _run(self) -> None:
        try:
            self._send_alone()
        except Exception:
            log.exception("alone.failed")
            self._on_failure()
            raise

    def _send_alone(self) -> None:
        """Send what waits, one after the other, in a child that lives as long as something waits."""
        child: Child | None = None
        while request := self._waiting.get():
            answer = Answer(request.token, 0, b"", b"", 0)
            try:
                child = child or _started()
            except (EOFError, OSError) as failure:
                log.error("alone.process_failed", reason=failure)  # noqa: TRY400 - the machine's, not ours
                answer.failure = RequestNotCompleted(NOT_STARTED, was_sent=False)
            else:
                if not self._send_with(child, request, answer):
                    child = None
            if child and self._waiting.empty():
                child.end()
                child = None
            self._answered.put((request, answer))
            self.interrupt()

    def _send_with(self, child: Child, request: LoneRequest, answer: Answer) -> bool:
        """Let `child` send a request, unless it was abandoned, and fill in the `answer`; return whether it lives."""
        with self._lock:
            if request not in self._alone:
                return True
            request.child = child
            child.lease.lease_ends_at = request.lease.lease_ends_at
        found, how = None, "hung"
        try:
            child.ask(request.errand)
            found = child.answer(request.seconds)
        except TimeoutError:
            child.end()
        except (EOFError, OSError, pickle.UnpicklingError):
            how = child.end()
        with self._lock:
            request.child = None
        if found:
            answer.status, answer.head, answer.body = found.status, found.head, found.body
            answer.duration_ms, answer.failure = found.duration_ms, found.failure
        else:
            answer.failure = RequestNotCompleted(f"{ENDED} ({how})", was_sent=True, ended_process=True)
        return found is not None


def _started() -> Child:
    child = Child()
    try:
        child.answer(START_SECONDS)
    except (EOFError, OSError):
        child.end()
        raise
    return child


def serve() -> None:
    """Send what the parent asks for, one after the other, until it is gone: the program of a child."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # whoever stops a worker lets its requests end
    parent, descriptor = map(int, sys.argv[1:])
    lease = SharedLease(descriptor)
    answer: Answer | None = None
    while True:
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        try:
            delivery, sequence, clock_offset = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own program
        except EOFError:
            return
        DATABASE_CLOCK.take(clock_offset)
        answer = _answer_to(delivery, sequence, lease, parent)


def _answer_to(delivery: Outgoing, sequence: int, lease: Lease, parent: int) -> Answer:
    """Send a request and return its answer, once all has been made of it that a worker makes of it."""
    started_at, request = datetime.fromtimestamp(DATABASE_CLOCK.time(), UTC), request_of(delivery)
    add_sequence(request, sequence)
    client = HttpClient(egress=settings.EGRESS_POLICY, deadline_seconds=delivery.destination.timeout_seconds)
    client.start(None, request, lease=lease)
    while not (answers := client.wait(PARENT_SECONDS)):
        if os.getppid() != parent:
            os._exit(0)  # nobody waits for the answer
    client.close()
    sent = RequestSent(answers[0], started_at)
    outcome_of(sent)
    settlement_of(0, delivery, sent)
    return answers[0]
