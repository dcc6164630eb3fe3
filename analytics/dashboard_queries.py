"""Figures of the dashboard: what the summaries say of a range, computed by PostgreSQL.

Each `Figure` is a statement and the class of its rows. `DashboardData` computes once what one page needs several times.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, LiteralString, Self, TypeVar

from analytics.pipeline.quantiles import Histogram, merged, quantile
from analytics.windows import Range
from broker_project.core.db import rows

Row = TypeVar("Row")

IN_RANGE: Final = "hour >= %(start)s AND hour < %(end)s"
OF_SUBSCRIBER: Final = "(%(subscriber_id)s::bigint IS NULL OR subscriber_id = %(subscriber_id)s)"
ALL: Final = "%(subscriber_id)s::bigint IS NULL"
ONE: Final = "subscriber_id = %(subscriber_id)s"
"""`analytics_totals` has the totals of all subscribers: of the two parts of a UNION, one is skipped without reading."""
SELECTED: Final = f"{IN_RANGE} AND {OF_SUBSCRIBER}"
STEP: Final = "date_trunc(%(step)s, hour)"

MAX_PUBLISHERS: Final = 6


def tuple_of(*columns: Any) -> tuple[Any, ...]:
    """Return a row without a class of its own."""
    return columns


@dataclass(frozen=True, slots=True)
class Selection:
    """A range, and optionally one subscriber."""

    range: Range
    subscriber_id: int | None = None
    """None: all subscribers, and what has none."""


@dataclass(frozen=True, slots=True)
class Figure(Generic[Row]):
    """A statement with `start`, `end`, `step` and `subscriber_id`, and the class of its rows, columns in order."""

    row: Callable[..., Row]
    statement: LiteralString

    def all(self, selection: Selection) -> list[Row]:
        """Return the rows for a selection."""
        asked = selection.range
        arguments = {"start": asked.start, "end": asked.end, "step": asked.step}
        found = rows(self.statement, {**arguments, "subscriber_id": selection.subscriber_id})
        return [self.row(*columns) for columns in found]

    def one(self, selection: Selection) -> Row:
        """Return the only row for a selection."""
        [row] = self.all(selection)
        return row


@dataclass(frozen=True, slots=True)
class Totals:
    """How many deliveries ended, and how."""

    deliveries: int
    eligible: int
    """Without REDUNDANT and CANCELLED ones."""
    delivered: int
    first_attempt: int

    @property
    def success_rate(self) -> float | None:
        """The share of the eligible that were delivered; None if there are none."""
        return self.delivered / self.eligible if self.eligible else None

    @property
    def first_attempt_rate(self) -> float | None:
        """The share of the eligible that were delivered by their first attempt; None if there are none."""
        return self.first_attempt / self.eligible if self.eligible else None


COUNTS: Final = "hour, deliveries, eligible, delivered, first_attempt, by_status"
CHOSEN: Final = f"""
(SELECT {COUNTS} FROM analytics_totals WHERE {IN_RANGE} AND {ALL}
 UNION ALL
 SELECT {COUNTS} FROM analytics_reliability WHERE {IN_RANGE} AND {ONE}) AS chosen
"""
TOTALS: Final = Figure(
    Totals,
    f"""
SELECT COALESCE(sum(deliveries), 0)::bigint, COALESCE(sum(eligible), 0)::bigint,
       COALESCE(sum(delivered), 0)::bigint, COALESCE(sum(first_attempt), 0)::bigint
  FROM {CHOSEN}
""",
)
OUTCOMES: Final = Figure(
    tuple_of,
    f"""
SELECT {STEP}, status, sum(number::bigint)::bigint
  FROM {CHOSEN}, jsonb_each_text(by_status) AS s (status, number)
 GROUP BY 1, 2
""",
)
HISTOGRAMS: Final = Figure(
    tuple_of,
    f"""
SELECT {STEP}, bucket::int, sum(number::bigint)::bigint
  FROM (SELECT hour, histogram FROM analytics_totals WHERE {IN_RANGE} AND {ALL}
        UNION ALL
        SELECT hour, histogram FROM analytics_latency WHERE {IN_RANGE} AND {ONE} AND measure = 'delivery') AS chosen,
       jsonb_each_text(histogram) AS h (bucket, number)
 GROUP BY 1, 2
""",
)
HIGHEST_BACKLOG: Final = Figure(
    tuple_of,
    f"""
SELECT {STEP}, max(backlog)::bigint
  FROM (SELECT hour, backlog FROM analytics_totals WHERE {IN_RANGE} AND {ALL} AND backlog > 0
        UNION ALL
        SELECT at, deliveries FROM analytics_backlog WHERE at >= %(start)s AND at < %(end)s AND {ONE}) AS chosen
 GROUP BY 1
