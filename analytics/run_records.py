"""What the database keeps of a run: that it is in progress, each window as it is done, how it ended."""

import datetime as dt
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import structlog
from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.db.models import Case, Q, When
from django.db.models.functions import Now

from analytics.models import Run, RunKind, RunState, RunWindow, WindowState
from analytics.pipeline.job import Window
from analytics.pipeline.run_lock import LOCK, WORKER_LOCK
from analytics.run_results import Heard
from broker_project.core.db import forget_connection
from delivery.models import StorageDay

AWAY_SECONDS: Final = 600.0
"""How long the end of a run waits for the database; then it counts as vanished."""
AGAIN_SECONDS: Final = 1.0
AWAY: Final = (InterfaceError, OperationalError)

VANISHED: Final = "The worker that it ran in is gone. What it had not done is done again."
GONE: Final = f"""
UPDATE analytics_run SET state = '{RunState.ABANDONED}', ended_at = clock_timestamp(), error = %s
 WHERE state = '{RunState.RUNNING}'
   AND NOT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
                      AND (l.classid::bigint << 32) | l.objid::bigint IN ({LOCK}, {WORKER_LOCK}))
RETURNING id
"""
"""Who does a run holds its lock before the run counts as under way; Spark, which lives a little longer, another."""

TO_BE_DONE: Final = Q(state=RunState.WAITING) | Q(state=RunState.ABANDONED, kind=RunKind.RANGE)
"""What a schedule had begun comes due by itself."""
FIRST: Final = Case(When(kind=RunKind.RANGE, then=0), When(kind=RunKind.HOURS, then=1), default=2)

TOLD: Final = ("state", "inputs", "rows_read", "rows_written", "checks", "lake_bytes", "seconds", "error")
"""Of a window: the columns of `RunWindow` of that name."""
UNTOLD: Final = {"inputs": {}, "rows_read": {}, "rows_written": {}, "checks": [], "lake_bytes": 0, "seconds": 0.0}
"""Of a window that nothing was told of."""

Report = Mapping[str, Any]

log = structlog.get_logger(__name__)


def begin(run_id: int) -> Run | None:
    """Let a run be the one under way; None where there is one already, or this one is done.

    Whoever asks holds `WORKER_LOCK`.
    """
    try:
        with transaction.atomic():
            begun = Run.objects.filter(TO_BE_DONE, pk=run_id).update(
                state=RunState.RUNNING, started_at=Now(), ended_at=None, error=""
            )
    except IntegrityError:  # run_alone
        return None
    return Run.objects.get(pk=run_id) if begun else None


def waiting() -> list[int]:
    """Return the runs that are to be done: what somebody has asked for, hours, then days; of each the oldest first."""
    return [*Run.objects.filter(TO_BE_DONE).order_by(FIRST, "id").values_list("id", flat=True)]


def abandon_vanished() -> None:
    """Mark the runs whose worker is gone."""
    with connection.cursor() as cursor:
        cursor.execute(GONE, [VANISHED])
        for (run_id,) in cursor.fetchall():
            log.warning("summaries.vanished", run=run_id)


class Record:
    """Writes down one run while it goes on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.heard = Heard()
        self.log = ""
        """What was printed."""
        self._unwritten: deque[Report] = deque()

    def window(self, report: Report) -> None:
        """Write down what became of a window, now or when the database is back."""
        self.heard.window(_window(report), report)
        self._unwritten.append(report)
        try:
            self._write()
        except AWAY as failure:
            log.warning("summaries.database_away", run=self.run.pk, reason=failure)
        finally:
            forget_connection()

    def failed(self, window: Window, error: str) -> None:
        """Write down that a window failed that the application could not tell of any more."""
        times = {"start": window.start.isoformat(), "end": window.end.isoformat()}
        self.window({**UNTOLD, "window": times, "state": WindowState.FAILED, "error": error})

    def end(self, state: RunState, error: str, stopping: threading.Event) -> None:
        """Write down how it ended; wait for the database unless the process is to end.

        Raises:
            django.db.Error: it has not come back in time.

        """
        until = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                self._write()
                self._end(state, error)
            except AWAY:
                if time.monotonic() > until or stopping.wait(AGAIN_SECONDS):
                    raise
            else:
                return
            finally:
                forget_connection()

    def _write(self) -> None:
        while self._unwritten:
            _write_window(self.run, self._unwritten[0])
            self._unwritten.popleft()

    def _end(self, state: RunState, error: str) -> None:
        """A run that was taken for vanished is not, unless somebody else has begun it anew."""
        ours = Run.objects.filter(pk=self.run.pk, started_at=self.run.started_at)
        ours.filter(state__in=(RunState.RUNNING, RunState.ABANDONED)).update(
            state=state, error=error, log=self.log, ended_at=Now()
        )


def _write_window(run: Run, report: Report) -> None:
    window, told = _window(report), {name: report[name] for name in TOLD}
    with transaction.atomic():
        RunWindow.objects.update_or_create(
            run=run, start=window.start, end=window.end, defaults={**told, "ended_at": Now()}
        )
        if window.is_day and report["state"] == WindowState.PASSED:
            StorageDay.objects.filter(day=window.day).update(summarized_at=Now())


def _window(report: Report) -> Window:
    return Window(*(dt.datetime.fromisoformat(report["window"][name]) for name in ("start", "end")))
