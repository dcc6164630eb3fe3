"""The windows that are to be summarized, by what is stored."""

import datetime as dt
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F, Min

from analytics import windows
from analytics.models import Run, RunKind, RunWindow, WindowState
from analytics.pipeline.connections import reading
from analytics.pipeline.extraction.row_counts import has_grown
from analytics.pipeline.job import HOUR_LAG, Window, midnight, whole
from analytics.spark_process import spark_settings
from analytics.windows import Calendar, OpenTransaction
from broker_project.core.db import rows
from delivery.models import StorageDay

OLDEST: Final = """
SELECT pid, application_name, xact_start FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL AND xact_start IS NOT NULL
 ORDER BY xact_start LIMIT 1
"""
"""Only transactions that have written have a `backend_xid`; nobody else sees what they wrote yet.

Transactions that only read, such as backups, do not delay sealing. If one writes later, the rows that it files late
make their day due again.
"""


def calendar(now: dt.datetime) -> Calendar:
    """Return the days of the database and the watermark."""
    oldest = next((OpenTransaction(*row) for row in rows(OLDEST)), None)
    first_unsealed = windows.watermark(now, oldest.since if oldest else None, call_seconds=settings.SYNC_SECONDS)
    is_blocked = first_unsealed < windows.watermark(now, None, call_seconds=settings.SYNC_SECONDS)
    days = dict(StorageDay.objects.filter(dropped_at=None).values_list("day", "summarized_at"))
    summarized = frozenset(day for day, at in days.items() if at)
    return Calendar(now, frozenset(days), first_unsealed, oldest if is_blocked else None, summarized)


@dataclass(slots=True)
class Outcomes:
    """The latest results of windows."""

    passed: set[Window] = field(default_factory=set)
    failures: dict[Window, list[dt.datetime]] = field(default_factory=dict)
    """When each has failed since it last passed."""

    def without_back_off(self, due: Iterable[Window], now: dt.datetime) -> list[Window]:
        """Return the windows that are not waiting after a failure."""
        waiting = {window for window, at in self.failures.items() if now < at[-1] + windows.back_off(len(at))}
        return [window for window in due if window not in waiting]


def _outcomes(**conditions: object) -> Outcomes:
    """Return the results of windows that meet the conditions."""
    outcomes = Outcomes()
    found = RunWindow.objects.filter(**conditions).order_by("ended_at", "id")
    for start, end, state, at in found.values_list("start", "end", "state", "ended_at"):
        window = Window(start, end)
        if state == WindowState.PASSED:
            outcomes.passed.add(window)
            outcomes.failures.pop(window, None)
        else:
            outcomes.passed.discard(window)
            outcomes.failures.setdefault(window, []).append(at)
    return outcomes


def _outcomes_in(known: Calendar) -> Outcomes:
    """Return the results of the calendar's windows from runs that began after they were closed."""
    first = min(known.days, default=known.now.date())
    return _outcomes(start__gte=midnight(first), run__started_at__gte=F("end") + HOUR_LAG)


def windows_of(run: Run, known: Calendar) -> list[Window]:
    """Return the windows that a run has to do, the oldest first; of a range that was begun before, the rest."""
    if run.kind == RunKind.HOURS:
        return hours(known)
    if run.kind == RunKind.DAYS:
        return days(known)
    assert run.start is not None  # noqa: S101 - the constraint run_range
    assert run.end is not None  # noqa: S101
    done = _outcomes(ended_at__gte=run.requested_at).passed
    if not run.again:
        passed = _outcomes_in(known).passed
        late = _days_with_late_data(known, passed)
        done |= {window for window in passed if window.day not in late}
    return [window for window in windows.windows_between(known, run.start, run.end) if window not in done]


def hours(known: Calendar) -> list[Window]:
    """Return the closed hours of unsealed days that have not passed, since the delivery tables were created."""
    applied = MigrationRecorder(connection).migration_qs.filter(app="delivery")
    created: dt.datetime = applied.aggregate(first=Min("applied"))["first"]
    outcomes = _outcomes_in(known)
    return outcomes.without_back_off(windows.pending_hours(known, outcomes.passed, since=created), known.now)


def missed_days(known: Calendar) -> list[Window]:
    """Return the sealed days that have not passed."""
    outcomes = _outcomes_in(known)
    return outcomes.without_back_off(windows.pending_days(known, outcomes.passed, ()), known.now)


def days(known: Calendar) -> list[Window]:
    """Return the sealed days that have not passed, or got late data since they did; this may count rows."""
    outcomes = _outcomes_in(known)
    late = _days_with_late_data(known, outcomes.passed)
    return outcomes.without_back_off(windows.pending_days(known, outcomes.passed, late), known.now)


def _days_with_late_data(known: Calendar, passed: Collection[Window]) -> set[dt.date]:
    """Return the sealed days whose partitions have other rows than when they last passed.

    They are counted with the time for a statement that Spark has: after a crash of PostgreSQL large ones are too.
    """
    late = set[dt.date]()
    with reading(spark_settings().database_url) as reader:
        for window in map(whole, known.sealed()):
            if window in passed:
                runs = RunWindow.objects.filter(start=window.start, end=window.end, state=WindowState.PASSED)
                if has_grown(reader, window.day, runs.latest("ended_at").inputs):
                    late.add(window.day)
    return late
