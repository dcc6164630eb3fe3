"""What a table of the lake holds, in figures: all tables of a layer in one query, once they are written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.pipeline import tables
from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.tables import Table

MOMENTS: Final = {
    tables.DELIVERIES: "finished_at",
    tables.ATTEMPTS: "started_at",
    tables.MESSAGES: "published_at",
    tables.CALLBACKS: "created_at",
    **{table: table.columns.split()[0] for table in tables.HOURLY},
}
"""The time by which a row belongs to its window."""

WORDS: Final[Mapping[Table, tuple[str, Callable[[Vocabulary], tuple[str, ...]]]]] = {
    tables.DELIVERIES: ("status", lambda words: words.final),
    tables.UNFINISHED: ("status", lambda words: words.statuses),
    tables.MESSAGES: ("outcome", lambda words: words.outcomes),
    tables.EVENT_TYPES: ("kind", lambda words: words.kinds),
    tables.SUBSCRIPTIONS: ("kind", lambda words: words.kinds),
}
"""What must be one of the broker's words."""

ADDED_UP: Final = {
    tables.RELIABILITY: "deliveries",
    tables.ENDPOINTS: "attempts",
    tables.VOLUME: "messages",
    tables.CALLBACKS_SUMMARY: "asked",
}
"""What of a summary must come to the number of its facts."""


@dataclass(frozen=True, slots=True)
class Look:
    """One table."""

    rows: int = 0
    repeated: int = 0
    """Rows too many under their keys."""
    outside: int = 0
    """Rows whose time is not in the window."""
    unknown: int = 0
    """Rows with a word that the broker does not have."""
    negative: int = 0
    """Rows that took less than no time."""
    total: int = 0
    """Of what adds up; of messages, those that are no replies; else the rows."""


def look(frames: Mapping[Table, DataFrame], window: Window, words: Vocabulary) -> dict[Table, Look]:
    """Look at tables, all in one query."""
    rows = [_one_row(table, frame, window, words) for table, frame in frames.items()]
    found = {row["path"]: row for row in reduce(DataFrame.unionByName, rows).collect()}
    names = [one.name for one in fields(Look)]
    return {table: Look(**{name: int(found[table.path][name] or 0) for name in names}) for table in frames}


def _one_row(table: Table, frame: DataFrame, window: Window, words: Vocabulary) -> DataFrame:
    return frame.agg(
        F.lit(table.path).alias("path"),
        F.count("*").alias("rows"),
        (F.count("*") - _unique(table)).alias("repeated"),
        F.count_if(_outside(table, window)).alias("outside"),
        F.count_if(_unknown(table, words)).alias("unknown"),
        F.count_if(_negative(table)).alias("negative"),
        F.sum(_added_up(table)).alias("total"),
    )


def _unique(table: Table) -> Column:
    """Count keys; a null is as good a value as others, but for a lone key."""
    if len(table.key) == 1:
        return F.count_distinct(F.col(table.key[0]))
    return F.count_distinct(F.struct(*table.key)) if table.key else F.count("*")


def _outside(table: Table, window: Window) -> Column:
    if table not in MOMENTS:
        return F.lit(False)
    moment = F.col(MOMENTS[table])
    return moment.isNull() | (moment < F.lit(window.start)) | (moment >= F.lit(window.end))


def _unknown(table: Table, words: Vocabulary) -> Column:
    if table not in WORDS:
        return F.lit(False)
    column, meant = WORDS[table]
    return F.col(column).isNull() | ~F.col(column).isin(*meant(words))


def _negative(table: Table) -> Column:
    return F.col("duration_ms") < 0 if table is tables.ATTEMPTS else F.lit(False)


def _added_up(table: Table) -> Column:
    if table is tables.MESSAGES:
        return F.col("answers").isNull().cast("long")
    return F.col(ADDED_UP[table]) if table in ADDED_UP else F.lit(1).cast("long")
