"""Row counts of PostgreSQL: for checks, and to find late data."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

import psycopg

from analytics.pipeline import tables
from analytics.pipeline.connections import fetch
from analytics.pipeline.extraction.statements import (
    IN_WINDOW,
    PARTITIONED,
    SOURCES,
    bounds_of,
    leaf_of,
    leaves_of,
    within,
)
from analytics.pipeline.job import HOUR_LAG, Window, whole
from analytics.pipeline.tables import Table

MIN_TRUSTED: Final = 10_000
"""Smaller partitions are counted anyway: counting costs as little as asking for the statistics."""
INSERTED: Final = "SELECT pg_stat_get_tuples_inserted(to_regclass(%s))"


def counts(connection: psycopg.Connection[Any], window: Window) -> dict[Table, int]:
    """Return how many rows `read` should return of the tables whose rows lie in the window.

    Every partition is counted, independently of `read`'s choice; one query each, so that no lock is held on all of
    them, which retention would wait for.
    """
    return {table: sum(_by_leaf(connection, table, window).values()) for table in IN_WINDOW}


def is_closed(connection: psycopg.Connection[Any], window: Window) -> bool:
    """Return whether everything that ended in a window is stored: not while an attempt may not have been settled."""
    ((closed,),) = fetch(connection, "SELECT clock_timestamp() >= %s", window.end + HOUR_LAG)
    return bool(closed)


def is_idle(connection: psycopg.Connection[Any], window: Window) -> bool:
    """Return whether nothing was published, sent, ended or called back in a window; every partition is asked."""
    for table in IN_WINDOW:
        condition = within(table, bounds_of(table, window))
        for leaf in _leaves_of(connection, table):
            if fetch(connection, f"SELECT FROM {leaf} r WHERE {condition} LIMIT 1"):
                return False
    return True


def leaf_rows(connection: psycopg.Connection[Any], day: dt.date) -> dict[str, int]:
    """Return the rows of a day's partitions and PostgreSQL's counters of inserted rows, by name.

    Also the day's rows in other days' partitions, which were filed late or while the clock was wrong.
    """
    found = {}
    for leaf in _leaves(connection, day):
        # First, so that an insert in between is noticed later.
        found[f"{leaf} inserted"] = _number(connection, INSERTED, leaf)
        found[leaf] = _number(connection, f"SELECT count(*) FROM {leaf}")
    return found | _elsewhere(connection, day)


def has_grown(connection: psycopg.Connection[Any], day: dt.date, known: Mapping[str, int]) -> bool:
    """Return whether a day has late data: rows added since `leaf_rows` returned `known`.

    Large partitions are not counted, and nothing is missed: rows are never deleted from these partitions, and each
    insert raises PostgreSQL's counter within a minute. A crash resets the counters: then partitions are counted until
    the day is summarized again.
    """
    if any(known.get(name) != rows for name, rows in _elsewhere(connection, day).items()):
        return True
    for leaf in _leaves(connection, day):
        inserted = _number(connection, INSERTED, leaf)
        is_trusted = inserted == known.get(f"{leaf} inserted") and inserted >= MIN_TRUSTED
        if not is_trusted and _number(connection, f"SELECT count(*) FROM {leaf}") != known.get(leaf):
            return True
    return False


def _elsewhere(connection: psycopg.Connection[Any], day: dt.date) -> dict[str, int]:
    """Return how many rows of a day are in other days' partitions, by partition, where there are any."""
    found = {}
    for table in (tables.ATTEMPTS, tables.DELIVERIES, tables.MESSAGES):
        by_leaf = _by_leaf(connection, table, whole(day), without=leaf_of(SOURCES[table].rows, day))
        found.update({f"{leaf} for {day}": rows for leaf, rows in by_leaf.items() if rows})
    return found


def _by_leaf(connection: psycopg.Connection[Any], table: Table, window: Window, without: str = "") -> dict[str, int]:
    """Return how many of a window's rows are in each partition of a table."""
    count_rows = f"SELECT count(*) FROM {{}} r WHERE {within(table, bounds_of(table, window))}"
    leaves = _leaves_of(connection, table)
    return {leaf: _number(connection, count_rows.format(leaf)) for leaf in leaves if leaf != without}


def _leaves_of(connection: psycopg.Connection[Any], table: Table) -> list[str]:
    source = SOURCES[table].rows
    return leaves_of(connection, source) if source in PARTITIONED else [source]


def _leaves(connection: psycopg.Connection[Any], day: dt.date) -> list[str]:
    leaves = (leaf_of(table, day) for table in sorted(PARTITIONED))
    return [leaf for leaf in leaves if _number(connection, "SELECT (to_regclass(%s) IS NOT NULL)::int", leaf)]


def _number(connection: psycopg.Connection[Any], query: str, *parameters: Any) -> int:
    return int(fetch(connection, query, *parameters)[0][0])
