"""Where a window's rows are: leaves by their names, so that nothing is planned for all the others."""

import datetime as dt
from collections.abc import Sequence
from typing import Final

from analytics.pipeline import tables
from analytics.pipeline.extraction.connection import Connection, DayGone
from analytics.pipeline.extraction.statements import (
    ATTEMPTS,
    DELIVERIES,
    IDS_PER_DAY,
    MESSAGES,
    OPEN,
    SOURCES,
    UNENDED,
    stretch_of,
    within,
)
from analytics.pipeline.job import DAY, Window
from analytics.pipeline.tables import Table

PARTITIONED: Final = frozenset({MESSAGES, DELIVERIES, ATTEMPTS})
IDS_DRAWN_LATE: Final = 10**6
"""What is made just before midnight may draw its id just after it: a quarter of an hour's at 1,000 a second."""

LEAVES: Final = r"""
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = to_regclass(%s) AND c.relname ~ '_\d{8}$'
 ORDER BY c.relname
"""
DAYS_OF_MESSAGES: Final = f"""
WITH RECURSIVE found (first) AS (
  SELECT min(message_id) FROM {{leaf}}
  UNION ALL
  SELECT (SELECT min(message_id) FROM {{leaf}} WHERE message_id >= (first / {IDS_PER_DAY} + 1) * {IDS_PER_DAY})
    FROM found WHERE first IS NOT NULL)
SELECT first / {IDS_PER_DAY} FROM found WHERE first IS NOT NULL
"""
"""A look into the index for each day, however many deliveries there are."""
FIRST_MADE: Final = f"""
SELECT LEAST(created_at, to_date(lpad((id / {IDS_PER_DAY})::text, 6, '0'), 'YYMMDD')) FROM {{leaf}} ORDER BY id LIMIT 1
"""
"""A backfill draws its ids before it makes what gets them, maybe days before: then the id tells of the others."""
STANDS: Final = "SELECT FROM delivery_storageday WHERE day = %s AND dropped_at IS NULL"


def leaf_of(table: str, day: dt.date) -> str:
    """Return the name of the leaf that holds `day`."""
    return f"{table}_{day:%Y%m%d}"


def leaves_of(connection: Connection, table: str) -> list[str]:
    """Return the leaves of days that a partitioned table has, in the order of days."""
    with connection.cursor() as cursor:
        cursor.execute(LEAVES, [table])
        return [name for (name,) in cursor.fetchall()]


def relations_of(connection: Connection, table: Table, window: Window) -> list[str]:
    """Return the names of what must be read for a window.

    A row is put into the newest leaf that its table, or its sequence, has moved on to: where that was done late or not
    at all, it stands in the leaf of an earlier day, and where the clock was set back, in a later one's. So each leaf is
    asked; one that has nothing of the window says so by its index of time. Whatever ends now is filed under the day or
    a later one: those are read for what had not ended, whether they have any of it yet or not.

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
    own = leaf_of(source, window.day)
    known = own.__le__ if table in UNENDED else own.__eq__
    found = [leaf for leaf in leaves_of(connection, source) if known(leaf) or _holds(connection, leaf, table, window)]
    return [*found, OPEN] if table in UNENDED else found


def _holds(connection: Connection, leaf: str, table: Table, window: Window) -> bool:
    condition = ended_later(window) if table in UNENDED else within(table, stretch_of(table, window))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS (SELECT FROM {leaf} r WHERE {condition})")
        return bool(cursor.fetchone()[0])


def rows_of(table: Table, window: Window, relations: Sequence[str], sampling: str = "") -> str:
    """Return the rows of all relations as one, as SQL; they are made like each other, column for column."""
    conditions = dict.fromkeys(relations, "")
    if table in UNENDED:
        made = f"r.created_at < '{window.end.isoformat()}'"
        conditions = dict.fromkeys(relations, f" WHERE {made} AND {ended_later(window)}") | {OPEN: f" WHERE {made}"}
    selects = (f"SELECT r.* FROM {name} r{sampling}{conditions[name]}" for name in relations)
    return f"({' UNION ALL '.join(selects)})"


def messages_of(connection: Connection, relations: Sequence[str]) -> list[str]:
    """Return the leaves in which the messages of deliveries in `relations` are, as far as there are any."""
    days = set[str]()
    for leaf in relations:
        with connection.cursor() as cursor:
            cursor.execute(DAYS_OF_MESSAGES.format(leaf=leaf))
            days |= {f"{day:06}" for (day,) in cursor.fetchall()}
    return [leaf for leaf in leaves_of(connection, MESSAGES) if leaf[-6:] in days]


def reach_of(connection: Connection, window: Window) -> dt.datetime:
    """Return an instant before all of the window's deliveries were made, and at most a day before all in their leaves.

    Ids are given in the order of publishing, but for publishes that overlap: a day is more than they do.
    """
    made = [window.start]
    for leaf in relations_of(connection, tables.DELIVERIES, window):
        with connection.cursor() as cursor:
            cursor.execute(FIRST_MADE.format(leaf=leaf))
            made += [at for (at,) in cursor.fetchall()]
    return min(made) - DAY


def ended_later(window: Window) -> str:
    """Return the condition of deliveries `r` that were made before the window's end and ended after it."""
    return f"r.finished_at >= '{window.end.isoformat()}' AND r.id < {_first_id_after(window)}"


def _first_id_after(window: Window) -> int:
    """Return an id above those of all that was made by the window's end: ids begin with the day, see `IDS_DRAWN_LATE`.

    So that of the days after it only what was made before them is looked at.
    """
    day_after = (window.end - dt.timedelta(microseconds=1)).date() + DAY
    return int(f"{day_after:%y%m%d}") * IDS_PER_DAY + IDS_DRAWN_LATE
