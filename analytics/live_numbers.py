"""The live numbers: what ended in the last minutes, in all, by subscriber, or by event type of one subscriber.

They are the sums of minutes that `delivery.maintenance.minutes` has counted, and mean what the summaries mean.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, LiteralString, TypeVar, cast

from django.core.cache import cache
from django.db.models import Max

from analytics.dashboard_queries import Quantiles
from analytics.pipeline.quantiles import PARTS, Histogram
from broker_project.core.db import rows
from delivery.models import MinuteTotal
from delivery.status.backlog import Backlog, backlogs
from delivery.status.line_status import HeldLine, held_lines
from subscriptions.models import EventType
from subscriptions.names import OWN_EVENTS

Found = TypeVar("Found")

MINUTE: Final = dt.timedelta(minutes=1)
HOUR_MINUTES: Final = 60
DAY_MINUTES: Final = 24 * 60
CACHED_SECONDS: Final = 5
"""How long a process shows what it has read of the backlog: half as long as pages take to refresh themselves."""
MINUTE_SECONDS: Final = 60
"""How long it shows what it has added up: until the next minute is counted."""
MAX_ROWS: Final = 50_000
"""Rows that are added up by subscriber or event type; where an hour has more, it is fewer minutes."""

COUNTS: Final = """
sums AS (
  SELECT key, sum(deliveries)::int AS deliveries, sum(delivered)::int AS delivered, sum(eligible)::int AS eligible
    FROM chosen GROUP BY key)
"""
BUCKETS: Final = """
bucket AS (
  SELECT key, bucket, sum(number) AS number
    FROM chosen CROSS JOIN unnest(buckets, bucket_counts) AS h (bucket, number) GROUP BY key, bucket)
"""
SUMS: Final = f"""
{COUNTS}, {BUCKETS},
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

SINCE: Final = f"""
SELECT COALESCE(min(minute), %(newest)s), GREATEST(count(*), 1) FROM delivery_minutetotal
 WHERE minute > %(newest)s - make_interval(mins => {HOUR_MINUTES}) AND minute <= %(newest)s
   AND minute >= LEAST(%(newest)s, COALESCE(
         (SELECT minute + interval '1 minute' FROM delivery_minutecount
           WHERE minute > %(newest)s - make_interval(mins => {HOUR_MINUTES}) AND minute <= %(newest)s
           ORDER BY minute DESC OFFSET {MAX_ROWS} LIMIT 1), '-infinity'))
"""
"""The first of the minutes that are added up, and how many were counted: of the last hour, or as many as have few
enough rows, at least one."""


BY: Final = """
WITH chosen AS (
  SELECT COALESCE({key}, 0) AS key, c.* FROM delivery_minutecount c
   WHERE minute >= %(since)s AND minute <= %(newest)s
     AND (%(subscriber_ids)s::bigint[] IS NULL OR subscriber_id = ANY (%(subscriber_ids)s::bigint[]))
     AND (%(of_own)s::bool IS NULL OR COALESCE(event_type_id = ANY (%(own)s::bigint[]), false) = %(of_own)s::bool)),
{sums}"""
"""The numbers by a column; rows without it have the key 0."""
BY_SUBSCRIBER: Final = BY.format(key="subscriber_id", sums=SUMS)
COUNTS_BY_SUBSCRIBER: Final = BY.format(key="subscriber_id", sums=f"{COUNTS} SELECT *, NULL FROM sums")
QUANTILES_BY_SUBSCRIBER: Final = BY.format(key="subscriber_id", sums=QUANTILES)
BY_EVENT_TYPE: Final = BY.format(key="event_type_id", sums=SUMS)


@dataclass(frozen=True)
class Numbers:
    """What ended in a number of minutes that were counted."""

    minutes: int
    deliveries: int = 0
    delivered: int = 0
    eligible: int = 0
    """All but the neutral ones."""
    histogram: Histogram | None = None

    def __add__(self, other: "Numbers") -> "Numbers":
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

    @cached_property
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
        return sum(self.numbers.values(), Numbers(self.minutes))


def last_minute() -> dt.datetime | None:
    """Return the beginning of the last minute that was counted; None before the first."""
    found: dt.datetime | None = MinuteTotal.objects.aggregate(last=Max("minute"))["last"]
    return found


def cached_backlogs() -> dict[int, Backlog]:
    """Return the backlog of each subscriber, as of a few seconds ago: read once for all pages and scrapes."""
    return _cached("backlogs", backlogs, CACHED_SECONDS)


