"""What the database keeps of a run: its state, its windows as they are done, and how it ended."""

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.db.models import Case, Q, When
from django.db.models.functions import Now

from analytics.models import Run, RunKind, RunState, RunWindow, WindowState
from analytics.pipeline.connections import LOCK, WORKER_LOCK
from analytics.pipeline.job import Window
from analytics.spark_process import End, Ended, NoJava
from broker_project.core.db import forget_connection
from delivery.models import StorageDay

DATABASE_SECONDS: Final = 600.0
"""How long the end of a run waits for the database; after that the run counts as vanished."""
RETRY_SECONDS: Final = 1.0
DATABASE_AWAY: Final = (InterfaceError, OperationalError)

SIGKILL_STATUS: Final = 137
MAX_ERRORS: Final = 3
"""Windows whose errors are in the run's error; each window has its own."""
AGAIN: Final = "What it had not done is done again."
FASTER: Final = (
    "Give runs more time (BROKER_SUMMARY_MINUTES), or Spark more cores (BROKER_SPARK_MASTER: local[*], or a cluster)."
)
KILLED: Final = (
    "Spark was killed, as Linux does where memory runs out: the machine needs more of it, or Spark less"
    f" (BROKER_SPARK_MEMORY). {AGAIN}"
)
VANISHED: Final = f"The worker that it ran in is gone. {AGAIN}"

ABANDON: Final = f"""
UPDATE analytics_run SET state = '{RunState.ABANDONED}', ended_at = clock_timestamp(), error = %s
 WHERE state = '{RunState.RUNNING}'
   AND NOT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
                      AND (l.classid::bigint << 32) | l.objid::bigint IN ({LOCK}, {WORKER_LOCK}))
RETURNING id
"""
"""The worker takes its lock before it marks the run as running; Spark, which lives a little longer, holds another."""

STARTABLE: Final = Q(state=RunState.WAITING) | Q(state=RunState.ABANDONED, kind=RunKind.RANGE)
"""Abandoned scheduled runs are not started again: their windows come due on schedule."""
PRIORITY: Final = Case(When(kind=RunKind.RANGE, then=0), When(kind=RunKind.HOURS, then=1), default=2)

REPORTED: Final = ("state", "inputs", "rows_read", "rows_written", "checks", "lake_bytes", "seconds", "error")
"""The keys of a window's report that are columns of `RunWindow`."""
NOTHING_REPORTED: Final = {
    "inputs": {},
    "rows_read": {},
    "rows_written": {},
    "checks": [],
    "lake_bytes": 0,
    "seconds": 0.0,
}

