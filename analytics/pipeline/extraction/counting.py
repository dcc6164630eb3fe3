"""How many rows there are, as PostgreSQL says, and whether a day has got more since somebody looked."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from analytics.pipeline.extraction.connecting import Connection
from analytics.pipeline.extraction.leaves import ONE_DAY, PARTITIONED, leaf_of, relations_of, rows_of
from analytics.pipeline.extraction.statements import ATTEMPTS, selected, stretch_of
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table

COUNTED_ANYWAY: Final = 10_000
"""Smaller leaves are counted as quickly as asked about."""
INSERTED: Final = "SELECT pg_stat_get_tuples_inserted(to_regclass(%s))"


def count(connection: Connection, table: Table, window: Window) -> int:
    """Return how many rows `read` should give; of unfinished ones more may be sent meanwhile for the first time.

    Raises:
        DayGone: some of it has been dropped.

    """
    rows = rows_of(table, window, relations_of(connection, table, window))
    return _number(connection, f"SELECT count(*) FROM ({selected(table, window, rows, stretch_of(table, window))}) q")


def leaf_rows(connection: Connection, day: dt.date) -> dict[str, int]:
    """Return what a day's leaves hold, and how many rows PostgreSQL remembers having put into them, by leaf.

    With them what was recorded so late that it stands in the next day's leaf.
    """
    found = {}
    for leaf in _leaves(connection, day):
        found[_inserted(leaf)] = _number(connection, INSERTED, leaf)  # first: what comes between the two shows later
        found[leaf] = _number(connection, f"SELECT count(*) FROM {leaf}")
    return found | _recorded_late(connection, day)


def has_grown(connection: Connection, day: dt.date, known: Mapping[str, int]) -> bool:
    """Tell whether a day has got rows since `leaf_rows` said what is known of it; without counting what is big.

    Nothing is missed: rows are never taken out of these leaves, and each that is put in raises PostgreSQL's counter of
    them within a minute. That begins anew after a crash: then leaves are counted until they are known anew.
    """
    if any(known.get(name) != rows for name, rows in _recorded_late(connection, day).items()):
        return True
    return any(_has_other_rows(connection, leaf, known) for leaf in _leaves(connection, day))


def _has_other_rows(connection: Connection, leaf: str, known: Mapping[str, int]) -> bool:
    inserted = _number(connection, INSERTED, leaf)
    if inserted == known.get(_inserted(leaf)) and inserted >= COUNTED_ANYWAY:
        return False
    return _number(connection, f"SELECT count(*) FROM {leaf}") != known.get(leaf)


def _recorded_late(connection: Connection, day: dt.date) -> dict[str, int]:
    """Return how many attempts of a day stand in the next one's leaf; deliveries are filed when they are settled."""
    leaf, end = leaf_of(ATTEMPTS, day + ONE_DAY), f"{day + ONE_DAY} 00:00+00"
    if _number(connection, "SELECT (to_regclass(%s) IS NOT NULL)::int", leaf) == 0:
        return {}
    late = _number(connection, f"SELECT count(*) FROM {leaf} WHERE started_at < %s", end)
    return {f"{leaf} before it": late}


def _leaves(connection: Connection, day: dt.date) -> list[str]:
    leaves = (leaf_of(table, day) for table in sorted(PARTITIONED))
    return [leaf for leaf in leaves if _number(connection, "SELECT (to_regclass(%s) IS NOT NULL)::int", leaf)]


def _inserted(leaf: str) -> str:
    return f"{leaf} inserted"


def _number(connection: Connection, query: str, *parameters: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters or None)
        return int(cursor.fetchone()[0])
