"""The live numbers: what ended in the last minutes, in all, by subscriber, or by event type of one subscriber.

They are the sums of minutes that `delivery.maintenance.minutes` has counted, and mean what the summaries mean.
"""

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final, LiteralString, NamedTuple, TypeVar, cast

from django.db.models import DateTimeField, Func, Max

from analytics.dashboard_queries import Quantiles
from analytics.pipeline.quantiles import PARTS, Histogram
from broker_project.core.db import rows
from delivery.models import MinuteTotal
from delivery.status.backlog import Backlog, backlogs
from delivery.status.line_status import HeldLine, held_lines
from subscriptions.models import EventType
from subscriptions.names import OWN_EVENTS

Found = TypeVar("Found")
_read: dict[str, tuple[float, object, Any]] = {}
"""What this process has read, until when it is shown, and of what it is: Django's cache would pickle it."""

MINUTE: Final = dt.timedelta(minutes=1)
HOUR_MINUTES: Final = 60
DAY_MINUTES: Final = 24 * 60
CACHED_SECONDS: Final = 5
"""How long a process shows what it has read of the backlog: half as long as pages take to refresh themselves."""
MINUTE_SECONDS: Final = 60
"""How long it shows what it has added up: until the next minute is counted."""
MAX_ROWS: Final = 50_000
"""Rows that are added up by subscriber or event type; where an hour has more, it is fewer minutes."""

COUNTS: Final = "sum(deliveries)::int AS deliveries, sum(delivered)::int AS delivered, sum(eligible)::int AS eligible"
BUCKETS: Final = """
bucket AS (
  SELECT key, bucket, sum(number) AS number
    FROM (SELECT key, unnest(buckets) AS bucket, unnest(bucket_counts) AS number FROM chosen) h GROUP BY key, bucket)
"""
SUMS: Final = f"""
sums AS (SELECT key, {COUNTS} FROM chosen GROUP BY key),
{BUCKETS},
histograms AS (SELECT key, jsonb_object_agg(bucket, number) AS histogram FROM bucket GROUP BY key)
SELECT key, deliveries, delivered, eligible, histogram FROM sums LEFT JOIN histograms USING (key)
"""
QUANTILES: Final = f"""
{BUCKETS},
passed AS (
  SELECT key, bucket, sum(number) OVER (PARTITION BY key ORDER BY bucket) AS seen,
         sum(number) OVER (PARTITION BY key) AS number FROM bucket)
SELECT key, min(bucket) FROM passed WHERE seen * {PARTS} >= number * %(parts)s::int GROUP BY key
"""

TOTAL: Final = f"""
WITH chosen AS (
  SELECT 0 AS key, t.* FROM delivery_minutetotal t
   WHERE minute > %(newest)s - make_interval(mins => %(minutes)s::int) AND minute <= %(newest)s),
{SUMS}
"""

SINCE_HOURS: Final = """
SELECT COALESCE(min(minute), %(newest)s), GREATEST(count(*), 1) FROM delivery_minutetotal
 WHERE minute > %(newest)s - make_interval(hours => %(hours)s::int) AND minute <= %(newest)s
"""
"""The first of the minutes of the last hours, and how many were counted."""
SINCE: Final = f"""
{SINCE_HOURS}
   AND minute >= LEAST(%(newest)s, COALESCE(
         (SELECT minute + interval '1 minute' FROM delivery_minutecount
           WHERE minute > %(newest)s - make_interval(mins => {HOUR_MINUTES}) AND minute <= %(newest)s
           ORDER BY minute DESC OFFSET {MAX_ROWS} LIMIT 1), '-infinity'))
"""
"""The first of the minutes that are added up, and how many were counted: of the last hour, or as many as have few
enough rows, at least one."""

