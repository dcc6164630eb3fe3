"""A worker process: one turn of its lines, its event loop, and the sweeper that finds lines without a worker."""

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog
from django.db import Error, connection

from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.db import forget_connection, rows
from broker_project.core.egress import EgressPolicy
from delivery.callbacks.address import CallbackTerms
from delivery.dispatch import notify
from delivery.dispatch.claim import end_leases_of
from delivery.dispatch.notify import Link
from delivery.dispatch.sweep import DueLine, SweepMemory, due_lines, wake_workers_of
from delivery.limits import (
    MAX_IN_FLIGHT,
    NAME_SECONDS,
    START_SECONDS,
    STOP_SECONDS,
    SWEEP_SECONDS,
)
from delivery.maintenance.incarnation import NewestIds, begin_after_restore, end_process
from delivery.maintenance.periodic import Maintainer, PeriodicJobs
from delivery.maintenance.retention import RetentionDiffers, hold_keep_days
from delivery.worker.event_loop import EventLoop
from delivery.worker.rounds import NO_LINK

HAS_NAME: Final = "SELECT pg_try_advisory_lock(hashtext('delivery.worker'), hashtext(%s))"

log = structlog.get_logger(__name__)


def take_turn(queue: str, line_ids: Sequence[int] | None, event_loop: EventLoop, link: Link) -> None:
    """Run these lines, or those woken on `queue`, and hear of their new work from before they are claimed."""
    if line_ids is None:
        line_ids = notify.woken_lines(queue, event_loop.worker)
    else:
        notify.own(queue, line_ids, event_loop.worker)
    event_loop.take(queue, line_ids, link)