Report = Mapping[str, Any]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends."""

    state: RunState
    error: str = ""
    """Why, and what to do; empty if it has passed."""


STOPPED: Final = Ending(RunState.ABANDONED, f"Its worker was stopped. {AGAIN}")
"""Another worker continues it."""
INTERRUPTED: Final = Ending(RunState.FAILED, "It was interrupted. The same range goes on where it stopped.")
"""It continues only when a user requests the range again."""


def waiting() -> list[int]:
    """Return the runs to start: ranges, then hours, then days; of each the oldest first."""
    return [*Run.objects.filter(STARTABLE).order_by(PRIORITY, "id").values_list("id", flat=True)]


def start(run_id: int) -> Run | None:
    """Mark a run as running; None if another one is, or this one is done. The caller holds `WORKER_LOCK`."""
    try:
        with transaction.atomic():
            started = Run.objects.filter(STARTABLE, pk=run_id).update(
                state=RunState.RUNNING, started_at=Now(), ended_at=None, error=""
            )
    except IntegrityError:  # run_alone
        return None
    return Run.objects.get(pk=run_id) if started else None


def abandon_vanished() -> None:
    """Mark the runs whose worker is gone as abandoned."""
    with connection.cursor() as cursor:
        cursor.execute(ABANDON, [VANISHED])
        for (run_id,) in cursor.fetchall():
            log.warning("summaries.vanished", run=run_id)


@dataclass(slots=True)
class Results:
    """What a run has reported."""

    states: dict[Window, WindowState] = field(default_factory=dict)
    errors: dict[Window, str] = field(default_factory=dict)
    error: str = ""
    """Why it ended before its windows were done."""

    def add(self, window: Window, report: Report) -> None:
        """Add the result of a window."""
        self.states[window] = WindowState(report["state"])
        if report["error"]:
            self.errors[window] = report["error"]

    def ending(self, ended: Ended, windows: Collection[Window], minutes: int) -> Ending:
        """Return how a run of these windows ends, given how its process ended; `minutes` is its time limit."""
        undone = [window for window in windows if self.states.get(window) is not WindowState.PASSED]
        if ended.end is End.STOPPED:
            return STOPPED
        if not undone:
            return Ending(RunState.PASSED)
        if ended.end is End.TOO_LONG and not self.states:
            error = f"{next(iter(windows))} alone takes longer than the {minutes} minutes of a run. {FASTER}"
        elif ended.end is End.TOO_LONG:
            done = f"with {len(undone)} of {len(windows)} windows to do"
            error = f"It was ended after {minutes} minutes {done}. {AGAIN} {FASTER}"
        elif failed := [f"{window}: {error}" for window, error in self.errors.items() if window in undone]:
            more = [f"and {len(failed) - MAX_ERRORS} more"] if len(failed) > MAX_ERRORS else []
            error = "\n".join((f"Windows that are not summarized: {len(undone)}.", *failed[:MAX_ERRORS], *more))
        elif self.error:
            error = self.error
        elif ended.status == SIGKILL_STATUS:
            error = KILLED
        else:
            error = f"Spark ended with status {ended.status} before all was done: see the log."
        return Ending(RunState.FAILED, error)

    def interrupted(self, ended: Ended, windows: Collection[Window], minutes: int) -> tuple[Window, str] | None:
        """Return the window that took too long, or too much memory, and its error; None if there is none.

        It counts as failed, with a back-off: retried every time, from its beginning, it would block all others.
        """
        window = next((window for window in windows if window not in self.states), None)
        if window and ended.end is End.TOO_LONG:
            return window, f"It was not done when the {minutes} minutes of its run were over. {FASTER}"
        if window and ended.end is End.BY_ITSELF and ended.status == SIGKILL_STATUS:
            return window, KILLED
        return None


def start_failure(failure: Exception) -> Ending | None:
    """Return how a run ends that could not be started; None for our own errors, which an operator cannot correct."""
    match failure:
        case NoJava():
            return Ending(RunState.FAILED, f"{failure}.")
        case OSError():
            return Ending(RunState.FAILED, f"Spark cannot be started: {failure}.")
        case _:
            return None


class Record:
    """Records one run while it is in progress."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.results = Results()
        self.log = ""
        """What was printed."""
        self._unwritten: deque[tuple[Window, Report]] = deque()

    def add_window(self, report: Report) -> None:
        """Record the result of a window, now or when the database is back."""
        window = Window.from_json(report["window"])
        self.results.add(window, report)
        self._unwritten.append((window, report))
        try:
            self._write()
        except DATABASE_AWAY as failure:
            log.warning("summaries.database_away", run=self.run.pk, reason=failure)
        finally:
            forget_connection()

    def add_failure(self, window: Window, error: str) -> None:
        """Record the failure of a window that the application could not report."""
        times = {"start": window.start.isoformat(), "end": window.end.isoformat()}
        self.add_window({**NOTHING_REPORTED, "window": times, "state": WindowState.FAILED, "error": error})

    def end(self, ending: Ending, stopping: threading.Event) -> None:
        """Record how it ended; wait for the database unless the process is stopping.

        A run that was taken for vanished has not, unless another worker has started it again.

        Raises:
            django.db.Error: the database has not come back in time.

        """
        deadline = time.monotonic() + DATABASE_SECONDS
        ours = Run.objects.filter(pk=self.run.pk, started_at=self.run.started_at)
        ours = ours.filter(state__in=(RunState.RUNNING, RunState.ABANDONED))
        while True:
            try:
                self._write()
                ours.update(state=ending.state, error=ending.error, log=self.log, ended_at=Now())
            except DATABASE_AWAY:
                if time.monotonic() > deadline or stopping.wait(RETRY_SECONDS):
                    raise
            else:
                return
            finally:
                forget_connection()

    def _write(self) -> None:
        while self._unwritten:
            window, report = self._unwritten[0]
            values = {name: report[name] for name in REPORTED}
            with transaction.atomic():
                RunWindow.objects.update_or_create(
                    run=self.run, start=window.start, end=window.end, defaults={**values, "ended_at": Now()}
                )
                if window.is_day and report["state"] == WindowState.PASSED:
                    StorageDay.objects.filter(day=window.day).update(summarized_at=Now())
            self._unwritten.popleft()