OF_MINUTES: Final = "minute >= %(since)s AND minute <= %(newest)s"
BY: Final = f"""
WITH chosen AS (
  SELECT COALESCE({{key}}, 0) AS key, c.* FROM delivery_minutecount c WHERE {OF_MINUTES}{{of}}),
{{sums}}"""
"""The numbers by a column; rows without it have the key 0."""
BY_SUBSCRIBER: Final = BY.format(
    key="subscriber_id", of=" AND subscriber_id = ANY (%(subscriber_ids)s::bigint[])", sums=SUMS
)
QUANTILES_BY_SUBSCRIBER: Final = BY.format(key="subscriber_id", of="", sums=QUANTILES)
BY_EVENT_TYPE: Final = BY.format(key="event_type_id", of=" AND subscriber_id = %(subscriber_id)s::bigint", sums=SUMS)
COUNTS_BY_SUBSCRIBER: Final = f"""
SELECT COALESCE(event_type_id = ANY (%(own)s::bigint[]), false) AS is_own, COALESCE(subscriber_id, 0), {COUNTS}
  FROM delivery_minutecount WHERE {OF_MINUTES} GROUP BY 1, 2
"""


class Numbers(NamedTuple):
    """What ended in a number of minutes that were counted."""

    minutes: int
    deliveries: int = 0
    delivered: int = 0
    eligible: int = 0
    """All but the neutral ones."""
    histogram: Histogram | None = None

    def with_more(self, other: "Numbers") -> "Numbers":
        """Return the sum of two kinds of deliveries that ended in the same minutes."""
        return Numbers(
            self.minutes,
            self.deliveries + other.deliveries,
            self.delivered + other.delivered,
            self.eligible + other.eligible,
            Counter(self.histogram or {}) + Counter(other.histogram or {}),
        )

    @property
    def per_minute(self) -> float:
        """How many ended in each minute on average."""
        return self.deliveries / self.minutes

    @property
    def failed(self) -> int:
        """How many of the eligible ones were not delivered."""
        return self.eligible - self.delivered

    @property
    def success(self) -> float | None:
        """The share of the eligible ones that was delivered; None without any."""
        return self.delivered / self.eligible if self.eligible else None

    @property
    def took(self) -> Quantiles | None:
        """How long they took from published to delivered; None if none was sent and delivered."""
        return Quantiles.of(self.histogram) if self.histogram else None


@dataclass(frozen=True, slots=True)
class LastMinutes:
    """The minutes that were counted last, whose numbers are added up by subscriber or by event type."""

    since: dt.datetime
    until: dt.datetime
    """The end of the last one."""
    minutes: int
    """How many there are."""
    numbers: Mapping[int, Numbers]
    """By id; 0 stands for what has none."""

    @property
    def total(self) -> Numbers:
        """The sum of all."""
        return reduce(Numbers.with_more, self.numbers.values(), Numbers(self.minutes))


@dataclass(frozen=True, slots=True)
class Counts:
    """The minutes that were counted last, by subscriber, without times."""

    of_published: LastMinutes
    """Without the broker's own events."""
    of_all: LastMinutes


def last_minute() -> dt.datetime | None:
    """Return the beginning of the last minute that was counted; None before the first.

    Minutes that are not over are ignored: they were counted before the clock was set back.
    """
    now = Func(function="clock_timestamp", output_field=DateTimeField())
    closed = MinuteTotal.objects.filter(minute__lte=now - MINUTE)
    found: dt.datetime | None = closed.aggregate(last=Max("minute"))["last"]
    return found


def cached_backlogs() -> dict[int, Backlog]:
    """Return the backlog of each subscriber, as of a few seconds ago: read once for all pages and scrapes."""
    return _cached("backlogs", backlogs, CACHED_SECONDS)


def cached_held_lines() -> list[HeldLine]:
    """Return the lines that are held, the longest held first, likewise."""
    return _cached("held_lines", held_lines, CACHED_SECONDS)


def _cached(key: str, read: Callable[[], Found], seconds: int, of: object = None) -> Found:
    """Return what was read in the last seconds of the same thing."""
    until, was_of, found = _read.get(key, (0.0, None, None))
    if time.monotonic() >= until or was_of != of:
        found = read()
        _read[key] = (time.monotonic() + seconds, of, found)
    return cast("Found", found)


