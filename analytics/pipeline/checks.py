"""Data quality: the facts match PostgreSQL, and the summaries add up to the facts; else the window does not count."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from types import MappingProxyType
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.pipeline import tables
from analytics.pipeline.extraction.statements import IN_WINDOW, SOURCES
from analytics.pipeline.job import Check, Vocabulary, Window
from analytics.pipeline.tables import Table

LASTING: Final = (tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES)
"""Rows of a closed window that only retention deletes."""

TIMES: Final = {
    **{table: SOURCES[table].by for table in IN_WINDOW},
    **{table: table.time for table in tables.HOURLY},
}
"""The time by which a row belongs to its window."""

WORDS: Final[Mapping[Table, tuple[str, Callable[[Vocabulary], tuple[str, ...]]]]] = {
    tables.DELIVERIES: ("status", lambda words: words.final),
    tables.UNFINISHED: ("status", lambda words: words.statuses),
    tables.MESSAGES: ("outcome", lambda words: words.outcomes),
    tables.EVENT_TYPES: ("kind", lambda words: words.kinds),
    tables.SUBSCRIPTIONS: ("kind", lambda words: words.kinds),
}
"""Columns whose values must be known to the broker."""

TOTALS: Final = {
    tables.RELIABILITY: ("deliveries", tables.DELIVERIES),
    tables.ENDPOINTS: ("attempts", tables.ATTEMPTS),
    tables.VOLUME: ("messages", tables.MESSAGES),
    tables.CALLBACKS_SUMMARY: ("asked", tables.CALLBACKS),
}
"""The column of a summary whose sum is the number of its facts."""

MADE_OF: Final = {
    tables.SILVER_DELIVERIES: (tables.DELIVERIES, tables.UNFINISHED),
    tables.SILVER_ATTEMPTS: (tables.ATTEMPTS,),
    tables.SILVER_MESSAGES: (tables.MESSAGES,),
}
"""Silver has one row per fact: with unique keys in bronze, equal counts mean that none is lost or multiplied."""


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """What the checks need to know of one table."""

    rows: int = 0
    repeated: int = 0
    """Rows beyond the first of each key."""
    outside: int = 0
    """Rows whose time is outside the window."""
    unknown: int = 0
    """Rows with a word that the broker does not have."""
    negative: int = 0
    """Rows with a negative duration."""
    total: int = 0
    """The sum of the column in `TOTALS`; of messages, those that are no replies; else the rows."""


Statistics = Mapping[Table, TableStatistics]


class FailedChecks(Exception):
    """Some checks failed; the message names them."""


def statistics(frames: Mapping[Table, DataFrame], window: Window, words: Vocabulary) -> dict[Table, TableStatistics]:
    """Return the statistics of tables, computed in one query."""
    rows = [_statistics_row(table, frame, window, words) for table, frame in frames.items()]
    found = {row["path"]: row for row in reduce(DataFrame.unionByName, rows).collect()}
    names = [field.name for field in fields(TableStatistics)]
    return {table: TableStatistics(**{name: int(found[table.path][name] or 0) for name in names}) for table in frames}


def _statistics_row(table: Table, frame: DataFrame, window: Window, words: Vocabulary) -> DataFrame:
    outside, unknown, keys = F.lit(False), F.lit(False), F.count("*")
    total = F.col(TOTALS[table][0]) if table in TOTALS else F.lit(1).cast("long")
    if table is tables.MESSAGES:
        total = F.col("answers").isNull().cast("long")
    if table in TIMES:
        time = F.col(TIMES[table])
        outside = time.isNull() | (time < F.lit(window.start)) | (time >= F.lit(window.end))
    if table in WORDS:
        column, known = WORDS[table]
        unknown = F.col(column).isNull() | ~F.col(column).isin(*known(words))
    if table.key:  # in a struct a null counts like other values
        keys = F.count_distinct(F.col(table.key[0]) if len(table.key) == 1 else F.struct(*table.key))
    return frame.agg(
        F.lit(table.path).alias("path"),
        F.count("*").alias("rows"),
        (F.count("*") - keys).alias("repeated"),
        F.count_if(outside).alias("outside"),
        F.count_if(unknown).alias("unknown"),
        F.count_if(F.col("duration_ms") < 0 if table is tables.ATTEMPTS else F.lit(False)).alias("negative"),
        F.sum(total).alias("total"),
    )


def check_facts(
    found: Statistics,
    counted: Mapping[Table, int],
    before: Mapping[str, int],
    *,
    at_least: Mapping[Table, int] = MappingProxyType({}),
) -> tuple[Check, ...]:
    """Return the checks of bronze.

    - `counted`: the rows that PostgreSQL has, of a closed window
    - `at_least`: those that it had before, of a window in which some were still to come
    - `before`: the rows by path of the summaries in force, which are better where facts have been deleted since
    """
    lasting = [(table, found[table].rows, before[table.path]) for table in LASTING if table.path in before]
    return (
        *(_equal(f"{table.path}: all rows of PostgreSQL", found[table].rows, rows) for table, rows in counted.items()),
        *(
            Check(
                f"{table.path}: all rows that PostgreSQL had",
                (read := found[table].rows) >= rows,
                f"{read:,} of {rows:,}" + (" and more" if read > rows else ""),
            )
            for table, rows in at_least.items()
        ),
        *check_rows(found),
        *(
            Check(
                f"{table.path}: none is gone",
                rows >= old,
                f"{rows:,} of {old:,}"
                if rows >= old
                else f"{old - rows:,} of {old:,} are; see docs/explanation/summaries-pipeline.md",
            )
            for table, rows, old in lasting
        ),
    )


def check_summaries(found: Statistics, facts: Statistics) -> tuple[Check, ...]:
    """Return the checks of silver and gold against bronze."""
    return (
        *(
            _equal(f"{table.path}: every row once", found[table].rows, sum(facts[fact].rows for fact in made_of))
            for table, made_of in MADE_OF.items()
        ),
        *check_rows({table: one for table, one in found.items() if table not in MADE_OF}),
        *(
            _equal(f"{table.path}: {column} add up", found[table].total, facts[fact].total)
            for table, (column, fact) in TOTALS.items()
        ),
    )


def check_rows(found: Statistics) -> Iterator[Check]:
    """Yield the checks of single rows; those of daily summaries are of unique keys only."""
    for table, one in found.items():
        wrong = {
            "unique keys": one.repeated if table.key else None,
            "in the window": one.outside if table in TIMES else None,
            "only words of the broker": one.unknown if table in WORDS else None,
            "durations not negative": one.negative if table is tables.ATTEMPTS else None,
        }
        for name, rows in wrong.items():
            if rows is not None:
                yield Check(f"{table.path}: {name}", rows == 0, f"{rows:,} rows are wrong" if rows else "none is wrong")


def require(checks: Iterable[Check]) -> None:
    """Raise `FailedChecks` unless all have passed."""
    failed = [f"{check.name} ({check.found})" for check in checks if not check.passed]
    if failed:
        raise FailedChecks(f"failed checks: {'; '.join(failed)}")


def _equal(name: str, found: int, expected: int) -> Check:
    return Check(name, found == expected, f"{found:,} of {expected:,}")
