"""The daily summaries: error budgets, and hours unlike the same hour of the four weeks before."""

import datetime as dt
from collections.abc import Collection
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import DAY, midnight
from analytics.pipeline.tables import ANOMALIES, BUDGETS
from analytics.pipeline.transforms.frames import merged, shaped

BUDGET_DAYS: Final = 28
"""The period of a budget, which ends with the day: four weeks have each day of the week equally often."""
DAYS_BEFORE: Final = 28
"""The four weeks before a day that its daily summaries are computed from."""
MIN_PAST: Final = 7
"""With fewer values nothing counts as unusual."""
MIN_SCORE: Final = 3.5
"""From this robust z on, either way, a value is an outlier (Iglewicz and Hoaglin 1993)."""
NORMAL: Final = 0.6745
"""The median absolute deviation of a normal distribution whose standard deviation is 1."""

MIN_SPREADS: Final = {"deliveries": (5.0, 0.1), "failure_rate": (0.01, 0.0), "p95_ms": (5.0, 0.1)}
"""Of each metric, the minimum spread, absolute and as a share of the median: constant values have no spread."""
HOUR_KEYS: Final = ["hour", "subscriber_id"]


def budgets(reliability: DataFrame, day: dt.date, objective: float) -> DataFrame:
    """Return a row per subscriber that had eligible deliveries in the 28 days up to `day`.

    `reliability` covers at least these days; `objective` is the share that should be delivered, 0 to 1. If no failure
    is allowed, `spent` is `bad_28`.
    """
    first = day - dt.timedelta(days=BUDGET_DAYS - 1)
    failed = F.col("eligible") - F.col("delivered")
    is_today = F.to_date("hour") == F.lit(day)
    sums = {
        "eligible": F.when(is_today, F.col("eligible")),
        "bad": F.when(is_today, failed),
        "eligible_28": F.col("eligible"),
        "bad_28": failed,
    }
    summed = (
        reliability.where(F.to_date("hour").between(first, day) & F.isnotnull("subscriber_id"))
        .groupBy("subscriber_id")
        .agg(
            F.max_by("subscriber", "hour").alias("subscriber"),
            *(F.coalesce(F.sum(column), F.lit(0)).alias(name) for name, column in sums.items()),
        )
        .where("eligible_28 > 0")
    )
    allowed = F.lit(1 - objective) * F.col("eligible_28")
    spent = F.coalesce(F.try_divide("bad_28", allowed), F.col("bad_28"))
    return shaped(summed.withColumns({"day": F.lit(day), "objective": F.lit(objective), "spent": spent}), BUDGETS)


def anomalies(reliability: DataFrame, latency: DataFrame, day: dt.date, known: Collection[dt.datetime]) -> DataFrame:
    """Return a row per hour, subscriber and metric far from the same hour of day in the 28 days before.

    `known` are the beginnings of the hours that are summarized completely, of the day and of those before; both
    summaries cover at least these. A known hour without traffic has 0 deliveries and no value of the other metrics,
    from the subscriber's first hour on; an unknown hour has no values.
    """
    begins = midnight(day)
    hours = [hour for hour in known if begins - DAYS_BEFORE * DAY <= hour < begins + DAY]
    is_now = F.col("hour") >= F.lit(begins)
    by_hour_of_day = (
        _measured(reliability, latency, hours)
        .groupBy("subscriber_id", F.hour("hour").alias("of_day"), "metric")
        .agg(
            F.max_by("subscriber", "hour").alias("subscriber"),
            F.max(F.when(is_now, F.col("hour"))).alias("hour"),
            F.max(F.when(is_now, F.col("value"))).alias("value"),
            F.collect_list(F.when(~is_now, F.col("value"))).alias("values"),
        )
    )
    distances = F.transform("values", lambda value: F.abs(value - F.col("median")))
    min_spreads = [
        F.when(F.col("metric") == metric, F.greatest(F.lit(least), F.col("median") * share))
        for metric, (least, share) in MIN_SPREADS.items()
    ]
    return shaped(
        by_hour_of_day.where(F.isnotnull("value") & (F.size("values") >= MIN_PAST))
        .withColumn("past", F.size("values"))
        .withColumn("median", _median(F.col("values")))
        .withColumn("spread", F.greatest(_median(distances), F.coalesce(*min_spreads)))
        .withColumn("score", F.lit(NORMAL) * (F.col("value") - F.col("median")) / F.col("spread"))
        .where(F.abs("score") >= MIN_SCORE),
        ANOMALIES,
    )


def _measured(reliability: DataFrame, latency: DataFrame, hours: Collection[dt.datetime]) -> DataFrame:
    """Return a row per hour, subscriber and metric with a `value`, for known hours since the subscriber's first."""
    known = F.broadcast(
        reliability.sparkSession.createDataFrame(pa.table({"hour": pa.array(hours, pa.timestamp("us", "UTC"))}))
    )
    ended = reliability.where("subscriber_id IS NOT NULL").join(known, "hour", "left_semi")
    subscribers = ended.groupBy("subscriber_id").agg(
        F.max_by("subscriber", "hour").alias("subscriber"), F.min("hour").alias("since")
    )
    by_hour = ended.groupBy(*HOUR_KEYS).agg(
        *(F.sum(name).alias(name) for name in ("deliveries", "delivered", "eligible"))
    )
    latencies = merged(latency.where("measure = 'delivery'"), HOUR_KEYS).select(*HOUR_KEYS, "p95_ms")
    values = {
        "deliveries": F.coalesce("deliveries", F.lit(0)).cast("double"),
        "failure_rate": F.lit(1.0) - F.try_divide("delivered", "eligible"),
        "p95_ms": F.col("p95_ms"),
    }
    metrics = F.array(*(F.struct(F.lit(name).alias("metric"), value.alias("value")) for name, value in values.items()))
    return (
        subscribers.join(known, F.col("hour") >= F.col("since"))
        .join(by_hour, HOUR_KEYS, "left")
        .join(latencies, HOUR_KEYS, "left")
        .select(*HOUR_KEYS, "subscriber", F.inline(metrics))
        .where("value IS NOT NULL")
    )


def _median(values: Column) -> Column:
    """Return the middle of an array's values, or the mean of the two in the middle."""
    in_order, size = F.array_sort(values), F.size(values)
    low, high = F.floor((size - 1) / 2).cast("int"), F.floor(size / 2).cast("int")
    return (F.get(in_order, low) + F.get(in_order, high)) / 2