def forget() -> None:
    """Forget what was read in the last seconds."""
    _read.clear()


def total(newest: dt.datetime, minutes: int) -> Numbers:
    """Return the numbers of all deliveries that ended in `minutes` up to `newest`, inclusive."""
    since = newest - dt.timedelta(minutes=minutes)
    counted = MinuteTotal.objects.filter(minute__gt=since, minute__lte=newest).count()
    found = [columns for _, *columns in rows(TOTAL, {"newest": newest, "minutes": minutes})]
    return _numbers(counted, *found[0]) if found else Numbers(minutes)


def by_subscriber(newest: dt.datetime, subscriber_ids: Sequence[int]) -> LastMinutes:
    """Return the numbers of these subscribers, in the same minutes as the counts of all."""
    return _added_up(BY_SUBSCRIBER, newest, _since(newest), subscriber_ids=subscriber_ids)


def counts_by_subscriber(newest: dt.datetime) -> Counts:
    """Return the counts of all subscribers in the last hour, or less if that would be too many rows, without times."""
    return _cached("counts", partial(_counts_by_subscriber, newest), MINUTE_SECONDS, newest)


def _counts_by_subscriber(newest: dt.datetime) -> Counts:
    since, minutes = _since(newest)
    own = [*EventType.objects.filter(name__startswith=OWN_EVENTS).values_list("pk", flat=True)]
    counted: dict[bool, dict[int, Numbers]] = {False: {}, True: {}}
    for is_own, key, *counts in rows(COUNTS_BY_SUBSCRIBER, {"since": since, "newest": newest, "own": own}):
        counted[is_own][key] = Numbers(minutes, *counts)
    published, nothing = counted[False], Numbers(minutes)
    both = {key: published.get(key, nothing).with_more(one) for key, one in counted[True].items()}
    until = newest + MINUTE
    return Counts(
        LastMinutes(since, until, minutes, published), LastMinutes(since, until, minutes, {**published, **both})
    )


def quantile_buckets(newest: dt.datetime, share: float) -> dict[int, int]:
    """Return by subscriber in which bucket a quantile of its times is, of the same minutes as its numbers."""
    asked = {"since": _since(newest)[0], "newest": newest, "parts": round(share * PARTS)}
    return _cached(f"buckets_{share}", lambda: dict(rows(QUANTILES_BY_SUBSCRIBER, asked)), MINUTE_SECONDS, newest)


def by_event_type(newest: dt.datetime, subscriber_id: int, hours: int = 1) -> LastMinutes:
    """Return the numbers of one subscriber in the last hours, by event type."""
    (since,) = rows(SINCE_HOURS, {"newest": newest, "hours": hours})
    return _added_up(BY_EVENT_TYPE, newest, since, subscriber_id=subscriber_id)


def _since(newest: dt.datetime) -> tuple[dt.datetime, int]:
    """Return the first of the minutes that are added up of all subscribers, and how many were counted."""
    return _cached("since", lambda: rows(SINCE, {"newest": newest, "hours": 1})[0], MINUTE_SECONDS, newest)


def _added_up(
    statement: LiteralString, newest: dt.datetime, since: tuple[dt.datetime, int], **of: object
) -> LastMinutes:
    first, minutes = since
    found = rows(statement, {"since": first, "newest": newest, **of})
    return LastMinutes(first, newest + MINUTE, minutes, {key: _numbers(minutes, *counts) for key, *counts in found})


def _numbers(
    minutes: int, deliveries: int, delivered: int, eligible: int, histogram: Mapping[str, int] | None
) -> Numbers:
    """Return numbers with a histogram as JSON has it, whose keys are texts."""
    buckets = {int(bucket): number for bucket, number in (histogram or {}).items()}
    return Numbers(minutes, deliveries, delivered, eligible, buckets)
