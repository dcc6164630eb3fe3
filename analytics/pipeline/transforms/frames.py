"""What transforms share: their inputs, the shape of results, counts and histograms."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from analytics.pipeline.quantiles import GROWTH, MAX_MS, PARTS, ZERO_BUCKET
from analytics.pipeline.tables import Table

NAMES: Final = ("subscriber", "endpoint", "event_type", "publisher", "kind")
"""Empty, never null, if what they name is unknown."""

THOUSANDTHS: Final = {"p50_ms": 500, "p90_ms": 900, "p95_ms": 950, "p99_ms": 990}
"""The share, in thousandths, of times up to each quantile."""

Frames = Mapping[Table, DataFrame]
"""The rows of one window: of bronze the facts, for hourly summaries also silver, and `AUDIT` of the hours before."""


def schema_of(table: Table) -> StructType:
    """Return the columns of a table as Spark's schema; all are nullable."""
    return cast("StructType", StructType.fromDDL(table.columns))


def shaped(frame: DataFrame, table: Table) -> DataFrame:
    """Return the frame with the columns of `table`, in its order and of its types; unknown names become empty.

    Raises:
        AnalysisException: a column is missing, or cannot be cast to the table's type without loss.
    """
    schema = schema_of(table)
    return frame.fillna("", [name for name in schema.names if name in NAMES]).to(schema)


def hour_of(column: str) -> Column:
    """Return the hour of an instant; the session's time zone is UTC."""
    return F.date_trunc("hour", column).alias("hour")


def counted(
    rows: DataFrame,
    keys: Sequence[str],
    sort: str,
    into: str,
    sums: Mapping[str, Column],
    counts: Column | None = None,
) -> DataFrame:
    """Return a row for each value of `keys`: `sums` by name, and in the map `into` the number of rows of each `sort`.

    `counts`: 1 for rows that are counted there, else 0; None: all are.

    Rows are counted before the exchange, so keys with many rows cost no more than others.
    """
    by_sort = rows.groupBy(*keys, sort).agg(
        (F.count("*") if counts is None else F.sum(counts)).alias("many"),
        *(F.sum(column).alias(name) for name, column in sums.items()),
    )
    entries = F.array_sort(F.collect_list(F.when(F.col("many") > 0, F.struct(sort, "many"))))
    return by_sort.groupBy(*keys).agg(
        F.map_from_entries(entries).alias(into), *(F.sum(name).alias(name) for name in sums)
    )


def as_count(condition: Column) -> Column:
    """Return 1 where the condition holds, else 0, to be summed."""
    return condition.cast("long")


def with_quantiles(times: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return a row for each value of `keys`: the `histogram` of `ms`, its quantiles, `count` and `max_ms`.

    Times are counted before the exchange: at most one row per bucket and task is exchanged.
    """
    in_buckets = times.groupBy(*keys, bucket_of(F.col("ms")).alias("bucket"))
    return _described(in_buckets.agg(F.count("*").alias("many"), F.max("ms").alias("max_ms")), keys)


def merged(summaries: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the same from rows with a `histogram` and `max_ms` each."""
    buckets = summaries.select(*keys, "max_ms", F.explode("histogram").alias("bucket", "many"))
    in_buckets = buckets.groupBy(*keys, "bucket")
    return _described(in_buckets.agg(F.sum("many").alias("many"), F.max("max_ms").alias("max_ms")), keys)


def bucket_of(ms: Column) -> Column:
    """Return the bucket of a time in milliseconds."""
    clipped = F.least(ms.cast("double"), F.lit(float(MAX_MS)))
    return F.when(ms > 0, F.ceil(F.log(clipped) / F.log(F.lit(GROWTH))).cast("int")).otherwise(ZERO_BUCKET)


def _described(in_buckets: DataFrame, keys: Sequence[str]) -> DataFrame:
    in_keys = Rows.partitionBy(*keys)
    entries = F.array_sort(F.collect_list(F.struct("bucket", "many")))

    def quantile(part: int) -> Column:
        """Return the middle of the first bucket up to which `part` thousandths have been counted."""
        bucket = F.min(F.when(F.col("seen") * PARTS >= F.col("all") * part, F.col("bucket")))
        middle = F.pow(F.lit(GROWTH), bucket) * 2 / (1 + GROWTH)
        return F.when(bucket > ZERO_BUCKET, middle).otherwise(0.0)

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
            *(quantile(part).alias(name) for name, part in THOUSANDTHS.items()),
        )
    )
