"""What the database keeps of a run: its state, its windows as they are done, and how it ended."""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog
from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.db.models import Case, Q, Value, When
from django.db.models.functions import Now

from analytics.models import UNDER_WAY, Run, RunKind, RunState, RunWindow, WindowState
from analytics.pipeline.connections import LOCK, WORKER_LOCK
from analytics.pipeline.job import Progress, Window
from analytics.spark_process import End, Ended, NotAReport, Report
from broker_project.core.db import forget_connection, rows
from delivery.models import StorageDay

DATABASE_SECONDS: Final = 600.0
"""How long the end of a run waits for the database; after that the run counts as vanished."""
RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 2.0
"""Between two looks whether a run is to be cancelled."""
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
UPDATE analytics_run
   SET state = CASE state WHEN '{RunState.CANCELLING}' THEN '{RunState.CANCELLED}' ELSE '{RunState.ABANDONED}' END,
       error = CASE state WHEN '{RunState.CANCELLING}' THEN %s ELSE %s END,
       ended_at = clock_timestamp(), progress = NULL
 WHERE state IN ('{RunState.RUNNING}', '{RunState.CANCELLING}')
   AND NOT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
                      AND (l.classid::bigint << 32) | l.objid::bigint IN ({LOCK}, {WORKER_LOCK}))
RETURNING id
"""
"""The worker takes its lock before it marks the run as running; Spark, which lives a little longer, holds another."""

STARTABLE: Final = Q(state=RunState.WAITING) | Q(state=RunState.ABANDONED, kind=RunKind.RANGE)
"""Abandoned scheduled runs are not started again: their windows come due on schedule."""
PRIORITY: Final = Case(When(kind=RunKind.RANGE, then=0), When(kind=RunKind.HOURS, then=1), default=2)

MAX_STORED_BYTES: Final = 64 * 1024
"""Stored of the output's beginning and of its end."""
JAVA_OPTIONS_LINE: Final = re.compile(rb"^NOTE: Picked up JDK_JAVA_OPTIONS:.*\n?", re.MULTILINE)
"""Java prints its options, which may hold passwords of certificate stores."""

log = structlog.get_logger(__name__)


class RunFinished(Exception):
    """The run cannot be cancelled any more; the message says why."""


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
STALE_DAYS: Final = Ending(
    RunState.FAILED,
    "All its windows are summarized, but budgets and anomalies of other days are not made again: see the log. The next"
    " run tries to.",
)
CANCELLED: Final = Ending(
    RunState.CANCELLED, "It was cancelled. The same range goes on where it stopped; schedules do what is due."
)


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


def cancel(run_id: int) -> None:
    """Cancel a run: one that waits at once; of one in progress, its worker ends Spark within seconds.

    May be repeated; raises `RunFinished` if it has ended otherwise.
    """
    is_running = Q(state=RunState.RUNNING)
    cancelled = {
        "state": Case(When(is_running, then=Value(RunState.CANCELLING)), default=Value(CANCELLED.state)),
        "ended_at": Case(When(is_running, then=None), default=Now()),
        "error": Case(When(is_running, then=Value("")), default=Value(CANCELLED.error)),
    }
    if Run.objects.filter(STARTABLE | is_running, pk=run_id).update(**cancelled):
        return
    state = Run.objects.values_list("state", flat=True).filter(pk=run_id).first()
    if state not in {RunState.CANCELLING, RunState.CANCELLED}:
        raise RunFinished(f"It is {state}.")


def abandon_vanished() -> None:
    """Mark the runs whose worker is gone as abandoned, or as cancelled if that was asked for."""
    for (run_id,) in rows(ABANDON, [CANCELLED.error, VANISHED]):
        log.warning("summaries.vanished", run=run_id)