""",
)
"""By step, the most deliveries unfinished at one moment; steps without any have no row."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One subscriber's error budget of the 28 days up to a day."""

    day: dt.date
    subscriber: str
    eligible: int
    bad: int
    objective: float
    spent: float
    """The share of what may fail that has failed: 1.0 when all is spent."""


BUDGETS: Final = Figure(
    Budget,
    f"""
SELECT day, subscriber, eligible_28, bad_28, objective, spent
  FROM (SELECT DISTINCT ON (subscriber_id) * FROM analytics_budgets
         WHERE day >= %(start)s AND day < %(end)s AND {OF_SUBSCRIBER} ORDER BY subscriber_id, day DESC) AS latest
 ORDER BY spent DESC, subscriber LIMIT 20
""",
)


@dataclass(frozen=True, slots=True)
class FailingEndpoint:
    """One subscription's endpoint that failed."""

    subscription_id: int | None
    """None: the addresses of replies to callbacks."""
    subscriber: str
    endpoint: str
    attempts: int
    retries: int
    failures: int
    held_seconds: float
    by_class: dict[str, int]

    @property
    def failure_rate(self) -> float:
        """The share of its attempts that failed."""
        return self.failures / self.attempts

    @property
    def most_common_failure(self) -> str:
        """The class of most of its failures."""
        failures = {name: number for name, number in self.by_class.items() if name != "2xx"}
        return max(failures, key=lambda name: (failures[name], name), default="")


REPLIES_AS_0: Final = "COALESCE(subscription_id, 0)"
"""Replies to callbacks have no subscription, and null equals nothing."""
FAILING_ENDPOINTS: Final = Figure(
    FailingEndpoint,
    f"""
WITH most AS (
  SELECT subscription_id, max(subscriber) AS subscriber, max(endpoint) AS endpoint, sum(attempts)::bigint AS attempts,
         sum(retries)::bigint AS retries, sum(failures)::bigint AS failures, sum(held_seconds) AS held_seconds
    FROM analytics_endpoints WHERE {SELECTED} GROUP BY subscription_id HAVING sum(failures) > 0
   ORDER BY sum(failures) DESC, subscription_id LIMIT 20),
classes AS (
  SELECT {REPLIES_AS_0} AS id, class, sum(number::bigint)::bigint AS number
    FROM analytics_endpoints, jsonb_each_text(by_class) AS b (class, number)
   WHERE {SELECTED} AND {REPLIES_AS_0} = ANY (ARRAY(SELECT {REPLIES_AS_0} FROM most)) GROUP BY 1, 2),
by_class AS (
  SELECT id, jsonb_object_agg(class, number) AS by_class FROM classes GROUP BY id)
SELECT most.*, by_class.by_class FROM most JOIN by_class ON id = {REPLIES_AS_0} ORDER BY failures DESC, subscription_id
""",
)


@dataclass(frozen=True, slots=True)
class CallbackTotals:
    """Callbacks asked for, answered, and replies forwarded to the original URL."""

    asked: int
    answered: int
    forwarded: int


CALLBACKS: Final = Figure(
    CallbackTotals,
    f"""
SELECT COALESCE(sum(asked), 0)::bigint, COALESCE(sum(answered), 0)::bigint, COALESCE(sum(forwarded), 0)::bigint
  FROM analytics_callbacks WHERE {IN_RANGE}
""",
)

VOLUME: Final = Figure(
    tuple_of,
    "SELECT COALESCE(sum(messages), 0)::bigint, COALESCE(sum(bytes), 0)::bigint FROM analytics_volume"
    f" WHERE {IN_RANGE}",
)
"""Published messages, and the bytes of their bodies."""
MESSAGES_BY_SENDER: Final = Figure(
    tuple_of, f"SELECT sender, sum(messages)::bigint FROM analytics_senders WHERE {IN_RANGE} GROUP BY 1 ORDER BY 1"
)
MESSAGES_BY_PUBLISHER: Final = Figure(
    tuple_of,
    f"""
WITH published AS (
  SELECT {STEP} AS step, publisher, sum(messages) AS messages FROM analytics_volume WHERE {IN_RANGE} GROUP BY 1, 2),
most AS (
  SELECT publisher FROM published
   GROUP BY publisher ORDER BY sum(messages) DESC, publisher COLLATE "C" LIMIT {MAX_PUBLISHERS})
SELECT step, most.publisher, sum(messages)::bigint
  FROM published LEFT JOIN most USING (publisher) GROUP BY 1, 2
""",
)
"""By step and publisher: the busiest by name, all others as None; management keys have an empty name."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one endpoint took of its group."""

    group_of: int
    """The group's first subscription, which identifies it."""
    event_type: str
    subscription_id: int | None
    subscriber: str
    endpoint: str
    delivered: int
    redundant: int
    delivered_of_group: int


