"""How many rows there are, as PostgreSQL says, and whether a day has got more since somebody looked."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from analytics.pipeline import tables
from analytics.pipeline.extraction.connection import Connection
from analytics.pipeline.extraction.statements import PARTITIONED, SOURCES, leaf_of, leaves_of, stretch_of, within
from analytics.pipeline.job import DAY, Window
from analytics.pipeline.tables import Table

COUNTED_ANYWAY: Final = 10_000
"""Smaller leaves are counted as quickly as asked about."""
INSERTED: Final = "SELECT pg_stat_get_tuples_inserted(to_regclass(%s))"


def count(connection: Connection, table: Table, window: Window) -> int:
    """Return how many rows `read` should give of a table whose rows lie in the window.

    Every leaf is counted, whichever of them `read` has chosen; each by its name and by itself, so that no lock is held
    on all of them, which retention would have to wait for.
    """
    source, condition = SOURCES[table].rows, within(table, stretch_of(table, window))
    leaves = leaves_of(connection, source) if source in PARTITIONED else [source]
    return sum(_number(connection, f"SELECT count(*) FROM {leaf} r WHERE {condition}") for leaf in leaves)


def leaf_rows(connection: Connection, day: dt.date) -> dict[str, int]:
    """Return what a day's leaves hold, and how many rows PostgreSQL remembers having put into them, by leaf.

    With them how many of the day's rows stand in other days' leaves, recorded late or while the clock was wrong.
    """
    found = {}
    for leaf in _leaves(connection, day):
        found[_inserted(leaf)] = _number(connection, INSERTED, leaf)  # first: what comes between the two shows later
        found[leaf] = _number(connection, f"SELECT count(*) FROM {leaf}")
    return found | _elsewhere(connection, day)


def has_grown(connection: Connection, day: dt.date, known: Mapping[str, int]) -> bool:
    """Tell whether a day has got rows since `leaf_rows` said what is known of it; without counting what is big.

    Nothing is missed: rows are never taken out of these leaves, and each that is put in raises PostgreSQL's counter of
    them within a minute. That begins anew after a crash: then leaves are counted until they are known anew.
    """
    if any(known.get(name) != rows for name, rows in _elsewhere(connection, day).items()):
        return True
    return any(_has_other_rows(connection, leaf, known) for leaf in _leaves(connection, day))


def _has_other_rows(connection: Connection, leaf: str, known: Mapping[str, int]) -> bool:
    inserted = _number(connection, INSERTED, leaf)
    if inserted == known.get(_inserted(leaf)) and inserted >= COUNTED_ANYWAY:
        return False
    return _number(connection, f"SELECT count(*) FROM {leaf}") != known.get(leaf)


def _elsewhere(connection: Connection, day: dt.date) -> dict[str, int]:
    """Return how many rows of a day stand in other days' leaves, by leaf, where there are any."""
    start = dt.datetime.combine(day, dt.time(), dt.UTC)
    window, found = Window(start, start + DAY), {}
    for table in (tables.ATTEMPTS, tables.DELIVERIES, tables.MESSAGES):
        source, condition = SOURCES[table].rows, within(table, stretch_of(table, window))
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
