"""Request runs: of the windows that are due on schedule, or of a range that a user chose."""

import datetime as dt
from functools import partial
from typing import Any, Final, cast

import structlog
from django.db import transaction

from analytics import pending, run_records
from analytics.models import UNFINISHED_RUNS, Run, RunKind
from analytics.pipeline.job import Window, midnight
from analytics.windows import Calendar
from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.models import StorageDay

SUMMARIZE: Final = "analytics.summarize"
"""The task that does a run."""
QUEUE: Final = "analytics"
ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtext('analytics.run_requests'))"

log = structlog.get_logger(__name__)


class NotARange(Exception):
    """Nothing of the range can be summarized; the message says why."""


def request_hours() -> Run | None:
    """Request a run of the closed hours that are due; None if there are none, or it is requested already."""
    return _request(RunKind.HOURS, pending.hours(current_calendar()))


def request_days() -> Run | None:
    """Request a run of the sealed days that are due, with those that got late data; likewise.

    Log a warning if an open transaction keeps days from being sealed.
    """
    known = current_calendar()
    if blocker := known.blocker:
        log.warning("summaries.unsealed", pid=blocker.pid, since=blocker.since.isoformat(), reason=str(blocker))
    return _request(RunKind.DAYS, pending.days(known))


def request_missed_days() -> Run | None:
    """Request a run of the sealed days without a summary: they were sealed late, or their run failed; likewise."""
    return _request(RunKind.DAYS, pending.missed_days(current_calendar()))


def current_calendar() -> Calendar:
    """Return the calendar at this moment."""
    return pending.calendar(now())


def request_range(start: dt.datetime, end: dt.datetime, *, again: bool = False, by: Any = None) -> Run:
    """Request a run of a range (UTC, the end not part of it) from the workers; `by` is the user who asks.

    `again`: also summarize what is summarized already. Sealed days are summarized as a whole. Of an hour that is not
    closed, the part up to `end` is summarized; the hour's own summary replaces it later.

    Raises:
        NotARange: it is empty, lies in the future, or retention has dropped its days.

    """
    with transaction.atomic():
        run = create_range(start, end, again=again, by=by)
        transaction.on_commit(partial(notify.hint, SUMMARIZE, [run.pk], QUEUE), robust=True)
    return run


def create_range(start: dt.datetime, end: dt.datetime, *, again: bool = False, by: Any = None) -> Run:
    """Create the run of a range without notifying the workers; otherwise like `request_range`."""
    if start >= (instant := now()):
        raise NotARange(f"The range lies in the future; it is {instant:%Y-%m-%d %H:%M} UTC now.")
    if start >= end:
        raise NotARange(f"The range ends ({end:%Y-%m-%d %H:%M}) before it begins ({start:%Y-%m-%d %H:%M}).")
    first = StorageDay.objects.filter(dropped_at=None).order_by("day").values_list("day", flat=True).first()
    if first is None or end <= midnight(first):
        raise NotARange(f"Nothing of that time is kept any more; what is kept begins on {first}.")
    return Run.objects.create(kind=RunKind.RANGE, start=start, end=end, again=again, requested_by=by)


def now() -> dt.datetime:
    """Return the database's clock, by which windows close."""
    ((instant,),) = rows("SELECT clock_timestamp()")
    return cast("dt.datetime", instant)


def _request(kind: RunKind, windows: list[Window]) -> Run | None:
    """Create a run if it has windows and none of this kind is unfinished; concurrent requests create one run."""
    run_records.abandon_vanished()
    with transaction.atomic():
        rows(ONE_AT_A_TIME)
        if not windows or Run.objects.filter(kind=kind, state__in=UNFINISHED_RUNS).exists():
            return None
        return Run.objects.create(kind=kind)
