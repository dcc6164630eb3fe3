"""What transforms share: frames by table, their shape, counts and histograms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from analytics.pipeline.quantiles import FINEST, GROWTH, LONGEST, NO_TIME
from analytics.pipeline.tables import Table

NAMES: Final = ("subscriber", "endpoint", "event_type", "publisher", "kind")
"""Empty, never null, where what they name is not known."""

THOUSANDTHS: Final = {"p50_ms": 500, "p90_ms": 900, "p95_ms": 950, "p99_ms": 990}
"""Which share of all took at most that long."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One window as extracted: `tables.BRONZE`."""

    deliveries: DataFrame
    unfinished: DataFrame
    attempts: DataFrame
    messages: DataFrame
    waiting: DataFrame
    callbacks: DataFrame
    subscribers: DataFrame
    subscriptions: DataFrame
    event_types: DataFrame
    publishers: DataFrame
    lines: DataFrame
    status_changes: DataFrame
    releases: DataFrame


@dataclass(frozen=True, slots=True)
class Silver:
    """What hourly summaries are made of: `tables.SILVER`, and the facts that need no cleaning."""

    deliveries: DataFrame
    attempts: DataFrame
    messages: DataFrame
    waiting: DataFrame
    callbacks: DataFrame
    subscribers: DataFrame
    subscriptions: DataFrame
    event_types: DataFrame
    lines: DataFrame
    status_changes: DataFrame
    releases: DataFrame
    audit: DataFrame | None = None
    """`tables.AUDIT` of the hours before the window; None where none of them is known."""


def shaped(frame: DataFrame, table: Table) -> DataFrame:
    """Return the frame with the columns of `table`, in its order and of its types; names are filled in.

    Raises:
        AnalysisException: a column is missing, or is of a type that cannot become the table's without loss.

    """
    schema = cast("StructType", StructType.fromDDL(table.columns))
    return frame.fillna("", [name for name in schema.names if name in NAMES]).to(schema)


def hour_of(column: str) -> Column:
    """Return the hour that an instant lies in; the session's time zone is UTC."""
    return F.date_trunc("hour", column).alias("hour")


def counted(
    rows: DataFrame,
    keys: Sequence[str],
    sort: str,
    into: str,
    sums: Mapping[str, Column],
    counts: Column | None = None,
) -> DataFrame:
    """Return a row for each value of `keys`: sums by their names, and in the map `into` the rows of each `sort`.

    `counts`: which rows are counted there, 1 or 0; None: all of them.

    A sort that nobody has heard of is counted like any other. Counted before anything is exchanged, so that keys with
    many rows cost no more than others.
    """
    of_sorts = rows.groupBy(*keys, sort).agg(
        (F.count("*") if counts is None else F.sum(counts)).alias("many"),
        *(F.sum(column).alias(name) for name, column in sums.items()),
    )
    entries = F.array_sort(F.collect_list(F.when(F.col("many") > 0, F.struct(sort, "many"))))
    return of_sorts.groupBy(*keys).agg(
        F.map_from_entries(entries).alias(into), *(F.sum(name).alias(name) for name in sums)
    )


def how_many(condition: Column) -> Column:
    """Return 1 where it holds and 0 where not, to be summed."""
    return condition.cast("long")


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
