"""Figures of the dashboard: what the summaries say of a range, computed by PostgreSQL."""

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, LiteralString, NamedTuple, Self

from django.db import connection
from django.db.models import QuerySet, Sum
from psycopg.rows import namedtuple_row

from analytics.models import HourTotal
from analytics.pipeline.quantiles import Histogram, merged, quantile
from analytics.pipeline.tables import AUDIT, RELIABILITY, Table
from analytics.summaries import rows_between
from analytics.windows import Range

IN_RANGE: Final = "hour >= %(start)s AND hour < %(end)s"
SELECTED: Final = f"{IN_RANGE} AND (%(subscriber_id)s::bigint IS NULL OR subscriber_id = %(subscriber_id)s)"
ALL: Final = "%(subscriber_id)s::bigint IS NULL"
ONE: Final = "subscriber_id = %(subscriber_id)s"
"""`analytics_totals` has the totals of all subscribers: of the two parts of a UNION, one is skipped without reading."""
STEP: Final = "date_trunc(%(step)s, hour) AS step"

OUTCOMES: Final = f"""
SELECT {STEP}, status, sum(number::bigint)::bigint AS number
  FROM (SELECT hour, by_status FROM analytics_totals WHERE {IN_RANGE} AND {ALL}
        UNION ALL
        SELECT hour, by_status FROM analytics_reliability WHERE {IN_RANGE} AND {ONE}) AS chosen,
       jsonb_each_text(by_status) AS s (status, number)
 GROUP BY 1, 2
"""
HISTOGRAMS: Final = f"""
SELECT {STEP}, bucket::int, sum(number::bigint)::bigint AS number
  FROM (SELECT hour, histogram FROM analytics_totals WHERE {IN_RANGE} AND {ALL}
        UNION ALL
        SELECT hour, histogram FROM analytics_latency WHERE {IN_RANGE} AND {ONE} AND measure = 'delivery') AS chosen,
       jsonb_each_text(histogram) AS h (bucket, number)
 GROUP BY 1, 2
"""
HIGHEST_BACKLOG: Final = f"""
SELECT {STEP}, max(backlog)::bigint AS backlog
  FROM (SELECT hour, backlog FROM analytics_totals WHERE {IN_RANGE} AND {ALL} AND backlog > 0
        UNION ALL
        SELECT at, deliveries FROM analytics_backlog WHERE at >= %(start)s AND at < %(end)s AND {ONE}) AS chosen
 GROUP BY 1
"""
"""By step, the most deliveries unfinished at one moment; steps without any have no row."""

REPLIES_AS_0: Final = "COALESCE(subscription_id, 0)"
"""Replies to callbacks have no subscription, and null equals nothing."""
FAILING_ENDPOINTS: Final = f"""
WITH most AS (
  SELECT subscription_id, max(subscriber) AS subscriber, max(endpoint) AS endpoint, sum(attempts)::bigint AS attempts,
         sum(retries)::bigint AS retries, sum(failures)::bigint AS failures, sum(held_seconds) AS held_seconds
    FROM analytics_endpoints WHERE {SELECTED} GROUP BY subscription_id HAVING sum(failures) > 0
   ORDER BY sum(failures) DESC, subscription_id LIMIT 20),
most_common AS (
  SELECT DISTINCT ON (id) {REPLIES_AS_0} AS id, class AS most_common_failure
    FROM analytics_endpoints, jsonb_each_text(by_class) AS b (class, number)
   WHERE {SELECTED} AND class <> '2xx' AND {REPLIES_AS_0} = ANY (ARRAY(SELECT {REPLIES_AS_0} FROM most))
   GROUP BY 1, 2 ORDER BY id, sum(number::bigint) DESC, class COLLATE "C" DESC)
SELECT * FROM most LEFT JOIN most_common ON id = {REPLIES_AS_0} ORDER BY failures DESC, subscription_id
"""
"""The subscriptions with most failures; without an id, the addresses of replies to callbacks."""

MAX_PUBLISHERS: Final = 6
DELETED: Final = "(deleted)"
"""In place of the name of what has been deleted; no name has brackets."""
MESSAGES_BY_PUBLISHER: Final = f"""
WITH published AS (
  SELECT {STEP}, CASE WHEN publisher = '' AND publisher_id IS NOT NULL THEN '{DELETED}' ELSE publisher END AS publisher,
         sum(messages) AS messages
    FROM analytics_volume WHERE {IN_RANGE} GROUP BY 1, 2),
most AS (
  SELECT publisher FROM published
   GROUP BY publisher ORDER BY sum(messages) DESC, publisher COLLATE "C" LIMIT {MAX_PUBLISHERS})
SELECT step, most.publisher, sum(messages)::bigint AS messages
  FROM published LEFT JOIN most USING (publisher) GROUP BY 1, 2
"""
"""By step and publisher: the busiest by name, all others as None; management keys have an empty name.

Those that have been deleted are one.
"""