def cached_held_lines() -> list[HeldLine]:
    """Return the lines that are held, the longest held first, likewise."""
    return _cached("held_lines", held_lines, CACHED_SECONDS)


def _cached(key: str, read: Callable[[], Found], seconds: int) -> Found:
    """Return what was read in the last seconds; `get_or_set` would unpickle what it has just stored."""
    found = cast("Found | None", cache.get(key))
    if found is None:
        found = read()
        cache.set(key, found, seconds)
    return found


def total(newest: dt.datetime, minutes: int) -> Numbers:
    """Return the numbers of all deliveries that ended in `minutes` up to `newest`, inclusive."""
    since = newest - dt.timedelta(minutes=minutes)
    counted = MinuteTotal.objects.filter(minute__gt=since, minute__lte=newest).count()
    found = [columns for _, *columns in rows(TOTAL, {"newest": newest, "minutes": minutes})]
    return _numbers(counted, *found[0]) if found else Numbers(minutes)


def by_subscriber(newest: dt.datetime, subscriber_ids: Sequence[int] | None = None) -> LastMinutes:
    """Return the numbers of these subscribers, or all, in the last hour, or less if that would be too many rows."""
    return _added_up(BY_SUBSCRIBER, newest, subscriber_ids)


def by_subscriber_of_published(newest: dt.datetime) -> LastMinutes:
    """Return the counts of what publishers have published, without the broker's own events, and without times."""
    return _counts_by_subscriber(newest, of_own=False)


def with_own_events(published: LastMinutes, newest: dt.datetime) -> LastMinutes:
    """Return the counts of what publishers have published, and of the broker's own events besides."""
    own, nothing = _counts_by_subscriber(newest, of_own=True).numbers, Numbers(published.minutes)
    both = {key: published.numbers.get(key, nothing) + one for key, one in own.items()}
    return replace(published, numbers={**published.numbers, **both})


def _counts_by_subscriber(newest: dt.datetime, *, of_own: bool) -> LastMinutes:
    key = f"counts_by_subscriber:{of_own}:{newest.timestamp()}"
    return _cached(key, partial(_added_up, COUNTS_BY_SUBSCRIBER, newest, of_own=of_own), MINUTE_SECONDS)


def quantile_buckets(newest: dt.datetime, share: float) -> dict[int, int]:
    """Return by subscriber in which bucket a quantile of its times is, of the same minutes as its numbers."""
    key = f"quantile_buckets:{share}:{newest.timestamp()}"
    return _cached(key, partial(_quantile_buckets, newest, share), MINUTE_SECONDS)


def _quantile_buckets(newest: dt.datetime, share: float) -> dict[int, int]:
    ((since, _),) = rows(SINCE, {"newest": newest})
    asked = {"since": since, "newest": newest, "subscriber_ids": None, "own": [], "of_own": None}
    return dict(rows(QUANTILES_BY_SUBSCRIBER, {**asked, "parts": round(share * PARTS)}))


def by_event_type(newest: dt.datetime, subscriber_id: int) -> LastMinutes:
    """Return the same of one subscriber, by event type."""
    return _added_up(BY_EVENT_TYPE, newest, [subscriber_id])


def _added_up(
    statement: LiteralString,
    newest: dt.datetime,
    subscriber_ids: Sequence[int] | None = None,
    *,
    of_own: bool | None = None,
) -> LastMinutes:
    """Add up the numbers of the broker's own events, of all others, or with None of both."""
    ((since, minutes),) = rows(SINCE, {"newest": newest})
    own = [*EventType.objects.filter(name__startswith=OWN_EVENTS).values_list("pk", flat=True)]
    asked = {"since": since, "newest": newest, "subscriber_ids": subscriber_ids, "own": own, "of_own": of_own}
    found = rows(statement, asked)
    numbers = {key: _numbers(minutes, *counts) for key, *counts in found}
    return LastMinutes(since, newest + MINUTE, minutes, numbers)


def _numbers(
    minutes: int, deliveries: int, delivered: int, eligible: int, histogram: Mapping[str, int] | None
) -> Numbers:
    """Return numbers with a histogram as JSON has it, whose keys are texts."""
    buckets = {int(bucket): number for bucket, number in (histogram or {}).items()}
    return Numbers(minutes, deliveries, delivered, eligible, buckets)
