"""A worker process: its name, its event loop, and the sweeper that finds lines nobody runs."""

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from django.db import Error

from broker_project.core.db import forget_connection, rows
from broker_project.core.egress import EgressPolicy
from delivery.callbacks.address import CallbackTerms
from delivery.dispatch import notify
from delivery.dispatch.claim import end_leases_of
from delivery.dispatch.sweep import due_by_queue
from delivery.limits import REQUEST_DEADLINE_SECONDS
from delivery.maintenance.periodic import Maintainer, PeriodicJobs
from delivery.worker import run_lines
from delivery.worker.event_loop import EventLoop

SWEEP_SECONDS: Final = 1.0
NAME_SECONDS: Final = 2.0
"""How long the database may take to notice that an earlier process of our name is gone."""
START_SECONDS: Final = 10.0
STOP_SECONDS: Final = REQUEST_DEADLINE_SECONDS + 4.0
HAS_NAME: Final = "SELECT pg_try_advisory_lock(hashtext('delivery.worker'), hashtext(%s))"

log = structlog.get_logger(__name__)


class Worker(threading.Thread):
    """The sweeper thread of this process, and the event loop, the maintainer and the attendant it owns.

    Every second it finds lines with due work that nobody drives and wakes them; when the hint is not taken, or nobody
    has come by the next sweep, it drives them itself, through the same function as a turn.
    """

    def __init__(
        self,
        name: str,
        *,
        keep_days: int,
        queue_max_in_flight: int,
        terms: CallbackTerms,
        egress: EgressPolicy,
        until_summarized: bool = False,
    ) -> None:
        super().__init__(name="sweeper", daemon=True)
        self.worker = name or f"{socket.gethostname()}-{os.getpid()}"
        self.event_loop = EventLoop(
            worker=self.worker,
            queue_max_in_flight=queue_max_in_flight,
            terms=terms,
            egress=egress,
            on_failure=self._on_failure,
        )
        self._has_started = threading.Event()
        self._stopping = threading.Event()
        self._woken: frozenset[int] = frozenset()
        self._maintainer = Maintainer(self._stopping, keep_days=keep_days, until_summarized=until_summarized)
        self._attendant = PeriodicJobs(self._stopping, egress)

    def run(self) -> None:
        """Take back what an earlier process of our name held, then sweep until stopped."""
        self._maintainer.start()
        self._attendant.start()
        self._guarded(self._begin)
        while not self._stopping.wait(SWEEP_SECONDS):
            self._guarded(self._sweep if self._has_started.is_set() else self._begin)
        forget_connection()

    def wait_until_started(self) -> EventLoop | None:
        """Return the event loop once the database has been there; None when it does not come."""
        return self.event_loop if self._has_started.wait(START_SECONDS) else None

    def stop(self) -> None:
        """Let every line go; requests under way are waited for and settled."""
        self._stopping.set()
        if self.event_loop.is_alive() and not self.event_loop.stop(STOP_SECONDS):
            log.error("worker.stopped_late")
        self._maintainer.wait_until_stopped()
        self._attendant.wait_until_stopped()
        self.join()

    def _begin(self) -> None:
        if self._has_name():
            log.info("worker.started", worker=self.worker, lines_taken_back=end_leases_of(self.worker))
        else:
            log.error("worker.name_taken", worker=self.worker, hint="give each worker its own BROKER_WORKER_NAME")
        self.event_loop.start()
        self._has_started.set()

    def _has_name(self) -> bool:
        """Tell whether no other living process bears our name; one just killed is given time to vanish."""
        until = time.monotonic() + NAME_SECONDS
        while time.monotonic() < until:
            ((granted,),) = rows(HAS_NAME, [self.worker])
            if granted or self._stopping.wait(NAME_SECONDS / 20):
                return bool(granted)
        return False

    def _sweep(self) -> None:
        due = due_by_queue()
        queue_of = {line_id: queue for queue, lines in due.items() for line_id in lines}
        left = [line_id for queue, lines in due.items() for line_id in self._left_to_us(queue, lines)]
        random.shuffle(left)  # where Redis is away there may be more than one turn takes: each gets its chance
        for line_id in run_lines.run_lines(left[: notify.LINES_A_TASK], self.event_loop):
            notify.wake(queue_of[line_id], [line_id])
        self._woken = frozenset(queue_of)

    def _left_to_us(self, queue: str, due: list[int]) -> list[int]:
        """Wake the lines; return those for which Redis takes no hint, or nobody has come since the last sweep.

        Celery looks for Redis more and more rarely: for long after Redis is back, hints are taken and not read.
        """
        if not notify.wake_regardless(queue, due):
            return due
        return [line_id for line_id in due if line_id in self._woken]

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Error as failure:
            log.warning("worker.database_failed", reason=failure)
            forget_connection()
        except Exception:
            log.exception("worker.failed")
            self._on_failure()
            raise

    def _on_failure(self) -> None:
        """End the process: whoever supervises it starts a new one, which mends what this one leaves."""
        os._exit(os.EX_SOFTWARE)


_workers: list[Worker] = []
_lock = threading.Lock()


def worker(
    name: str,
    *,
    keep_days: int,
    until_summarized: bool,
    queue_max_in_flight: int,
    terms: CallbackTerms,
    egress: EgressPolicy,
) -> Worker:
    """Return this process's worker; the first call makes and starts it.

    `queue_max_in_flight`: messages that each QUEUE sender has under way at a time.
    """
    with _lock:
        if not _workers:
            started = Worker(
                name,
                keep_days=keep_days,
                until_summarized=until_summarized,
                queue_max_in_flight=queue_max_in_flight,
                terms=terms,
                egress=egress,
            )
            _workers.append(started)
            _workers[0].start()
        return _workers[0]


def stop() -> None:
    """Stop this process's worker, if it has one."""
    with _lock:
        if _workers:
            _workers.pop().stop()
