"""Summaries on a few literal rows; `test_expected_summaries` compares what counts and sums with SQL on random ones."""

import datetime as dt
import math
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from analytics.pipeline.job import Window
from analytics.pipeline.quantiles import GROWTH, MAX_MS, quantile
from analytics.pipeline.tables import (
    BACKLOG,
    BUDGETS,
    FINDINGS,
    LATENCY,
    RELIABILITY,
    SENDERS,
    SHARES,
    SILVER_DELIVERIES,
)
from analytics.pipeline.transforms import frames
from analytics.pipeline.transforms.daily import anomalies, budgets
from analytics.pipeline.transforms.hourly import (
    BACKLOG_SECONDS,
    HOURLY_SUMMARIES,
    backlog,
    reliability,
    senders,
    shares,
)
from analytics.pipeline.transforms.silver import silver
from analytics.vocabulary import vocabulary
from tests.support.spark_frames import DAY, WINDOW, Row, at, facts, frame, rows_of, silver_of
from tests.support.stored_summaries import bucket_of

WORDS = vocabulary()
ABC: Row = {"subscriber_id": 1, "subscriber": "ABC", "event_type_id": 7, "event_type": "Create", "kind": "TOPIC"}
ENDED: Row = {**ABC, "status": "DELIVERED", "attempts": 1, "fetches": 0, "finished_at": at("10:30")}

HOUR: Final = Window(at("10:00"), at("11:00"))
KNOWN: Final[dict[str, list[Row]]] = {
    "subscribers": [{"id": 1, "name": "ABC"}],
    "subscriptions": [{"id": 3, "subscriber_id": 1}],
    "lines": [{"id": 5, "lane": "main", "subscriber_id": 1}, {"id": 6, "lane": "callback"}],
}
ABC_OWNER: Final = {"subscriber_id": 1, "subscriber": "ABC"}
NOBODY: Final = {"subscriber_id": None, "subscriber": ""}

SECOND: Final = st.integers(-4000, 2 * 3600)
STAYS: Final = st.lists(st.tuples(st.integers(1, 20), SECOND, st.integers(0, 5000)), min_size=200, max_size=200)
"""Subscriber, second of the hour at which it was created, and how many seconds it took."""

BUCKETS = 2200
"""Enough for every number of 63 bits."""

KNOWN_HOURS: Final = frozenset(DAY + dt.timedelta(hours=number) for number in range(-28 * 24, 12))
"""Of this day nothing is known from noon on."""
PAST: Final = [90, 110, 95, 105, 100, 100, 98]


def test_deliveries_that_ended_after_the_window_are_not_counted_as_ended(spark: SparkSession) -> None:
    """It may have its last status by the time it is read."""
    later = {**ENDED, "finished_at": None, "group_id": 5, "sender": 0, "subscription_id": 3}
    unended = silver_of(spark, deliveries=[{**later, "id": 1}, {**later, "id": 2, "kind": WORDS.callback_reply_kind}])
    assert {table: rows_of(make(unended, WINDOW, WORDS)) for table, make in HOURLY_SUMMARIES.items()} == {
        table: [] for table in HOURLY_SUMMARIES
    }
    one_ended = silver_of(spark, deliveries=[{**later, "id": 1}, {**later, "id": 2, "finished_at": at("10:30")}])
    assert rows_of(HOURLY_SUMMARIES[FINDINGS](one_ended, WINDOW, WORDS)) == []


