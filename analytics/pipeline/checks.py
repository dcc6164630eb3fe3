"""What must hold before anything counts: the facts match PostgreSQL, and the summaries add up to them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.pipeline import tables
from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.reports import Check
from analytics.pipeline.tables import Table

COUNTED: Final = (tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES, tables.CALLBACKS)
"""What PostgreSQL counts too: what does not change any more once the window is closed."""

LASTING: Final = (tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES)
"""What nothing but retention takes out of a window that is closed."""

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
        (F.count("*") - _is_unique(table)).alias("repeated"),
        F.count_if(_outside(table, window)).alias("outside"),
        F.count_if(_unknown(table, words)).alias("unknown"),
        F.count_if(_negative(table)).alias("negative"),
        F.sum(_added_up(table)).alias("total"),
    )


def _is_unique(table: Table) -> Column:
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


SAME_ROWS: Final = {
    tables.SILVER_DELIVERIES: (tables.DELIVERIES, tables.UNFINISHED),
    tables.SILVER_ATTEMPTS: (tables.ATTEMPTS,),
    tables.SILVER_MESSAGES: (tables.MESSAGES,),
}
"""What is made row by row, and of what: with unique keys there, so many rows are neither lost nor multiplied."""

FACTS_OF: Final = {
    tables.RELIABILITY: tables.DELIVERIES,
    tables.ENDPOINTS: tables.ATTEMPTS,
    tables.VOLUME: tables.MESSAGES,
    tables.CALLBACKS_SUMMARY: tables.CALLBACKS,
}
"""Whose rows a summary adds up to."""

Looks = Mapping[Table, Look]


class FailedChecks(Exception):
    """Something was found that must not be, and nothing of the window counts; the message names it."""


def of_facts(looks: Looks, counted: Mapping[Table, int]) -> tuple[Check, ...]:
    """Return what is checked of bronze, against what PostgreSQL counts."""
    return (
        *(_same(f"{table.path}: all rows of PostgreSQL", looks[table].rows, rows) for table, rows in counted.items()),
        *_unique(looks),
        *_inside(looks),
        *(_none(f"{table.path}: only words of the broker", looks[table].unknown) for table in WORDS),
        _none(f"{tables.ATTEMPTS.path}: durations not negative", looks[tables.ATTEMPTS].negative),
    )


def of_the_past(looks: Looks, before: Mapping[str, int]) -> tuple[Check, ...]:
    """Return what is checked of bronze against the summaries in force, of which these are the rows by path.

    Where facts are gone, those summaries are better than what could be made now.
    """
    known = ((table, looks[table].rows, before[table.path]) for table in LASTING if table.path in before)
    return tuple(
        Check(
            f"{table.path}: none is gone",
            rows >= were,
            f"{rows:,} of {were:,}"
            if rows >= were
            else f"{were - rows:,} of {were:,} are; see docs/explanation/summaries-pipeline.md",
        )
        for table, rows, were in known
    )


def of_daily(looks: Looks) -> tuple[Check, ...]:
    """Return what is checked of summaries of whole days."""
    return tuple(_unique(looks))


def of_summaries(looks: Looks, facts: Looks) -> tuple[Check, ...]:
    """Return what is checked of silver and gold, against what bronze looks like."""
    gold = {table: one for table, one in looks.items() if table not in SAME_ROWS}
    return (
        *(
            _same(f"{table.path}: every row once", looks[table].rows, sum(facts[one].rows for one in made_of))
            for table, made_of in SAME_ROWS.items()
        ),
        *_unique(gold),
        *_inside(gold),
        *(
            _same(f"{table.path}: {ADDED_UP[table]} add up", looks[table].total, facts[fact].total)
            for table, fact in FACTS_OF.items()
        ),
    )


def insist(checks: Iterable[Check]) -> None:
    """Go on only if all have passed.

    Raises:
        FailedChecks: some have not.

    """
    failed = [f"{check.name} ({check.found})" for check in checks if not check.passed]
    if failed:
        raise FailedChecks(f"failed checks: {'; '.join(failed)}")


def _unique(looks: Looks) -> Iterator[Check]:
    return (_none(f"{table.path}: unique keys", one.repeated) for table, one in looks.items() if table.key)


def _inside(looks: Looks) -> Iterator[Check]:
    return (_none(f"{table.path}: in the window", one.outside) for table, one in looks.items() if table in MOMENTS)


def _none(name: str, wrong: int) -> Check:
    return Check(name, wrong == 0, f"{wrong:,} rows are wrong" if wrong else "none is wrong")


def _same(name: str, found: int, wanted: int) -> Check:
    return Check(name, found == wanted, f"{found:,} of {wanted:,}")