SHARES: Final = Figure(
    Share,
    f"""
SELECT group_of, event_type, subscription_id, subscriber, endpoint, sum(delivered)::bigint, sum(redundant)::bigint,
       sum(sum(delivered)) OVER (PARTITION BY group_of)::bigint
  FROM analytics_shares WHERE {SELECTED}
 GROUP BY group_of, event_type, subscription_id, subscriber, endpoint
 ORDER BY 8 DESC, group_of, 6 DESC LIMIT 50
""",
)


@dataclass(frozen=True, slots=True)
class AuditTotals:
    """What the ordering audit checked and found."""

    checked: int
    inversions: int
    explained_inversions: int
    duplicates: int
    explained_duplicates: int

    @property
    def unexplained(self) -> int:
        """How many the contract has no explanation for: must be 0."""
        return self.inversions + self.duplicates - self.explained_inversions - self.explained_duplicates


AUDIT: Final = Figure(
    AuditTotals,
    f"""
SELECT COALESCE(sum(checked), 0)::bigint, COALESCE(sum(inversions), 0)::bigint,
       COALESCE(sum(explained_inversions), 0)::bigint, COALESCE(sum(duplicates), 0)::bigint,
       COALESCE(sum(explained_duplicates), 0)::bigint
  FROM analytics_audit WHERE {SELECTED}
""",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One inversion or duplicate."""

    at: dt.datetime
    subscriber: str
    finding: str
    delivery_id: int | None
    other_id: int | None
    explanation: str


FINDINGS: Final = Figure(
    Finding,
    f"""
SELECT at, subscriber, finding, delivery_id, other_id, explanation FROM analytics_findings WHERE {SELECTED}
 ORDER BY explanation <> '', at DESC, id LIMIT 50
""",
)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One unusual measure of one subscriber in one hour."""

    hour: dt.datetime
    subscriber: str
    metric: str
    value: float
    median: float
    """Of the same hour in the four weeks before."""
    score: float


ANOMALIES: Final = Figure(
    Anomaly,
    f"""
SELECT hour, subscriber, metric, value, median, score FROM analytics_anomalies WHERE {SELECTED}
 ORDER BY abs(score) DESC, hour DESC, id LIMIT 30
""",
)

COVERED: Final = Figure(
    tuple_of,
    """
SELECT lower(piece), upper(piece)
  FROM unnest((SELECT range_agg(tstzrange(start, "end")) FROM analytics_runwindow
                WHERE state = 'PASSED' AND start < %(end)s AND "end" > %(start)s)
              * tstzmultirange(tstzrange(%(start)s, %(end)s))) AS piece
 ORDER BY 1
""",
)
"""The parts of a range that are summarized, the earliest first, not overlapping."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The time from published to delivered, in milliseconds, within one per cent."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, histogram: Histogram) -> Self:
        """Return the quantiles of a histogram that is not empty."""
        return cls(*(quantile(histogram, share) for share in (0.5, 0.95, 0.99)))


def latency(histograms: Mapping[dt.datetime, Histogram]) -> Quantiles | None:
    """Return the quantiles of all steps together; None if nothing was delivered."""
    histogram = merged(histograms.values())
    return Quantiles.of(histogram) if histogram else None


def balance(messages: Mapping[int, int]) -> float | None:
    """Return the busiest sender's messages over the senders' mean: 1.0 is even; None without messages."""
    total = sum(messages.values())
    return max(messages.values()) * len(messages) / total if total else None


class DashboardData:
    """The figures of a selection that one page needs several times."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection

    @cached_property
    def outcomes(self) -> dict[tuple[dt.datetime, str], int]:
        """How many deliveries ended, by step and status."""
        return {(at, status): number for at, status, number in OUTCOMES.all(self.selection)}

    @cached_property
    def histograms(self) -> dict[dt.datetime, dict[int, int]]:
        """How long deliveries took: counts by step and bucket."""
        found: dict[dt.datetime, dict[int, int]] = defaultdict(dict)
        for at, bucket, number in HISTOGRAMS.all(self.selection):
            found[at][bucket] = number
        return found

    @cached_property
    def audit(self) -> AuditTotals:
        """What the ordering audit found."""
        return AUDIT.one(self.selection)