def test_new_statuses_and_kinds_appear_without_code(spark: SparkSession) -> None:
    words = replace(
        WORDS, statuses=(*WORDS.statuses, "SHREDDED", "LOST"), kinds=("CARRIER", *WORDS.kinds), neutral=("SHREDDED",)
    )
    given = facts(
        spark,
        subscriptions=[{"id": 3, "kind": "CARRIER"}],
        deliveries=[
            {"id": n, "subscription_id": 3, "status": status, "attempts": 1, "finished_at": at("10:30")}
            for n, status in enumerate(["SHREDDED", "LOST", "LOST", "DELIVERED"])
        ],
    )
    (row,) = rows_of(HOURLY_SUMMARIES[RELIABILITY](silver(given, words), WINDOW, words))
    assert (row["kind"], row["by_status"]) == ("CARRIER", {"SHREDDED": 1, "LOST": 2, "DELIVERED": 1})
    assert (row["deliveries"], row["eligible"], row["delivered"]) == (4, 3, 1)


def test_hours_are_in_utc(spark: SparkSession) -> None:
    late = DAY + dt.timedelta(hours=23, minutes=59, seconds=59, microseconds=999_999)
    (row,) = rows_of(reliability(frame(spark, SILVER_DELIVERIES, [{**ENDED, "id": 1, "finished_at": late}]), WORDS))
    assert row["hour"] == at("23:00")


def ended_in_group(number: int, group: int, status: str, finished: str | None, **more: Any) -> Row:
    """Return a delivery of a group; its subscription has the number 3 or 4 and is ABC's."""
    owner = {"subscriber_id": 1, "subscriber": "ABC", "event_type": "Build", "endpoint": "https://abc.example"}
    row = {"id": number, "group_id": group, "sender": 2, "status": status, "subscription_id": 3, **owner}
    return {**row, "finished_at": at(finished) if finished else None, **more}


ROWS: Final = [
    ended_in_group(10, 10, "REDUNDANT", "10:01"),
    ended_in_group(11, 10, "DELIVERED", "10:01", subscription_id=4),
    ended_in_group(12, 12, "DELIVERED", "10:02"),
    ended_in_group(13, 12, "REDUNDANT", "10:02", subscription_id=4),
    ended_in_group(14, 14, "REJECTED", "11:00", subscription_id=4),
    ended_in_group(15, 14, "PENDING", None),
    ended_in_group(16, 16, "DELIVERED", "10:03", sender=0, subscription_id=4),
    ended_in_group(17, 17, "DELIVERED", "10:03", sender=None, group_id=None),
]


@pytest.mark.behaviour("6.2")
def test_senders_count_what_they_ended_by_hour(spark: SparkSession) -> None:
    made = senders(frame(spark, SILVER_DELIVERIES, ROWS), WORDS)
    rows = [
        {
            "hour": at("10:00"),
            "sender": 2,
            "messages": 2,
            "deliveries": 4,
            "by_status": {"DELIVERED": 2, "REDUNDANT": 2},
        },
        {"hour": at("10:00"), "sender": 0, "messages": 1, "deliveries": 1, "by_status": {"DELIVERED": 1}},
        {"hour": at("11:00"), "sender": 2, "messages": 0, "deliveries": 1, "by_status": {"REJECTED": 1}},
    ]
    assertDataFrameEqual(made, frame(spark, SENDERS, rows))


@pytest.mark.behaviour("6.3")
def test_a_group_is_identified_by_its_first_subscription_even_if_unfinished(spark: SparkSession) -> None:
    owner = {"subscriber_id": 1, "subscriber": "ABC", "event_type": "Build", "endpoint": "https://abc.example"}
    both = {"hour": at("10:00"), "group_of": 3, "deliveries": 2, "delivered": 1, "redundant": 1, **owner}
    one = {**both, "deliveries": 1, "delivered": 0, "redundant": 0}
    rows = [
        {**both, "subscription_id": 3},
        {**both, "subscription_id": 4},
        {**one, "hour": at("11:00"), "subscription_id": 4},
        {**one, "group_of": 4, "subscription_id": 4, "delivered": 1},
    ]
    made = shares(frame(spark, SILVER_DELIVERIES, ROWS), WORDS)
    assertDataFrameEqual(made, frame(spark, SHARES, rows))


def counted(at_minute: int, deliveries: int, owner: Row) -> Row:
    return {"at": HOUR.start + dt.timedelta(minutes=at_minute), "deliveries": deliveries, **owner}


