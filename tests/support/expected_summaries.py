"""Literal frames, and the summaries in plain Python as docs/reference/summaries.md defines them."""

import datetime as dt
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.quantiles import bucket_of
from analytics.pipeline.tables import AUDIT, BRONZE, SILVER, Table
from analytics.pipeline.transforms.frames import Facts, Silver

Row = Mapping[str, Any]

DAY: Final = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
WINDOW: Final = Window(DAY, DAY + dt.timedelta(days=1))

Group = tuple[Any, ...]

MILLISECOND: Final = dt.timedelta(milliseconds=1)

SummaryFacts = Mapping[str, list[Row]]

UNKNOWN: Final[Row] = {"name": "", "kind": "", "endpoint": "", "subscriber_id": None, "delivery_mode": ""}


def at(text: str) -> dt.datetime:
    """Return a moment of the day, `10:30`, `10:30:05` or `10:30:05.125`."""
    return dt.datetime.combine(DAY, dt.time.fromisoformat(text), dt.UTC)


def frame(spark: SparkSession, table: Table, rows: Iterable[Row] = ()) -> DataFrame:
    """Return a frame with the columns of `table`; what a row does not name is null."""
    schema = cast("StructType", StructType.fromDDL(table.columns))
    listed = [dict(row) for row in rows]
    assert all(row.keys() <= set(schema.names) for row in listed), f"{table.path} has no such column"
    return spark.createDataFrame(pa.Table.from_pylist(listed, to_arrow_schema(schema, timezone="UTC")), schema)


def facts(spark: SparkSession, **rows: Iterable[Row]) -> Facts:
    """Return the facts in which tables have these rows, and the others none."""
    return Facts(**{table.name: frame(spark, table, rows.get(table.name, ())) for table in BRONZE})


def silver_of(spark: SparkSession, **rows: Iterable[Row]) -> Silver:
    """Return silver in which tables have these rows, and the others none."""
    tables = {table.name: table for table in (*BRONZE, *SILVER, AUDIT)}
    return Silver(**{one.name: frame(spark, tables[one.name], rows.get(one.name, ())) for one in fields(Silver)})


