"""Histograms of how long things took, and the quantiles of them: the rule of `quantiles`, for frames."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.quantiles import FINEST, GROWTH, LONGEST, NO_TIME

THOUSANDTHS: Final = {"p50_ms": 500, "p90_ms": 900, "p95_ms": 950, "p99_ms": 990}
"""Which share of all took at most that long."""


def with_quantiles(times: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return a row for each value of `keys`: the `histogram` of `ms`, its quantiles, `count` and `max_ms`.

    Counted before anything is exchanged: what travels is at most a row for each bucket and task.
    """
    in_buckets = times.groupBy(*keys, bucket_of(F.col("ms")).alias("bucket"))
    return _described(in_buckets.agg(F.count("*").alias("many"), F.max("ms").alias("max_ms")), keys)


def merged(summaries: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the same of rows that have a `histogram` and `max_ms` each."""
    buckets = summaries.select(*keys, "max_ms", F.explode("histogram").alias("bucket", "many"))
    in_buckets = buckets.groupBy(*keys, "bucket")
    return _described(in_buckets.agg(F.sum("many").alias("many"), F.max("max_ms").alias("max_ms")), keys)


def bucket_of(ms: Column) -> Column:
    """Return the bucket of a time in milliseconds."""
    clipped = F.least(ms.cast("double"), F.lit(float(LONGEST)))
    return F.when(ms > 0, F.ceil(F.log(clipped) / F.log(F.lit(GROWTH))).cast("int")).otherwise(NO_TIME)


def _described(in_buckets: DataFrame, keys: Sequence[str]) -> DataFrame:
    in_keys = Rows.partitionBy(*keys)
    entries = F.array_sort(F.collect_list(F.struct("bucket", "many")))
    return (
        in_buckets.withColumns(
            {
                "seen": F.sum("many").over(in_keys.orderBy("bucket")),
                "all": F.sum("many").over(in_keys),
            }
        )
        .groupBy(*keys)
        .agg(
            F.sum("many").alias("count"),
            F.max("max_ms").alias("max_ms"),
            F.map_from_entries(entries).alias("histogram"),
            *(_quantile(part).alias(name) for name, part in THOUSANDTHS.items()),
        )
    )


def _quantile(part: int) -> Column:
    """Return the middle of the lowest bucket by which a part of all, in thousandths, has been seen."""
    bucket = F.min(F.when(F.col("seen") * FINEST >= F.col("all") * part, F.col("bucket")))
    middle = F.pow(F.lit(GROWTH), bucket) * 2 / (1 + GROWTH)
    return F.when(bucket > NO_TIME, middle).otherwise(0.0)