def test_the_backlog_counts_deliveries_from_publish_to_end(spark: SparkSession) -> None:
    ended = [
        {**ABC_OWNER, "created_at": at("09:50"), "finished_at": at("10:07")},
        {**ABC_OWNER, "created_at": at("10:05"), "finished_at": at("10:10")},
        {**ABC_OWNER, "created_at": at("10:11"), "finished_at": at("10:14:59")},
        {**ABC_OWNER, "created_at": at("10:00"), "finished_at": None},
        {**ABC_OWNER, "created_at": at("11:20"), "finished_at": at("10:02")},  # the clock was set back
    ]
    waiting: list[Row] = [
        {"subscription_id": 3, "line_id": 5, "since": at("10:50"), "deliveries": 4},
        {"subscription_id": 4, "line_id": 5, "since": at("10:55"), "deliveries": 2},
        {"subscription_id": 3, "line_id": 5, "since": at("11:00"), "deliveries": 9},
        {"subscription_id": None, "line_id": 6, "since": at("10:55"), "deliveries": 1},
    ]
    rows = [
        counted(0, 1, ABC_OWNER),
        counted(5, 2, ABC_OWNER),
        counted(50, 4, ABC_OWNER),
        counted(55, 6, ABC_OWNER),
        counted(55, 1, NOBODY),
    ]
    made = backlog(silver_of(spark, **KNOWN, deliveries=ended, waiting=waiting), HOUR)
    assertDataFrameEqual(made, frame(spark, BACKLOG, rows))


