"""Ask for runs: of what is due by the schedule, or of a range that somebody chose."""

import datetime as dt
from functools import partial
from typing import Any, Final

import structlog
from django.db import connection, transaction

from analytics import due, run_records
from analytics.models import Run, RunKind
from analytics.models.runs import UNENDED
from analytics.open_transactions import OpenTransaction
from analytics.pipeline.job import Window
from analytics.windows import midnight
from delivery.dispatch import notify
from delivery.models import StorageDay

SUMMARIZE: Final = "analytics.summarize"
"""The task that does a run."""
QUEUE: Final = "analytics"
ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtext('analytics.run_requests'))"

log = structlog.get_logger(__name__)


class NotARange(Exception):
    """Nothing of the range can be summarized; the message says why."""


def request_hours(*, call_seconds: float) -> Run | None:
    """Ask for the closed hours that are due, if there are any and nobody has asked yet."""
    return _request(RunKind.HOURS, due.hours(due.calendar(now(), call_seconds=call_seconds)))


def request_days(*, call_seconds: float) -> Run | None:
    """Likewise for the sealed days that are due, those that were touched since their summary too.

    Warns of what keeps others from being sealed.
    """
    if oldest := held_up_by(call_seconds=call_seconds):
        since = oldest.since.isoformat()
        log.warning("summaries.held_up", pid=oldest.pid, since=since, reason=str(oldest))
    return _request(RunKind.DAYS, due.days(due.calendar(now(), call_seconds=call_seconds)))


def request_missed_days(*, call_seconds: float) -> Run | None:
    """Likewise for the sealed days that have no summary: one could not be sealed in time, or its run failed."""
    return _request(RunKind.DAYS, due.missed_days(due.calendar(now(), call_seconds=call_seconds)))


def held_up_by(*, call_seconds: float) -> OpenTransaction | None:
    """Return the transaction that keeps days that are over from being sealed."""
    return due.held_up_by(now(), call_seconds=call_seconds)


def request_range(start: dt.datetime, end: dt.datetime, *, again: bool = False, by: Any = None) -> Run:
    """Ask for a range, UTC, the end not part of it, for a worker to do; `by` is the user who wants it.

    `again`: also what is summarized already. Days that are sealed are done whole; of an hour that is not closed what
    has happened up to `end` is done, until the hour's own summary replaces it.

    Raises:
        NotARange: it is empty, has not begun, or is of days that retention has dropped.

    """
    with transaction.atomic():
        run = new_range(start, end, again=again, by=by)
        transaction.on_commit(partial(notify.hint, SUMMARIZE, [run.pk], QUEUE), robust=True)
    return run


def new_range(start: dt.datetime, end: dt.datetime, *, again: bool = False, by: Any = None) -> Run:
    """Note that a range is wanted, for whoever is about to do it."""
    if start >= now():
        raise NotARange(f"The range lies in the future; it is {now():%Y-%m-%d %H:%M} UTC now.")
    if start >= end:
        raise NotARange(f"The range ends ({end:%Y-%m-%d %H:%M}) before it begins ({start:%Y-%m-%d %H:%M}).")
    first = StorageDay.objects.filter(dropped_at=None).order_by("day").values_list("day", flat=True).first()
    if first is None or end <= midnight(first):
        raise NotARange(f"Nothing of that time is kept any more; what is kept begins on {first}.")
    return Run.objects.create(kind=RunKind.RANGE, start=start, end=end, again=again, requested_by=by)


def hint_waiting() -> None:
    """Tell the workers that a run has ended, if there are others to be done: theirs may have heard it in vain."""
    if waits := run_records.waiting():
        notify.hint(SUMMARIZE, waits[:1], QUEUE)


def now() -> dt.datetime:
    """Return the database's instant, by which windows close."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        instant: dt.datetime = cursor.fetchone()[0]
        return instant


def _request(kind: RunKind, windows: list[Window]) -> Run | None:
    """Note that a run is wanted, unless there is nothing for it; two beats at once come to one run."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(ONE_AT_A_TIME)
        if not windows or Run.objects.filter(kind=kind, state__in=UNENDED).exists():
            return None
        return Run.objects.create(kind=kind)
