"""Row counts of PostgreSQL: for checks, and to find late data."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from analytics.pipeline import tables
from analytics.pipeline.connections import Connection
from analytics.pipeline.extraction.statements import PARTITIONED, SOURCES, bounds_of, leaf_of, leaves_of, within
from analytics.pipeline.job import DAY, Window
from analytics.pipeline.tables import Table

MIN_TRUSTED: Final = 10_000
"""Smaller partitions are counted anyway: counting costs as little as asking for the statistics."""
INSERTED: Final = "SELECT pg_stat_get_tuples_inserted(to_regclass(%s))"


def count(connection: Connection, table: Table, window: Window) -> int:
    """Return how many rows `read` should return of a table whose rows lie in the window.

    Every partition is counted, independently of `read`'s choice; one query each, so that no lock is held on all of
    them, which retention would wait for.
    """
    source, condition = SOURCES[table].rows, within(table, bounds_of(table, window))
    leaves = leaves_of(connection, source) if source in PARTITIONED else [source]
    return sum(_number(connection, f"SELECT count(*) FROM {leaf} r WHERE {condition}") for leaf in leaves)


def leaf_rows(connection: Connection, day: dt.date) -> dict[str, int]:
    """Return the rows of a day's partitions and PostgreSQL's counters of inserted rows, by name.

    Also the day's rows in other days' partitions, which were filed late or while the clock was wrong.
    """
    found = {}
    for leaf in _leaves(connection, day):
        found[_inserted(leaf)] = _number(
            connection, INSERTED, leaf
        )  # first, so that an insert in between is noticed later
        found[leaf] = _number(connection, f"SELECT count(*) FROM {leaf}")
    return found | _elsewhere(connection, day)


def has_grown(connection: Connection, day: dt.date, known: Mapping[str, int]) -> bool:
    """Return whether a day has late data: rows added since `leaf_rows` returned `known`.

    Large partitions are not counted, and nothing is missed: rows are never deleted from these partitions, and each
    insert raises PostgreSQL's counter within a minute. A crash resets the counters: then partitions are counted until
    the day is summarized again.
    """
    if any(known.get(name) != rows for name, rows in _elsewhere(connection, day).items()):
        return True
    for leaf in _leaves(connection, day):
        inserted = _number(connection, INSERTED, leaf)
        is_trusted = inserted == known.get(_inserted(leaf)) and inserted >= MIN_TRUSTED
        if not is_trusted and _number(connection, f"SELECT count(*) FROM {leaf}") != known.get(leaf):
            return True
    return False


def _elsewhere(connection: Connection, day: dt.date) -> dict[str, int]:
    """Return how many rows of a day are in other days' partitions, by partition, where there are any."""
    start = dt.datetime.combine(day, dt.time(), dt.UTC)
    window, found = Window(start, start + DAY), {}
    for table in (tables.ATTEMPTS, tables.DELIVERIES, tables.MESSAGES):
        source, condition = SOURCES[table].rows, within(table, bounds_of(table, window))
        for leaf in leaves_of(connection, source):
            if leaf != leaf_of(source, day):
                name = f"{leaf} for {day}"
                found[name] = _number(connection, f"SELECT count(*) FROM {leaf} r WHERE {condition}")
    return {name: rows for name, rows in found.items() if rows}


def _leaves(connection: Connection, day: dt.date) -> list[str]:
    leaves = (leaf_of(table, day) for table in sorted(PARTITIONED))
    return [leaf for leaf in leaves if _number(connection, "SELECT (to_regclass(%s) IS NOT NULL)::int", leaf)]


def _inserted(leaf: str) -> str:
    return f"{leaf} inserted"


def _number(connection: Connection, query: str, *parameters: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters or None)
        return int(cursor.fetchone()[0])
