"""Error budgets, and hours unlike the same hour of other days."""

import datetime as dt
import statistics
from collections.abc import Collection, Sequence
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from analytics.pipeline.quantiles import bucket_of, quantile
from analytics.pipeline.tables import BUDGETS, LATENCY, RELIABILITY
from analytics.pipeline.transforms.daily import anomalies, budgets
from tests.frames import DAY, Row, at, frame, rows_of


def ended(days_ago: int, hour: int, eligible: int, delivered: int | None = None, **more: Any) -> Row:
    """Return an hour of subscriber ABC's reliability."""
    delivered = eligible if delivered is None else delivered
    when = DAY + dt.timedelta(days=-days_ago, hours=hour)
    counts = {"deliveries": eligible, "eligible": eligible, "delivered": delivered}
    return {"hour": when, "subscriber_id": 1, "subscriber": "ABC", "event_type_id": 7, **counts, **more}


def test_a_budget_is_of_the_day_and_of_the_four_weeks_that_end_with_it(spark: SparkSession) -> None:
    rows = [
        ended(28, 23, 1000, 0),
        ended(27, 0, 100, 98, subscriber="called ABC before"),
        ended(0, 3, 50, 49),
        ended(0, 4, 50, 50, event_type_id=8),
        ended(-1, 0, 1000, 0),
        ended(3, 0, 10, 5, subscriber_id=2, subscriber="quiet today"),
        ended(3, 0, 0, subscriber_id=3, subscriber="only neutral"),
        ended(3, 0, 10, 5, subscriber_id=None, subscriber=""),
    ]
    made = budgets(frame(spark, RELIABILITY, rows), DAY.date(), 0.75)
    named = {"day": DAY.date(), "objective": 0.75}
    abc = {"subscriber_id": 1, "subscriber": "ABC", "eligible": 100, "bad": 1, "eligible_28": 200, "bad_28": 3}
    quiet = {"subscriber_id": 2, "subscriber": "quiet today", "eligible": 0, "bad": 0, "eligible_28": 10, "bad_28": 5}
    expected = [{**named, **abc, "spent": 0.06}, {**named, **quiet, "spent": 2.0}]
    assertDataFrameEqual(made, frame(spark, BUDGETS, expected))


def test_where_nothing_may_fail_each_failure_spends_the_whole(spark: SparkSession) -> None:
    rows = [ended(0, 3, 10, 8), ended(0, 3, 10, subscriber_id=2)]
    made = rows_of(budgets(frame(spark, RELIABILITY, rows), DAY.date(), 1.0))
    assert sorted(row["spent"] for row in made) == [0.0, 2.0]


KNOWN: Final = frozenset(DAY + dt.timedelta(hours=number) for number in range(-28 * 24, 12))
"""Of this day nothing is known from noon on."""
PAST: Final = [90, 110, 95, 105, 100, 100, 98]


def usual(hour: int = 3, past: list[int] = PAST, **more: Any) -> list[Row]:
    return [ended(day, hour, count, **more) for day, count in enumerate(past, 1)]


def waited(days_ago: int, ms: int, count: int, **more: Any) -> Row:
    """Return an hour of the same subscriber's latency, each delivery of which took so long."""
    when = DAY + dt.timedelta(days=-days_ago, hours=3)
    told = {"measure": "delivery", "count": count, "max_ms": ms, "histogram": {bucket_of(ms): count}}
    return {"hour": when, "subscriber_id": 1, "subscriber": "ABC", "event_type_id": 7, **told, **more}


def found(
    spark: SparkSession,
    reliability: list[Row],
    latency: Sequence[Row] = (),
    known: Collection[dt.datetime] = KNOWN,
) -> list[tuple[Any, ...]]:
    made = anomalies(frame(spark, RELIABILITY, reliability), frame(spark, LATENCY, latency), DAY.date(), known)
    return sorted(
        (row["hour"].hour, row["subscriber"], row["metric"], row["value"], row["median"], row["spread"], row["past"])
        for row in rows_of(made)
    )


