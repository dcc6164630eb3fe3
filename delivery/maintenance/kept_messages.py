"""Messages that something unfinished needs although their day is past its time (behaviour 11.4)."""

import datetime as dt
from typing import Final

from django.db.backends.utils import CursorWrapper

from delivery.maintenance.partitions import MESSAGES, attach, exists, ids_of, leaf_of, new_leaf

NEEDED: Final = """
SELECT {columns} FROM {leaf} m
 WHERE m.id IN (SELECT d.message_id FROM delivery_open d
                 WHERE d.closed_on = '9999-12-31' AND d.message_id >= {low} AND d.message_id < {high})
"""


def make_room(cursor: CursorWrapper, day: dt.date) -> None:
    """Make an empty table for what is to be kept of `day`, if anything; to be committed before it is filled.

    What goes into a table that its own transaction made may be left out of the write-ahead log: then it must be on
    disk before the commit ends, and everybody would wait for that.
    """
    kept = _room_of(day)
    cursor.execute(f"DROP TABLE IF EXISTS {kept}")  # an earlier try may have left it
    if exists(cursor, leaf_of(MESSAGES, day)) and _is_needed(cursor, day):
        low, high = ids_of(day)
        new_leaf(cursor, MESSAGES, kept)
        # Says what attaching would have to look for.
        cursor.execute(f"ALTER TABLE {kept} ADD CONSTRAINT {kept}_ids CHECK (id >= {low} AND id < {high})")


def copy_of_needed(cursor: CursorWrapper, day: dt.date) -> str | None:
    """Copy the messages of `day` that something unfinished needs into their table, while everybody goes on.

    Until the end nobody can add a message to that day, nor lock one to make a new delivery of it.
    """
    leaf, kept = leaf_of(MESSAGES, day), _room_of(day)
    if not exists(cursor, leaf):
        return None
    cursor.execute(f"LOCK TABLE ONLY {leaf} IN EXCLUSIVE MODE")
    if not (exists(cursor, kept) and _is_needed(cursor, day)):
        make_room(cursor, day)  # what is needed may have changed meanwhile
    if not exists(cursor, kept):
        return None
    cursor.execute(f"INSERT INTO {kept} {_needed('m.*', day)}")
    return kept


def put_back(cursor: CursorWrapper, day: dt.date, kept: str) -> None:
    """Make the copy the partition of its day; what was there must be gone."""
    low, high = ids_of(day)
    attach(cursor, MESSAGES, kept, str(low), str(high))
    cursor.execute(f"ALTER TABLE {kept} DROP CONSTRAINT {kept}_ids")
    cursor.execute(f"ALTER TABLE {kept} RENAME TO {leaf_of(MESSAGES, day)}")


def is_well_kept(cursor: CursorWrapper, day: dt.date) -> bool:
    """Tell whether what was kept is to stay as it is: some is needed still, and half of it or nobody looked lately.

    Looking is dear where much is kept: once a day will do.
    """
    if not _is_needed(cursor, day):
        return False
    cursor.execute(
        "UPDATE delivery_storageday SET dropped_at = clock_timestamp()"
        " WHERE day = %s AND dropped_at < clock_timestamp() - interval '1 day' RETURNING day",
        [day],
    )
    if not cursor.fetchone():
        return True
    cursor.execute(f"SELECT ({_needed('count(*)', day)}) * 2 >= count(*) FROM {leaf_of(MESSAGES, day)}")
    return bool(cursor.fetchone()[0])


def _room_of(day: dt.date) -> str:
    return f"{leaf_of(MESSAGES, day)}_kept"


def _is_needed(cursor: CursorWrapper, day: dt.date) -> bool:
    cursor.execute(f"SELECT EXISTS ({_needed('', day)})")
    return bool(cursor.fetchone()[0])


def _needed(columns: str, day: dt.date) -> str:
    low, high = ids_of(day)
    return NEEDED.format(columns=columns, leaf=leaf_of(MESSAGES, day), low=low, high=high)
