"""Which windows are due for a summary: closed ones that no run has summarized as they now are."""

import datetime as dt
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F, Min

from analytics.models import Run, RunKind, RunWindow, WindowState
from analytics.open_transactions import OpenTransaction, oldest_transaction
from analytics.pipeline.job import Window
from analytics.windows import (
    HOUR_LAG,
    Calendar,
    due_days,
    due_hours,
    first_growing,
    midnight,
    rest,
    whole,
    windows_between,
)
from delivery.models import StorageDay


@dataclass(slots=True)
class Outcomes:
    """The windows by what became of each the last time."""

    passed: set[Window] = field(default_factory=set)
    failures: dict[Window, list[dt.datetime]] = field(default_factory=dict)
    """When each has failed since it last passed."""

    def add(self, window: Window, state: WindowState, at: dt.datetime) -> None:
        """Take in what became of a window, later than all that was taken in."""
        if state is WindowState.PASSED:
            self.passed.add(window)
            self.failures.pop(window, None)
        else:
            self.passed.discard(window)
            self.failures.setdefault(window, []).append(at)

    def rested(self, windows: Iterable[Window], now: dt.datetime) -> list[Window]:
        """Return those of the windows that have not failed lately; the oftener they have, the longer that is."""
        return [window for window in windows if not self._rests(window, now)]

    def _rests(self, window: Window, now: dt.datetime) -> bool:
        failed = self.failures.get(window, [])
        return bool(failed) and now < failed[-1] + rest(len(failed))


def outcomes_from(day: dt.date) -> Outcomes:
    """Return what became of the windows from a day on after they were closed; what was before does not count."""
    return _outcomes(start__gte=midnight(day), run__started_at__gte=F("end") + HOUR_LAG)


def outcomes_since(instant: dt.datetime) -> Outcomes:
    """Return what has become of windows since an instant."""
    return _outcomes(ended_at__gte=instant)


def _outcomes(**conditions: object) -> Outcomes:
    outcomes = Outcomes()
    rows = RunWindow.objects.filter(**conditions).order_by("ended_at", "id")
    for start, end, state, at in rows.values_list("start", "end", "state", "ended_at"):
        outcomes.add(Window(start, end), WindowState(state), at)
    return outcomes


def calendar(now: dt.datetime, *, call_seconds: float) -> Calendar:
    """Return which days the database has, and which of them may still change; a SYNC call takes `call_seconds`."""
    oldest = oldest_transaction()
    growing_from = first_growing(now, oldest.since if oldest else None, call_seconds=call_seconds)
    days = StorageDay.objects.filter(dropped_at=None).values_list("day", flat=True)
    return Calendar(now, frozenset(days), growing_from)


def held_up_by(now: dt.datetime, *, call_seconds: float) -> OpenTransaction | None:
    """Return the transaction without which more days would be sealed."""
    oldest = oldest_transaction()
    if oldest is None:
        return None
    by_time = first_growing(now, None, call_seconds=call_seconds)
    return oldest if first_growing(now, oldest.since, call_seconds=call_seconds) < by_time else None


def due(run: Run, known: Calendar) -> list[Window]:
    """Return the windows that a run has to do, the oldest first."""
    match run.kind:
        case RunKind.HOURS:
            return hours(known)
        case RunKind.DAYS:
            return days(known)
        case _:
            return _of_range(run, known)


def hours(known: Calendar) -> list[Window]:
    """Return the closed hours, of days that still grow, that have not passed; before the tables were there is none."""
    outcomes = _outcomes_of_range(known)
    return outcomes.rested(due_hours(known, outcomes.passed, since=_first_instant()), known.now)


def days(known: Calendar) -> list[Window]:
    """Return the sealed days that have not passed, or under which something was filed since they did."""
    outcomes = _outcomes_of_range(known)
    return outcomes.rested(due_days(known, outcomes.passed, _touched(known, outcomes.passed)), known.now)


def missed_days(known: Calendar) -> list[Window]:
    """Return the sealed days that have not passed: what `days` returns, but does not cost counting rows."""
    outcomes = _outcomes_of_range(known)
    return outcomes.rested(due_days(known, outcomes.passed, ()), known.now)


def _of_range(run: Run, known: Calendar) -> list[Window]:
    """Return what of the range is to be done, or what is left of it where it was begun before."""
    assert run.start is not None  # noqa: S101 - the constraint run_range
    assert run.end is not None  # noqa: S101
    wanted = windows_between(known, run.start, run.end)
    done = outcomes_since(run.requested_at).passed
    if not run.again:
        passed = _outcomes_of_range(known).passed
        touched = _touched(known, passed)
        done |= {window for window in passed if window.day not in touched}
    return [window for window in wanted if window not in done]


def _outcomes_of_range(known: Calendar) -> Outcomes:
    return outcomes_from(min(known.days, default=known.now.date()))


def _touched(known: Calendar, passed: Collection[Window]) -> set[dt.date]:
    """Return the sealed days whose leaves hold something else than they did when they were last summarized."""
    return {day for day in known.sealed() if whole(day) in passed and _is_touched(day)}


def _is_touched(day: dt.date) -> bool:
    # Not at the top: it brings Spark's classes with it, 40 MB that most workers never need.
    from analytics.pipeline.extraction import has_grown  # noqa: PLC0415

    window = whole(day)
    last = RunWindow.objects.filter(start=window.start, end=window.end, state=WindowState.PASSED).latest("ended_at")
    return has_grown(connection, day, last.inputs)


def _first_instant() -> dt.datetime:
    """Return since when there are tables: before, nothing can have happened."""
    applied = MigrationRecorder(connection).migration_qs.filter(app="delivery")
    first: dt.datetime = applied.aggregate(first=Min("applied"))["first"]
    return first