SHARES: Final = f"""
WITH taken AS (
  SELECT group_of, event_type, subscription_id, subscriber_id, subscriber, endpoint,
         sum(delivered)::bigint AS delivered, sum(redundant)::bigint AS redundant,
         sum(sum(delivered)) OVER (PARTITION BY group_of)::bigint AS of_group
    FROM analytics_shares WHERE {IN_RANGE}
   GROUP BY group_of, event_type, subscription_id, subscriber_id, subscriber, endpoint)
SELECT * FROM taken WHERE {ALL} OR {ONE} ORDER BY of_group DESC, group_of, delivered DESC, subscription_id LIMIT 50
"""
"""What each endpoint took of its group, also of what other subscribers took of it.

Its first subscription, `group_of`, identifies a group.
"""

COVERED: Final = """
SELECT lower(piece), upper(piece)
  FROM unnest((SELECT range_agg(tstzrange(start, "end")) FROM analytics_runwindow
                WHERE state = 'PASSED' AND start < %(end)s AND "end" > %(start)s)
              * tstzmultirange(tstzrange(%(start)s, %(end)s))) AS piece
 ORDER BY 1
"""
"""The parts of a range that are summarized, the earliest first, not overlapping."""

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Quantiles(NamedTuple):
    """The time from published to delivered, in milliseconds, within one per cent."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, histogram: Histogram) -> Self:
        """Return the quantiles of a histogram that is not empty."""
        return cls(*(quantile(histogram, share) for share in QUANTILES.values()))


class Totals(NamedTuple):
    """How many deliveries ended, and how; `eligible` are all but the neutral ones."""

    deliveries: int
    eligible: int
    delivered: int
    first_attempt: int


class Audited(NamedTuple):
    """What the ordering audit found."""

    checked: int
    inversions: int
    duplicates: int
    explained_inversions: int
    explained_duplicates: int

    @property
    def unexplained(self) -> int:
        """How many the contract has no explanation for, which must be 0."""
        return self.inversions + self.duplicates - self.explained_inversions - self.explained_duplicates


@dataclass(frozen=True)
class Selection:
    """A range, and optionally one subscriber, with its figures."""

    range: Range
    subscriber_id: int | None = None
    """None: all subscribers, and what has none."""

    def rows(self, table: Table) -> QuerySet[Any]:
        """Return the rows of a summary; those of all subscribers if it has no such column."""
        is_narrowed = self.subscriber_id and "subscriber_id" in table.types
        return rows_between(table, self.range, {"subscriber_id": self.subscriber_id} if is_narrowed else {})

    def query(self, statement: LiteralString) -> list[Any]:
        """Return the rows of a statement with `start`, `end`, `step` and `subscriber_id`, as named tuples."""
        asked: dict[str, Any] = {"start": self.range.start, "end": self.range.end, "step": self.range.step}
        with connection.cursor() as cursor:
            cursor.cursor.row_factory = namedtuple_row
            cursor.execute(statement, {**asked, "subscriber_id": self.subscriber_id})
            return [*cursor.fetchall()]

    @cached_property
    def totals(self) -> Totals:
        """The sums over its hours."""
        of_all = HourTotal.objects.filter(hour__gte=self.range.start, hour__lt=self.range.end)
        rows = self.rows(RELIABILITY) if self.subscriber_id else of_all
        return Totals(*sums(rows, *Totals._fields))

    @cached_property
    def outcomes(self) -> dict[tuple[dt.datetime, str], int]:
        """How many deliveries ended, by step and status."""
        return {(one.step, one.status): one.number for one in self.query(OUTCOMES)}

    @cached_property
    def histograms(self) -> dict[dt.datetime, dict[int, int]]:
        """How long deliveries took: counts by step and bucket."""
        found: dict[dt.datetime, dict[int, int]] = defaultdict(dict)
        for one in self.query(HISTOGRAMS):
            found[one.step][one.bucket] = one.number
        return found

    @property
    def latency(self) -> Quantiles | None:
        """The quantiles of all steps together; None if nothing was delivered."""
        histogram = merged(self.histograms.values())
        return Quantiles.of(histogram) if histogram else None

    @cached_property
    def audit(self) -> Audited:
        """The sums over its hours."""
        return Audited(*sums(self.rows(AUDIT), *Audited._fields))


def sums(rows: QuerySet[Any], *columns: str) -> list[int]:
    """Return the sums of columns, in their order."""
    found = rows.aggregate(**{column: Sum(column, default=0) for column in columns})
    return [int(found[column]) for column in columns]
