"""Totals of rows, with how many there are of each sort."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


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