def rows_of(made: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame: instants in UTC, maps as dicts."""
    return [
        {name: dict(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in made.toArrow().to_pylist()
    ]


def once(rows: Iterable[Row]) -> dict[int, Row]:
    return {row["id"]: row for row in rows}


def grouped(rows: Iterable[Any], key: Callable[[Any], Group], summed: Callable[[list[Any]], Row]) -> dict[Group, Row]:
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {group: summed(members) for group, members in groups.items()}


def quantile_values(times: list[int]) -> Row:
    """Return what is exact; of quantiles the time itself, from which a bucket's middle is less than 1 % away."""
    places = {f"p{share}_ms": max(math.ceil(Fraction(share, 100) * len(times)), 1) for share in (50, 90, 95, 99)}
    exact = {name: sorted(times)[place - 1] for name, place in places.items()}
    return {"count": len(times), "max_ms": max(times), "histogram": Counter(map(bucket_of, times)), **exact}


def hour(moment: dt.datetime) -> dt.datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def milliseconds_between(start: dt.datetime, end: dt.datetime) -> int:
    return (end - start) // MILLISECOND


def due(delivery: Row) -> dt.datetime:
    """Return since when a delivery that has ended could have been sent."""
    since: dt.datetime = max(delivery["created_at"], delivery["not_before"] or delivery["created_at"])
    ended: dt.datetime = delivery["finished_at"]
    return min(since, ended)


class ExpectedSummaries:
    """One window's summaries: a dict for each table, of values by what their key and names are."""

    def __init__(self, facts: SummaryFacts, window: Window, words: Vocabulary) -> None:
        self.facts, self.window, self.words = facts, window, words
        self.deliveries = once([*facts["unfinished"], *facts["deliveries"]])
        self.attempts = once(facts["attempts"])
        self.messages = once(facts["messages"]).values()

    def reliability(self) -> dict[Group, Row]:
        def summed(rows: list[Row]) -> Row:
            delivered = [row for row in rows if row["status"] == self.words.delivered]
            return {
                "deliveries": len(rows),
                "delivered": len(delivered),
                "eligible": sum(row["status"] not in self.words.neutral for row in rows),
                "first_attempt": sum(row["attempts"] + row["fetches"] == 1 for row in delivered),
                "attempts": sum(row["attempts"] + row["fetches"] for row in rows),
                "by_status": Counter(row["status"] for row in rows),
            }

        ended = [row for row in self.deliveries.values() if row["finished_at"]]
        return grouped(ended, lambda row: (hour(row["finished_at"]), *self._whose(row)), summed)

    def latency(self) -> dict[Group, Row]:
        times = [
            (
                (hour(row["finished_at"]), *self._whose(row), self._waited(row)),
                milliseconds_between(due(row), row["finished_at"]),
            )
            for row in self.deliveries.values()
            if row["status"] == self.words.delivered
        ]
        tried = [
            ((hour(row["started_at"]), *self._whose(self._delivery(row)), "attempt"), row["duration_ms"])
            for row in self.attempts.values()
        ]
        return grouped(
            [*times, *tried], lambda pair: pair[0], lambda pairs: quantile_values([time for _, time in pairs])
        )

    def endpoints(self) -> dict[Group, Row]:
        def summed(pairs: list[tuple[dt.datetime, Row]]) -> Row:
            rows = [row for at, row in pairs if hour(row["started_at"]) == at]
            return {
                "attempts": len(rows),
                "retries": sum(row["number"] > 1 for row in rows),
                "failures": sum(row["status_code"] not in range(200, 300) for row in rows),
                "held_seconds": sum(self._held_ms(row, at) for at, row in pairs) / 1000,
                "by_class": Counter(map(self._class, rows)),
            }

        def whose(pair: tuple[dt.datetime, Row]) -> Group:
            at, row = pair
            delivery = self._delivery(row)
            subscriber_id, subscriber, _, event_type, kind = self._whose(delivery)
            endpoint = self._known("subscriptions", delivery.get("subscription_id"))["endpoint"]
            about = (subscriber_id, subscriber, event_type, endpoint, kind)
            return (at, delivery.get("subscription_id"), *about)

        hours = [self.window.start + dt.timedelta(hours=number) for number in range(24)]
        pairs = [(at, row) for row in self.attempts.values() for at in hours if self._is_in(row, at)]
        return grouped(pairs, whose, summed)

    def volume(self) -> dict[Group, Row]:
        def summed(rows: list[Row]) -> Row:
            return {
                "messages": len(rows),
                "bytes": sum(row["size"] for row in rows),
                "deliveries": sum(row["deliveries_count"] for row in rows),
                "by_outcome": Counter(row["outcome"] for row in rows),
            }

        def whose(row: Row) -> Group:
            publisher, event_type = row["publisher_id"], row["event_type_id"]
            about = self._known("event_types", event_type)
            named = (publisher, self._known("publishers", publisher)["name"], event_type, about["name"], about["kind"])
            return (hour(row["published_at"]), *named)

        return grouped((row for row in self.messages if row["answers"] is None), whose, summed)

    def callbacks(self) -> dict[Group, Row]:
        forwarded = [
            row
            for row in self.deliveries.values()
            if row["subscription_id"] is None and row["status"] == self.words.delivered
        ]
        steps = [
            *(("asked", row["created_at"], row) for row in once(self.facts["callbacks"]).values()),
            *(("answered", row["published_at"], row) for row in self.messages if row["answers"] is not None),
            *(("forwarded", row["finished_at"], row) for row in forwarded),
        ]

        def whose(step: tuple[str, dt.datetime, Row]) -> Group:
            event_type = step[2]["event_type_id"]
            return (hour(step[1]), event_type, self._known("event_types", event_type)["name"])

        none = dict.fromkeys(("asked", "answered", "forwarded"), 0)
        return grouped(steps, whose, lambda rows: none | Counter(name for name, *_ in rows))

    def _known(self, table: str, key: int | None) -> Row:
        return next(({**UNKNOWN, **row} for row in self.facts[table] if row["id"] == key), UNKNOWN)

    def _delivery(self, attempt: Row) -> Row:
        return self.deliveries.get(attempt["delivery_id"], {})

    def _whose(self, delivery: Row) -> Group:
        """Return subscriber, event type and kind, ids before names."""
        if not delivery:
            return (None, "", None, "", "")
        subscription = self._known("subscriptions", delivery["subscription_id"])
        subscriber_id = subscription["subscriber_id"] or self._known("lines", delivery["line_id"])["subscriber_id"]
        event_type = self._known("event_types", delivery["event_type_id"])
        names = (self._known("subscribers", subscriber_id)["name"], delivery["event_type_id"], event_type["name"])
        return (subscriber_id, *names, self._kind(delivery, subscription["kind"] or event_type["kind"]))

    def _kind(self, delivery: Row, of_subscription: str) -> str:
        if delivery["subscription_id"] is None:
            return self.words.reply_kind
        mode = self._known("subscriptions", delivery["subscription_id"])["delivery_mode"]
        waits_there = mode == self.words.pull_mode and not delivery["attempts"]
        return self.words.pulled_kind if delivery["fetches"] or delivery["unread"] or waits_there else of_subscription

    def _waited(self, delivery: Row) -> str:
        return "mailbox" if self._whose(delivery)[-1] == self.words.pulled_kind else "delivery"

    def _class(self, attempt: Row) -> str:
        status = attempt["status_code"]
        if status is None:
            found = (kind for pattern, kind in self.words.failures if re.match(pattern, attempt["error"]))
            return next(found, self.words.unknown_failure)
        named = {503: "503"}.get(status, f"{status // 100}xx")
        return named if 200 <= status < 600 else "other"

    def _is_in(self, attempt: Row, at: dt.datetime) -> bool:
        """Return whether an attempt was made in an hour, or began before and held until it or longer."""
        began = hour(attempt["started_at"])
        return began == at or (began < at < self._held_until(attempt))

    def _held_ms(self, attempt: Row, at: dt.datetime) -> int:
        """Return how long of an hour."""
        ended = attempt["started_at"] + attempt["duration_ms"] * MILLISECOND
        return max(milliseconds_between(max(ended, at), min(self._held_until(attempt), at + dt.timedelta(hours=1))), 0)

    def _holds(self, attempt: Row, kind: str) -> bool:
        if attempt["meaning"] and kind:
            return bool(attempt["meaning"] == self.words.means_hold)
        return (attempt["status_code"] or 0) in dict(self.words.holding).get(kind, ())

    def _held_until(self, attempt: Row) -> dt.datetime:
        """Return when it went on; where it holds nothing, no later than it started."""
        delivery = self._delivery(attempt)
        if not self._holds(attempt, self._whose(delivery)[-1]):
            return self.window.start
        place = (attempt["started_at"], attempt["id"])
        of_delivery = [row for row in self.attempts.values() if row["delivery_id"] == attempt["delivery_id"]]
        later = [row["started_at"] for row in of_delivery if (row["started_at"], row["id"]) > place]
        until = min(later, default=delivery["finished_at"]) or self.window.end
        return min(until, self.window.end)