def test_a_value_far_from_the_usual_is_an_anomaly_and_its_score_the_robust_z(spark: SparkSession) -> None:
    reliability = frame(spark, RELIABILITY, [*usual(), ended(0, 3, 200)])
    (row,) = rows_of(anomalies(reliability, frame(spark, LATENCY), DAY.date(), KNOWN))
    median = statistics.median(PAST)
    spread = max(statistics.median(abs(one - median) for one in PAST), 0.1 * median)
    assert row["score"] == pytest.approx(0.6745 * (200 - median) / spread)
    assert (row["hour"], row["value"], row["median"], row["spread"]) == (at("03:00"), 200.0, median, spread)


def test_which_hours_stand_out(spark: SparkSession) -> None:
    """Each subscriber is a case of its own."""

    def of(number: int, name: str, rows: list[Row]) -> list[Row]:
        return [{**row, "subscriber_id": number, "subscriber": name} for row in rows]

    reliability = [
        *of(1, "as usual", [*usual(), ended(0, 3, 108)]),
        *of(2, "silent", usual()),
        *of(3, "silent after noon, of which nothing is known", usual(hour=13)),
        *of(4, "known for six days", [*usual(past=PAST[:6]), ended(0, 3, 500)]),
        *of(5, "constant and a little more", [*usual(past=[100] * 7), ended(0, 3, 110)]),
        *of(6, "constant and much more", [*usual(past=[100] * 7), ended(0, 3, 160)]),
        *of(7, "failing", [*usual(past=[100] * 7), ended(0, 3, 100, 80)]),
        *of(8, "nothing before, and then much", [ended(7, 4, 1), ended(8, 3, 1), ended(0, 3, 100)]),
        *of(9, "two event types", [*usual(past=[50] * 7), *usual(past=[50] * 7, event_type_id=8), ended(0, 3, 100)]),
        *of(10, "four weeks ago it was otherwise", [*usual(), ended(29, 3, 999), ended(0, 3, 100)]),
    ]
    assert found(spark, reliability) == [
        (3, "constant and much more", "deliveries", 160.0, 100.0, 10.0, 7),
        (3, "failing", "failure_rate", pytest.approx(0.2), 0.0, 0.01, 7),
        (3, "nothing before, and then much", "deliveries", 100.0, 0.0, 5.0, 8),
        (3, "silent", "deliveries", 0.0, 100.0, 10.0, 7),
    ]


def test_an_hour_that_is_not_known_is_neither_silent_nor_usual(spark: SparkSession) -> None:
    """Where somebody had the hours before noon summarized, there are holes."""
    holes = {DAY + dt.timedelta(hours=3), DAY + dt.timedelta(days=-8, hours=5), DAY + dt.timedelta(days=-9, hours=5)}
    begun = [ended(0, 3, 1), ended(8, 5, 1)]
    reliability = [*usual(), *usual(hour=5, past=[100] * 7), ended(10, 5, 100), *begun]
    assert found(spark, reliability, known=KNOWN - holes) == [(5, "ABC", "deliveries", 0.0, 100.0, 10.0, 8)]


def test_waiting_is_of_all_event_types_together(spark: SparkSession) -> None:
    past = [row for day in range(1, 8) for row in (waited(day, 20, 99), waited(day, 20, 1, event_type_id=8))]
    today = [waited(0, 20, 94), waited(0, 2000, 6, event_type_id=8), waited(0, 9000, 99, measure="attempt")]
    reliability = [*usual(past=[100] * 7), ended(0, 3, 100)]
    long, usually = quantile({bucket_of(2000): 1}, 0.95), quantile({bucket_of(20): 1}, 0.95)
    (row,) = found(spark, reliability, [*past, *today])
    assert row == (3, "ABC", "p95_ms", pytest.approx(long), pytest.approx(usually), 5.0, 7)
