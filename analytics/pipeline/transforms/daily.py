"""The daily summaries: error budgets, and hours unlike the same hour of the four weeks before."""

import datetime as dt
from collections.abc import Collection
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import DAY
from analytics.pipeline.tables import ANOMALIES, BUDGETS
from analytics.pipeline.transforms.frames import merged, shaped

DAYS: Final = 28
"""Over so many, the day itself the last of them, a budget is reckoned: four weeks, whatever day of the week it is."""

DAYS_BEFORE: Final = 28
MIN_PAST: Final = 7
"""With fewer values nobody knows what is usual."""
FAR: Final = 3.5
"""From this robust z on, either way, a value is an outlier (Iglewicz and Hoaglin 1993)."""
NORMAL: Final = 0.6745
"""The median absolute deviation of a normal distribution whose standard deviation is 1."""

FLOORS: Final = {"deliveries": (5.0, 0.1), "failure_rate": (0.01, 0.0), "p95_ms": (5.0, 0.1)}
"""Of each metric, the least spread, and the least as a share of its median: a constant past has none of its own."""
OWN_HOUR: Final = ["hour", "subscriber_id"]


def budgets(reliability: DataFrame, day: dt.date, objective: float) -> DataFrame:
    """Return a row per subscriber that had eligible deliveries in the 28 days up to `day`.

    `reliability` is the summary of at least these days; `objective` the share that should be delivered, 0 to 1.

    - `eligible`, `bad`: of the day, how many deliveries were to be DELIVERED, and how many of them were not
    - `eligible_28`, `bad_28`: the same of the 28 days
    - `spent`: which share of what may fail in 28 days has failed: `bad_28 / ((1 - objective) · eligible_28)`; where
      nothing may, as much as has
    """
    first = day - dt.timedelta(days=DAYS - 1)
    failed = F.col("eligible") - F.col("delivered")
    is_today = F.to_date("hour") == F.lit(day)
    sums = {
        "eligible": _sum(F.when(is_today, F.col("eligible"))),
        "bad": _sum(F.when(is_today, failed)),
        "eligible_28": _sum(F.col("eligible")),
        "bad_28": _sum(failed),
    }
    summed = (
        reliability.where(F.to_date("hour").between(first, day) & F.isnotnull("subscriber_id"))
        .groupBy("subscriber_id")
        .agg(F.max_by("subscriber", "hour").alias("subscriber"), *(column.alias(name) for name, column in sums.items()))
        .where("eligible_28 > 0")
    )
    may_fail = F.lit(1 - objective) * F.col("eligible_28")
    spent = F.coalesce(F.try_divide("bad_28", may_fail), F.col("bad_28"))
    return shaped(summed.withColumns({"day": F.lit(day), "objective": F.lit(objective), "spent": spent}), BUDGETS)


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))


def anomalies(reliability: DataFrame, latency: DataFrame, day: dt.date, known: Collection[dt.datetime]) -> DataFrame:
    """Return a row per hour, subscriber and metric far from the same hour of day in the 28 days before.

    `known` are the beginnings of the hours that are known from beginning to end, of the day and of those before; both
    summaries are of at least these. Metrics: `deliveries` that ended in the hour; `failure_rate`, the share of the
    eligible that were not DELIVERED; `p95_ms` from published to delivered. A known hour without traffic has 0
    deliveries, and no value of the others, from the subscriber's first hour on; an hour that is not known has none.

    - `median` of the `past` values, at least 7; `spread`: the median of how far they are from it, but not below a floor
    - `score`: the robust z, `0.6745 · (value - median) / spread`, of which 3.5 and more, either way, is kept
    """
    midnight = dt.datetime.combine(day, dt.time(), dt.UTC)
    hours = [hour for hour in known if midnight - DAYS_BEFORE * DAY <= hour < midnight + DAY]
    measured = _measured(reliability, latency, hours).withColumn("is_now", F.col("hour") >= F.lit(midnight))
    distances = F.transform("values", lambda value: F.abs(value - F.col("median")))
    return shaped(
        _by_hour_of_day(measured)
        .where(F.isnotnull("value") & (F.size("values") >= MIN_PAST))
        .withColumn("past", F.size("values"))
        .withColumn("median", _median(F.col("values")))
        .withColumn("spread", F.greatest(_median(distances), _floor()))
        .withColumn("score", F.lit(NORMAL) * (F.col("value") - F.col("median")) / F.col("spread"))
        .where(F.abs("score") >= FAR),
        ANOMALIES,
    )


def _by_hour_of_day(measured: DataFrame) -> DataFrame:
    """Return a row per subscriber, hour of day and metric: the `value` of the day, and the `values` of those before."""
    return measured.groupBy("subscriber_id", F.hour("hour").alias("of_day"), "metric").agg(
        F.max_by("subscriber", "hour").alias("subscriber"),
        F.max(F.when(F.col("is_now"), F.col("hour"))).alias("hour"),
        F.max(F.when(F.col("is_now"), F.col("value"))).alias("value"),
        F.collect_list(F.when(~F.col("is_now"), F.col("value"))).alias("values"),
    )


def _measured(reliability: DataFrame, latency: DataFrame, hours: Collection[dt.datetime]) -> DataFrame:
    """Return a row per hour, subscriber and metric with its `value`, which none is null."""
    known = reliability.sparkSession.createDataFrame(pa.table({"hour": pa.array(hours, pa.timestamp("us", "UTC"))}))
    ended = reliability.where("subscriber_id IS NOT NULL").join(F.broadcast(known), "hour", "left_semi")
    sums = [F.sum(name).alias(name) for name in ("deliveries", "delivered", "eligible")]
    by_hour = ended.groupBy(*OWN_HOUR).agg(*sums)
    waited = merged(latency.where("measure = 'delivery'"), OWN_HOUR).select(*OWN_HOUR, "p95_ms")
    values = {
        "deliveries": F.coalesce("deliveries", F.lit(0)).cast("double"),
        "failure_rate": F.lit(1.0) - F.try_divide("delivered", "eligible"),
        "p95_ms": F.col("p95_ms"),
    }
    metrics = F.array(*(F.struct(F.lit(name).alias("metric"), value.alias("value")) for name, value in values.items()))
    joined = _each(ended, known).join(by_hour, OWN_HOUR, "left").join(waited, OWN_HOUR, "left")
    return joined.select(*OWN_HOUR, "subscriber", F.inline(metrics)).where("value IS NOT NULL")


def _each(ended: DataFrame, known: DataFrame) -> DataFrame:
    """Return every known hour of each subscriber, from its first on."""
    subscribers = ended.groupBy("subscriber_id").agg(
        F.max_by("subscriber", "hour").alias("subscriber"), F.min("hour").alias("since")
    )
    return subscribers.join(F.broadcast(known), F.col("hour") >= F.col("since")).drop("since")


def _median(values: Column) -> Column:
    """Return the middle of an array's values, or the mean of the two in the middle."""
    in_order, size = F.array_sort(values), F.size(values)
    low, high = F.floor((size - 1) / 2).cast("int"), F.floor(size / 2).cast("int")
    return (F.get(in_order, low) + F.get(in_order, high)) / 2


def _floor() -> Column:
    cases = [
        F.when(F.col("metric") == metric, F.greatest(F.lit(least), F.col("median") * share))
        for metric, (least, share) in FLOORS.items()
    ]
    return F.coalesce(*cases)
