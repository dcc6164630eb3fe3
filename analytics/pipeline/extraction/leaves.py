"""Where a window's rows are: leaves by their names, so that nothing is planned for all the others."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analytics.pipeline.extraction.connecting import Connection, DayGone
from analytics.pipeline.extraction.statements import ATTEMPTS, DELIVERIES, MESSAGES, OPEN, SOURCES, UNENDED
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table

PARTITIONED: Final = frozenset({MESSAGES, DELIVERIES, ATTEMPTS})
IDS_PER_DAY: Final = 10**10
IDS_DRAWN_LATE: Final = 10**6
"""What is made just before midnight may draw its id just after it: a quarter of an hour's at 1,000 a second."""
ONE_DAY: Final = dt.timedelta(days=1)

LEAVES: Final = r"""
SELECT c.relname, pg_relation_size(c.oid) > 0
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = to_regclass(%s) AND c.relname ~ '_\d{8}$'
 ORDER BY c.relname
"""
STANDS: Final = "SELECT FROM delivery_storageday WHERE day = %s AND dropped_at IS NULL"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One day's partition."""

    name: str
    is_written: bool
    """Whether anything has ever been put into it."""


def leaf_of(table: str, day: dt.date) -> str:
    """Return the name of the leaf that holds `day`."""
    return f"{table}_{day:%Y%m%d}"


def from_day_before(leaves: Sequence[Leaf], own: str) -> list[str]:
    """Keep, of leaves in the order of days, those from the last one before a day that has anything in it.

    A row is put into the newest leaf that its table, or its sequence, has moved on to: where that was done late, or
    not at all for days, it stands in the leaf of an earlier day, and those in between are empty.
    """
    before = [leaf.name for leaf in leaves if leaf.name < own and leaf.is_written]
    return [*before[-1:], *(leaf.name for leaf in leaves if leaf.name >= own)]


def around(leaves: Sequence[Leaf], own: str) -> list[str]:
    """Keep those in which a day's rows may be: the day before, the day, and the one after it."""
    kept = from_day_before(leaves, own)
    return [name for name in kept if name <= own] + [name for name in kept if name > own][:1]


def leaves_of(connection: Connection, table: str) -> list[Leaf]:
    """Return the leaves of days that a partitioned table has."""
    with connection.cursor() as cursor:
        cursor.execute(LEAVES, [table])
        return [Leaf(*row) for row in cursor.fetchall()]


def relations_of(connection: Connection, table: Table, window: Window) -> list[str]:
    """Return the names of what must be read for a window.

    Raises:
        DayGone: retention has dropped some of it.

    """
    source = SOURCES[table].rows
    if source not in PARTITIONED:
        return [source]
    with connection.cursor() as cursor:
        cursor.execute(STANDS, [window.day])
        if cursor.fetchone() is None:
            raise DayGone(f"{window.day} cannot be summarized (again): its rows have been dropped, or it has not begun")
    leaves, own = leaves_of(connection, source), leaf_of(source, window.day)
    return [*from_day_before(leaves, own), OPEN] if table in UNENDED else around(leaves, own)


def rows_of(table: Table, window: Window, relations: Sequence[str], sampling: str = "") -> str:
    """Return the rows of all relations as one, as SQL; they are made like each other, column for column."""
    ended_later = f"finished_at >= '{window.end.isoformat()}' AND id < {_first_id_after(window)}"
    later = {name: f" WHERE {ended_later}" for name in relations if table in UNENDED and name != OPEN}
    selects = (f"SELECT * FROM {name}{sampling}{later.get(name, '')}" for name in relations)
    return f"({' UNION ALL '.join(selects)})"


def _first_id_after(window: Window) -> int:
    """Return an id above those of all that was made by the window's end: ids begin with the day, see `IDS_DRAWN_LATE`.

    So that of the days after it only what was made before them is looked at.
    """
    day_after = (window.end - dt.timedelta(microseconds=1)).date() + ONE_DAY
    return int(f"{day_after:%y%m%d}") * IDS_PER_DAY + IDS_DRAWN_LATE