class Worker(threading.Thread):
    """The sweeper thread of this process, with the event loop, the maintainer and the periodic jobs.

    Every second it finds lines with due work and no worker, and wakes the workers of their queues. What is left to it
    (`SweepMemory`) it runs itself, as a turn does. `queues`: those that the process consumes, as they are by then.
    """

    def __init__(
        self,
        name: str,
        *,
        queues: Collection[str],
        keep_days: int,
        queue_max_in_flight: int,
        terms: CallbackTerms,
        egress: EgressPolicy,
        until_summarized: bool = False,
    ) -> None:
        super().__init__(name="sweeper", daemon=True)
        self.worker = name or f"{socket.gethostname()}-{os.getpid()}"
        self._memory = SweepMemory(self.worker, queues)
        self._keep_days = keep_days
        self._has_locks: object = None
        """The connection on which this thread has taken its locks."""
        self._is_named = False
        """Whether the lock of its name is among them."""
        self._newest_ids = NewestIds()
        self.event_loop = EventLoop(
            worker=self.worker,
            queue_max_in_flight=queue_max_in_flight,
            terms=terms,
            egress=egress,
            on_failure=self._on_failure,
        )
        self._has_started = threading.Event()
        self._stopping = threading.Event()
        self._has_let_go = threading.Event()
        self._maintainer = Maintainer(
            self._stopping, keep_days=keep_days, callback_days=terms.days, until_summarized=until_summarized
        )
        self._periodic_jobs = PeriodicJobs(self._stopping, egress)

    def run(self) -> None:
        """Take back what an earlier process of our name held, then sweep until stopped."""
        self._guarded(self._begin)
        while not self._stopping.wait(SWEEP_SECONDS):
            self._guarded(self._sweep if self._has_started.is_set() else self._begin)
        self._has_let_go.wait()  # until then another process of our name would take our lines for abandoned
        _close_connection()

    def wait_until_started(self) -> EventLoop | None:
        """Return the event loop once the database has answered; None if it does not."""
        return self.event_loop if self._has_started.wait(START_SECONDS) else None

    def stop(self) -> None:
        """Release every line; requests in flight are waited for and settled."""
        self._stopping.set()
        if self.event_loop.is_alive() and not self.event_loop.stop(STOP_SECONDS):
            log.error("worker.stopped_late")
        self._maintainer.wait_until_stopped()
        self._periodic_jobs.wait_until_stopped()
        self._has_let_go.set()
        self.join()

    def _begin(self) -> None:
        DATABASE_CLOCK.refresh()
        if self._takes_locks():
            log.info("worker.started", worker=self.worker, lines_taken_back=end_leases_of(self.worker))
        self._maintainer.start()
        self._periodic_jobs.start()
        self.event_loop.start()
        self._has_started.set()

    def _takes_locks(self) -> bool:
        """Take the locks that last as long as this thread keeps its connection; return whether our name is ours.

        Raises `RetentionDiffers`.
        """
        connection.ensure_connection()
        hold_keep_days(self._keep_days)
        self._is_named = self._has_name()
        if not self._is_named:
            log.error("worker.name_taken", worker=self.worker, hint="give each worker its own BROKER_WORKER_NAME")
        self._has_locks = connection.connection
        return self._is_named

    def _has_name(self) -> bool:
        """Tell whether no other living process has our name; one that was just killed gets time to vanish."""
        until = time.monotonic() + NAME_SECONDS
        while time.monotonic() < until:
            ((granted,),) = rows(HAS_NAME, [self.worker])
            if granted or self._stopping.wait(NAME_SECONDS / 20):
                return bool(granted)
        return False

    def _sweep(self) -> None:
        DATABASE_CLOCK.refresh()
        if connection.connection is not self._has_locks:  # PostgreSQL was away, and the locks went with the connection
            self._takes_locks()
        elif not self._is_named:  # who had it has ended: who starts next under it may not end our leases
            ((self._is_named,),) = rows(HAS_NAME, [self.worker])
        if self._newest_ids.went_back():
            begin_after_restore()
            end_process()
        idle = {line.id for line in self.event_loop.lines.all() if line.is_idle}
        found = due_lines(idle)
        for line in found:
            if line.id in idle:  # of a retry nobody tells it, and hints can be lost
                self.event_loop.take(line.queue, [line.id], None)
        due = [line for line in found if line.id not in idle]
        # Celery looks for Redis more and more rarely: for long after Redis is back, hints are taken and not read.
        self._run_left(due, untaken=wake_workers_of(due))

    def _run_left(self, due: list[DueLine], untaken: Collection[str]) -> None:
        """Run the due lines that are left to this process, as many as it has places for."""
        random.shuffle(due)  # there may be more: each gets its chance
        places = max(0, MAX_IN_FLIGHT - len(self.event_loop.lines))
        left = {*self._memory.left_to_us(due, untaken, time.monotonic())[:places]}
        for queue in {line.queue for line in due if line.id in left}:
            line_ids = [line.id for line in due if line.id in left and line.queue == queue]
            take_turn(queue, line_ids, self.event_loop, NO_LINK)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Error as failure:
            log.warning("worker.database_failed", reason=failure)
            _close_connection()
        except RetentionDiffers as differs:
            log.error("worker.refused", reason=differs)  # noqa: TRY400 - one line, that says what to do
            os._exit(os.EX_CONFIG)
        except Exception:
            log.exception("worker.failed")
            self._on_failure()
            raise

    def _on_failure(self) -> None:
        """End the process: its supervisor starts a new one, which recovers what this one leaves."""
        os._exit(os.EX_SOFTWARE)


def _close_connection() -> None:
    """Close this thread's connection, and with it the locks; the pool would keep both."""
    if connection.connection is not None:
        connection.connection.close()
    forget_connection()


_workers: list[Worker] = []
_lock = threading.Lock()


def worker(make: Callable[[], Worker]) -> Worker:
    """Return this process's worker; the first call makes and starts it."""
    with _lock:
        if not _workers:
            _workers.append(make())
            _workers[0].start()
        return _workers[0]


def stop() -> None:
    """Stop this process's worker, if it has one."""
    with _lock:
        if _workers:
            _workers.pop().stop()