class Record:
    """Records one run while it is in progress."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.error = ""
        """Why the application ended before its windows were done."""
        self.output = b""
        """What was printed: the head and the tail."""
        self.printed_bytes = 0
        self.reports: dict[Window, Report] = {}
        self._unwritten: deque[Window] = deque()
        self._is_cancelled = False
        self._next_look = 0.0

    def is_cancelled(self) -> bool:
        """Return whether somebody has asked to cancel it, as PostgreSQL said some seconds ago at most."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            with self._database():
                self._is_cancelled = Run.objects.filter(pk=self.run.pk, state=RunState.CANCELLING).exists()
        return self._is_cancelled

    def add_output(self, printed: bytes) -> None:
        """Keep what was printed."""
        self.output += printed
        self.printed_bytes += len(printed)
        if len(self.output) > 4 * MAX_STORED_BYTES:
            self.output = head_and_tail(self.output, self.printed_bytes)

    def add_report(self, message: Report, show: Callable[[str], object]) -> None:
        """Record what the application reports; `show` gets its progress, as text."""
        match storable(message):
            case {"window": _} as result:
                self.add_window(result)
            case {"progress": text, "position": position}:
                show(text)
                with self._database():
                    Run.objects.filter(pk=self.run.pk).update(progress=position)
            case {"progress": text}:
                show(text)
            case {"error": text}:
                self.error = text
            case unknown:
                raise NotAReport(f"{unknown!r:.100}")

    def add_window(self, report: Report) -> None:
        """Record the result of a window, now or when the database is back."""
        window = Window.from_json(report["window"])
        self.reports[window] = report
        self._unwritten.append(window)
        with self._database():
            self._write()

    def add_failure(self, window: Window, error: str) -> None:
        """Record the failure of a window that the application could not report."""
        self.add_window(
            {
                **asdict(Progress()),
                "window": window.as_json(),
                "state": WindowState.FAILED,
                "seconds": 0.0,
                "error": error,
            }
        )

    def ending(self, ended: Ended, windows: Collection[Window], minutes: int) -> Ending:
        """Return how a run of these windows ends, given how its process ended; `minutes` is its time limit."""
        errors = {window: self.reports[window]["error"] for window in windows if window in self.reports}
        undone = [window for window in windows if errors.get(window, "not reported")]
        if ended.end is End.STOPPED:
            return STOPPED
        if not undone:
            return STALE_DAYS if ended.end is End.BY_ITSELF and ended.status else Ending(RunState.PASSED)
        if ended.end is End.TOO_LONG and not errors:
            error = f"{next(iter(windows))} alone takes longer than the {minutes} minutes of a run. {FASTER}"
        elif ended.end is End.TOO_LONG:
            done = f"with {len(undone)} of {len(windows)} windows to do"
            error = f"It was ended after {minutes} minutes {done}. {AGAIN} {FASTER}"
        elif failed := [f"{window}: {error}" for window, error in errors.items() if error]:
            more = [f"and {len(failed) - MAX_ERRORS} more"] if len(failed) > MAX_ERRORS else []
            error = "\n".join((f"Windows that are not summarized: {len(undone)}.", *failed[:MAX_ERRORS], *more))
        elif ended.status == SIGKILL_STATUS:
            error = self.error or KILLED
        else:
            error = self.error or f"Spark ended with status {ended.status} before all was done: see the log."
        return Ending(RunState.FAILED, error)

    def interrupted(self, ended: Ended, windows: Collection[Window], minutes: int) -> tuple[Window, str] | None:
        """Return the window that took too long, or too much memory, and its error; None if no window did.

        It counts as failed, with a back-off: retried every time, from its beginning, it would block all others.
        """
        window = next((window for window in windows if window not in self.reports), None)
        if window and ended.end is End.TOO_LONG:
            return window, f"It was not done when the {minutes} minutes of its run were over. {FASTER}"
        if window and ended.end is End.BY_ITSELF and ended.status == SIGKILL_STATUS:
            return window, KILLED
        return None

    def end(self, ending: Ending, stopping: threading.Event) -> None:
        """Record how it ended; wait for the database unless the process is stopping.

        A run that was to be cancelled is, unless it has passed. A run that was taken for vanished has not, unless
        another worker has started it again.

        Raises:
            django.db.Error: the database has not come back in time.

        """
        deadline = time.monotonic() + DATABASE_SECONDS
        ours = Run.objects.filter(pk=self.run.pk, started_at=self.run.started_at)
        ours = ours.filter(state__in=(*UNDER_WAY, RunState.ABANDONED))
        ended: dict[str, Any] = asdict(ending)
        if ending.state != RunState.PASSED:
            for name, value in asdict(CANCELLED).items():
                ended[name] = Case(When(state=RunState.CANCELLING, then=Value(value)), default=Value(ended[name]))
        printed = head_and_tail(self.output, self.printed_bytes).decode(errors="replace").replace("\0", "")
        while True:
            try:
                self._write()
                ours.update(**ended, log=printed, ended_at=Now(), progress=None)
            except DATABASE_AWAY:
                if time.monotonic() > deadline or stopping.wait(RETRY_SECONDS):
                    raise
            else:
                return
            finally:
                forget_connection()

    @contextmanager
    def _database(self) -> Iterator[None]:
        """Use the database for a moment; log it if it is away."""
        try:
            yield
        except DATABASE_AWAY as failure:
            log.warning("summaries.database_away", run=self.run.pk, reason=failure)
        finally:
            forget_connection()

    def _write(self) -> None:
        while self._unwritten:
            window = self._unwritten[0]
            report = self.reports[window]
            columns = {name: value for name, value in report.items() if name != "window"}
            with transaction.atomic():
                RunWindow.objects.update_or_create(
                    run=self.run, start=window.start, end=window.end, defaults={**columns, "ended_at": Now()}
                )
                if window.is_day and report["state"] == WindowState.PASSED:
                    StorageDay.objects.filter(day=window.day).update(summarized_at=Now())
            self._unwritten.popleft()


def head_and_tail(output: bytes, printed_bytes: int) -> bytes:
    """Return the beginning and the end of an output, without the options of Java, and say how much is left out."""
    output = JAVA_OPTIONS_LINE.sub(b"", output)
    if len(output) <= 2 * MAX_STORED_BYTES:
        return output
    left_out = b"\n... %d bytes are left out here ...\n" % (printed_bytes - 2 * MAX_STORED_BYTES)
    return output[:MAX_STORED_BYTES] + left_out + output[-MAX_STORED_BYTES:]


def storable(value: Any) -> Any:
    """Return a JSON value that PostgreSQL can store: without NUL, and with `?` for half of a surrogate pair."""
    match value:
        case str():
            return value.replace("\0", "").encode(errors="replace").decode()
        case list():
            return [storable(item) for item in value]
        case dict():
            return {storable(name): storable(item) for name, item in value.items()}
        case _:
            return value