def moment(second: int) -> dt.datetime:
    return HOUR.start + dt.timedelta(seconds=second)


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(STAYS)
def test_the_backlog_is_what_has_begun_and_not_ended(spark: SparkSession, stays: list[tuple[int, int, int]]) -> None:
    made = [(owner, second, second + took) for owner, second, took in stays if second < 3600]
    ended = [
        {"subscriber_id": owner, "subscriber": "", "created_at": moment(start), "finished_at": moment(end)}
        for owner, start, end in made
        if 0 <= end < 3600
    ]
    still = Counter(
        (owner, max(0, -(-start // BACKLOG_SECONDS) * BACKLOG_SECONDS)) for owner, start, end in made if end >= 3600
    )
    waiting = [
        {"subscription_id": owner, "since": moment(at), "deliveries": count} for (owner, at), count in still.items()
    ]
    subscriptions = [{"id": owner, "subscriber_id": owner} for owner in range(1, 21)]
    expected = Counter(
        (owner, second)
        for second in range(0, 3600, BACKLOG_SECONDS)
        for owner, start, end in made
        if start <= second < end
    )
    rows = rows_of(backlog(silver_of(spark, deliveries=ended, waiting=waiting, subscriptions=subscriptions), HOUR))
    assert {(row["subscriber_id"], row["at"]): row["deliveries"] for row in rows} == {
        (owner, moment(second)): count for (owner, second), count in expected.items()
    }


def test_part_of_an_hour_has_the_moments_within_it(spark: SparkSession) -> None:
    part = Window(HOUR.start, HOUR.start + dt.timedelta(minutes=37, seconds=12))
    waiting: list[Row] = [{"subscription_id": 3, "line_id": 5, "since": at("10:25"), "deliveries": 4}]
    rows = [counted(25, 4, ABC_OWNER), counted(30, 4, ABC_OWNER), counted(35, 4, ABC_OWNER)]
    assertDataFrameEqual(backlog(silver_of(spark, **KNOWN, waiting=waiting), part), frame(spark, BACKLOG, rows))


def test_spark_and_python_agree_at_every_bucket_boundary(spark: SparkSession) -> None:
    borders = (math.floor(Fraction(str(GROWTH)) ** bucket) for bucket in range(BUCKETS))
    times = sorted({-(2**63), -1, 0, MAX_MS, 2**63 - 1, *(ms for longest in borders for ms in (longest, longest + 1))})
    frame = spark.createDataFrame([(ms,) for ms in times], "ms long")
    made = frame.select("ms", frames.bucket_of(F.col("ms")).alias("bucket")).toArrow().to_pylist()
    assert {row["ms"]: row["bucket"] for row in made} == {ms: bucket_of(ms) for ms in times}


def ended_hour(days_ago: int, hour: int, eligible: int, delivered: int | None = None, **more: Any) -> Row:
    """Return an hour of subscriber ABC's reliability."""
    delivered = eligible if delivered is None else delivered
    when = DAY + dt.timedelta(days=-days_ago, hours=hour)
    counts = {"deliveries": eligible, "eligible": eligible, "delivered": delivered}
    return {"hour": when, "subscriber_id": 1, "subscriber": "ABC", "event_type_id": 7, **counts, **more}


def test_a_budget_covers_the_day_and_the_four_weeks_that_end_with_it(spark: SparkSession) -> None:
    rows = [
        ended_hour(28, 23, 1000, 0),
        ended_hour(27, 0, 100, 98, subscriber="called ABC before"),
        ended_hour(0, 3, 50, 49),
        ended_hour(0, 4, 50, 50, event_type_id=8),
        ended_hour(-1, 0, 1000, 0),
        ended_hour(3, 0, 10, 5, subscriber_id=2, subscriber="quiet today"),
        ended_hour(3, 0, 0, subscriber_id=3, subscriber="only neutral"),
        ended_hour(3, 0, 10, 5, subscriber_id=None, subscriber=""),
    ]
    made = budgets(frame(spark, RELIABILITY, rows), DAY.date(), 0.75)
    named = {"day": DAY.date(), "objective": 0.75}
    abc = {"subscriber_id": 1, "subscriber": "ABC", "eligible": 100, "bad": 1, "eligible_28": 200, "bad_28": 3}
    quiet = {"subscriber_id": 2, "subscriber": "quiet today", "eligible": 0, "bad": 0, "eligible_28": 10, "bad_28": 5}
    expected = [{**named, **abc, "spent": 0.06}, {**named, **quiet, "spent": 2.0}]
    assertDataFrameEqual(made, frame(spark, BUDGETS, expected))


def test_with_an_objective_of_one_each_failure_spends_the_budget(spark: SparkSession) -> None:
    rows = [ended_hour(0, 3, 10, 8), ended_hour(0, 3, 10, subscriber_id=2)]
    made = rows_of(budgets(frame(spark, RELIABILITY, rows), DAY.date(), 1.0))
    assert sorted(row["spent"] for row in made) == [0.0, 2.0]


def usual(hour: int = 3, past: list[int] = PAST, **more: Any) -> list[Row]:
    return [ended_hour(day, hour, count, **more) for day, count in enumerate(past, 1)]


def waited(days_ago: int, ms: int, count: int, **more: Any) -> Row:
    """Return an hour of the same subscriber's latency, each delivery of which took `ms`."""
    when = DAY + dt.timedelta(days=-days_ago, hours=3)
    times = {"measure": "delivery", "count": count, "max_ms": ms, "histogram": {bucket_of(ms): count}}
    return {"hour": when, "subscriber_id": 1, "subscriber": "ABC", "event_type_id": 7, **times, **more}


def found(
    spark: SparkSession,
    reliability: list[Row],
    latency: Sequence[Row] = (),
    known: Collection[dt.datetime] = KNOWN_HOURS,
) -> list[tuple[Any, ...]]:
    made = anomalies(frame(spark, RELIABILITY, reliability), frame(spark, LATENCY, latency), DAY.date(), known)
    return sorted(
        (row["hour"].hour, row["subscriber"], row["metric"], row["value"], row["median"], row["spread"], row["past"])
        for row in rows_of(made)
    )


def test_a_value_far_from_the_median_is_an_anomaly_scored_by_the_robust_z(spark: SparkSession) -> None:
    reliability = frame(spark, RELIABILITY, [*usual(), ended_hour(0, 3, 200)])
    (row,) = rows_of(anomalies(reliability, frame(spark, LATENCY), DAY.date(), KNOWN_HOURS))
    median = statistics.median(PAST)
    spread = max(statistics.median(abs(one - median) for one in PAST), 0.1 * median)
    assert row["score"] == pytest.approx(0.6745 * (200 - median) / spread)
    assert (row["hour"], row["value"], row["median"], row["spread"]) == (at("03:00"), 200.0, median, spread)


def test_which_hours_are_anomalies(spark: SparkSession) -> None:
    """Each subscriber is a case of its own."""

    def of(number: int, name: str, rows: list[Row]) -> list[Row]:
        return [{**row, "subscriber_id": number, "subscriber": name} for row in rows]

    reliability = [
        *of(1, "as usual", [*usual(), ended_hour(0, 3, 108)]),
        *of(2, "silent", usual()),
        *of(3, "silent after noon, of which nothing is known", usual(hour=13)),
        *of(4, "known for six days", [*usual(past=PAST[:6]), ended_hour(0, 3, 500)]),
        *of(5, "constant and a little more", [*usual(past=[100] * 7), ended_hour(0, 3, 110)]),
        *of(6, "constant and much more", [*usual(past=[100] * 7), ended_hour(0, 3, 160)]),
        *of(7, "failing", [*usual(past=[100] * 7), ended_hour(0, 3, 100, 80)]),
        *of(8, "nothing before, and then much", [ended_hour(7, 4, 1), ended_hour(8, 3, 1), ended_hour(0, 3, 100)]),
        *of(
            9, "two event types", [*usual(past=[50] * 7), *usual(past=[50] * 7, event_type_id=8), ended_hour(0, 3, 100)]
        ),
        *of(10, "four weeks ago it was otherwise", [*usual(), ended_hour(29, 3, 999), ended_hour(0, 3, 100)]),
    ]
    assert found(spark, reliability) == [
        (3, "constant and much more", "deliveries", 160.0, 100.0, 10.0, 7),
        (3, "failing", "failure_rate", pytest.approx(0.2), 0.0, 0.01, 7),
        (3, "nothing before, and then much", "deliveries", 100.0, 0.0, 5.0, 8),
        (3, "silent", "deliveries", 0.0, 100.0, 10.0, 7),
    ]


def test_an_unknown_hour_has_no_values(spark: SparkSession) -> None:
    """If only some hours were summarized, there are holes."""
    holes = {DAY + dt.timedelta(hours=3), DAY + dt.timedelta(days=-8, hours=5), DAY + dt.timedelta(days=-9, hours=5)}
    begun = [ended_hour(0, 3, 1), ended_hour(8, 5, 1)]
    reliability = [*usual(), *usual(hour=5, past=[100] * 7), ended_hour(10, 5, 100), *begun]
    assert found(spark, reliability, known=KNOWN_HOURS - holes) == [(5, "ABC", "deliveries", 0.0, 100.0, 10.0, 8)]


def test_latency_anomalies_merge_all_event_types(spark: SparkSession) -> None:
    past = [row for day in range(1, 8) for row in (waited(day, 20, 99), waited(day, 20, 1, event_type_id=8))]
    today = [waited(0, 20, 94), waited(0, 2000, 6, event_type_id=8), waited(0, 9000, 99, measure="attempt")]
    reliability = [*usual(past=[100] * 7), ended_hour(0, 3, 100)]
    long, usually = quantile({bucket_of(2000): 1}, 0.95), quantile({bucket_of(20): 1}, 0.95)
    (row,) = found(spark, reliability, [*past, *today])
    assert row == (3, "ABC", "p95_ms", pytest.approx(long), pytest.approx(usually), 5.0, 7)
