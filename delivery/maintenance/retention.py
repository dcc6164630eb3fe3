"""Drop days past their retention, but keep the messages that unfinished work needs (contract 11.4)."""

import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

import structlog
from django.db import OperationalError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Q

from broker_project.core.db import answered_within, rows
from delivery.believed_clock import BELIEVED_CLOCK
from delivery.maintenance import partitions
from delivery.maintenance.partitions import MESSAGES, exists, ids_of, leaf_of
from delivery.models import StorageDay

REPLAYS: Final = "DELETE FROM delivery_replay WHERE finished_at < %s::timestamptz - make_interval(days => %s::int)"
COUNTS: Final = "DELETE FROM delivery_volatilecount WHERE hour < %s::timestamptz - make_interval(days => %s::int)"
SLICE: Final = 5_000
HISTORIES: Final = ("delivery_lineevent", "subscriptions_statuschange", "subscriptions_formerdestination")
OLD_HISTORY: Final = """
WITH slice AS MATERIALIZED (SELECT id FROM {table} WHERE id > %s ORDER BY id LIMIT {slice}),
gone AS (
  DELETE FROM {table}
   WHERE at < %s::timestamptz - make_interval(days => %s::int)
     AND at < (SELECT COALESCE(min(day) - 1, 'infinity') FROM delivery_storageday WHERE dropped_at IS NULL)
     AND id = ANY (ARRAY(SELECT id FROM slice))
  RETURNING id)
SELECT max(id), (SELECT count(*) FROM gone) FROM slice
"""
"""Of the oldest rows: ids rise with time, so no index of times is needed. Returns the last id and how many are gone.

They tell of the days that are kept, and of requests that began just before (contract 10.4): they stay as long.
"""
MAX_KEPT_SLICES: Final = 10
"""Slices in a row of which nothing is deleted, until no more are looked at: their rows may have been written while the
clock was ahead, and older ones come after them.
"""

KEEP_DAYS_LOCK: Final = "hashtext('delivery.retention')"
"""First half of the advisory locks by which workers tell each other how many days they keep: the second half."""
HOLD_KEEP_DAYS: Final = f"SELECT pg_advisory_lock_shared({KEEP_DAYS_LOCK}, %s::int)"
OTHER_KEEP_DAYS: Final = f"""
SELECT l.objid::bigint FROM pg_locks l JOIN pg_database d ON d.oid = l.database
 WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
   AND l.classid::bigint = {KEEP_DAYS_LOCK}::bigint & 4294967295 AND l.objid::bigint <> %s
 LIMIT 1
"""

HINT: Final = (
    "past their time, but kept until they are summarized: the runs in the admin say why they are not; `manage.py"
    " summarize` tries again, BROKER_SUMMARIES=0 drops them without"
)

log = structlog.get_logger(__name__)

NEEDED: Final = """
SELECT {columns} FROM {leaf} m
 WHERE m.id IN (SELECT d.message_id FROM delivery_open d
                 WHERE d.closed_on = '9999-12-31' AND d.message_id >= {low} AND d.message_id < {high}{part})
"""

LOCK_WAIT: Final = "30ms"
"""Others queue behind a lock request: six requests of 30 ms delay others by less than 200 ms."""
TRIES: Final = 10
PAUSE_SECONDS: Final = 0.5
"""Between two tries, for those that waited to continue."""
COPY_SECONDS: Final = 600
"""How long copying a part of what is kept may take; nothing waits for it."""

KEPT: Final = "UPDATE delivery_storageday SET dropped_at = COALESCE(dropped_at, clock_timestamp()) WHERE day = %s"
GONE: Final = "DELETE FROM delivery_storageday WHERE day = %s"
MAX_DAYS: Final = 2
"""Dropped in one run: a clock that is far ahead deletes little before somebody notices."""
TABLES: Final = (MESSAGES, partitions.DELIVERIES, partitions.ATTEMPTS)


class RetentionDiffers(Exception):
    """Another worker on this database keeps data for another time, and the shorter time would win."""


def hold_keep_days(keep_days: int) -> None:
    """Let other workers know how many days this one keeps, as long as this thread keeps its connection.

    Raises `RetentionDiffers`: see `check_keep_days`.
    """
    rows(HOLD_KEEP_DAYS, [keep_days])
    check_keep_days(keep_days)


def check_keep_days(keep_days: int) -> None:
    """Raise `RetentionDiffers` if a worker that is running keeps another number of days."""
    for (other,) in rows(OTHER_KEEP_DAYS, [keep_days]):
        raise RetentionDiffers(
            f"BROKER_RETENTION_DAYS is {keep_days} here, and {other} in a worker that uses the same database: set both"
            " to the same, or stop the other one first."
        )


def delete_old_records(*, keep_days: int) -> None:
    """Delete what ended or happened `keep_days` ago: replays, backfills, counts of volatile messages, and histories."""
    for statement in (REPLAYS, COUNTS):
        rows(statement, [BELIEVED_CLOCK.now(), keep_days])
    for table in HISTORIES:
        last_id, kept_slices = 0, 0
        while last_id is not None and kept_slices < MAX_KEPT_SLICES:
            statement = OLD_HISTORY.format(table=table, slice=SLICE)
            ((last_id, deleted),) = rows(statement, [last_id, BELIEVED_CLOCK.now(), keep_days])
            kept_slices = 0 if deleted else kept_slices + 1


def days_kept() -> list[dt.date]:
    """Return the days that wait for their summary, the oldest first."""
    kept = StorageDay.objects.filter(kept_on__isnull=False, summarized_at=None, dropped_at=None)
    return [*kept.order_by("day").values_list("day", flat=True)]


def make_room(cursor: CursorWrapper, day: dt.date) -> None:
    """Create a table for the messages of `day` that are needed, if any; commit before it is filled.

    Rows of a table created in the same transaction may skip the write-ahead log. Then they are synced to disk before
    the commit, and everyone would wait for that.
    """
    kept = _room_of(day)
    if not exists(cursor, kept) and exists(cursor, leaf_of(MESSAGES, day)) and _is_needed(cursor, day):
        low, high = ids_of(day)
        partitions.create_leaf(cursor, MESSAGES, kept)
        # Says what attaching would have to look for.
        cursor.execute(f"ALTER TABLE {kept} ADD CONSTRAINT {kept}_ids CHECK (id >= {low} AND id < {high})")


def copy_part(cursor: CursorWrapper, day: dt.date) -> int:
    """Copy the next messages of `day` that unfinished deliveries need to their table; return how many."""
    kept = _room_of(day)
    if not exists(cursor, kept):
        return 0
    part = f" AND d.message_id > (SELECT COALESCE(max(id), 0) FROM {kept}) ORDER BY d.message_id LIMIT {SLICE}"
    cursor.execute(f"INSERT INTO {kept} {_needed('m.*', day, part)}")
    return int(cursor.rowcount)


def copy_rest(cursor: CursorWrapper, day: dt.date) -> str | None:
    """Copy what is not copied yet of the messages of `day` that are needed; return their table, if there are any.

    Until the transaction ends, no message can be added to that day, or locked for a new delivery.
    """
    leaf, kept = leaf_of(MESSAGES, day), _room_of(day)
    if not exists(cursor, leaf):
        return None
    cursor.execute(f"LOCK TABLE ONLY {leaf} IN EXCLUSIVE MODE")
    if not _is_needed(cursor, day):
        cursor.execute(f"DROP TABLE IF EXISTS {kept}")
        return None
    make_room(cursor, day)  # what is needed may have changed meanwhile
    cursor.execute(f"INSERT INTO {kept} {_needed('m.*', day)} AND NOT EXISTS (SELECT FROM {kept} k WHERE k.id = m.id)")
    return kept


def is_well_kept(cursor: CursorWrapper, day: dt.date) -> bool:
    """Return whether the kept messages stay: some are needed, and at least half, which is expensive: checked daily."""
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


def _needed(columns: str, day: dt.date, part: str = "") -> str:
    low, high = ids_of(day)
    return NEEDED.format(columns=columns, leaf=leaf_of(MESSAGES, day), low=low, high=high, part=part)


PAST: Final = """
WITH lived AS (SELECT day FROM delivery_storageday WHERE lived AND day < %s)
SELECT day, %s AND dropped_at IS NULL AND EXISTS (
    SELECT FROM delivery_storageday x WHERE x.summarized_at IS NULL AND x.dropped_at IS NULL AND x.day BETWEEN
      COALESCE((SELECT max(y.day) FROM delivery_storageday y WHERE y.day < d.day), d.day) AND
      COALESCE((SELECT min(y.day) FROM lived y WHERE y.day > d.day), d.day))
  FROM delivery_storageday d
 WHERE (SELECT count(*) FROM lived WHERE lived.day > d.day) >= %s
   -- a line abandoned then may find the last number it gave only among what was filed then: mended first
   AND NOT EXISTS (SELECT FROM delivery_line l WHERE l.lease_until < d.day + 2)
 ORDER BY day
"""
"""Counts days on which the broker ran, not dates: a clock set days or weeks ahead makes nothing older.

Also says whether a day waits for a summary, its own or a neighbour's. What began just before midnight may be filed
under the next day, and what came before ids were moved into a day is stored with the last day before it.
"""


def drop_past_days(
    today: dt.date,
    *,
    keep_days: int,
    until_summarized: bool = False,
    is_stopping: Callable[[], bool] = lambda: False,
) -> list[dt.date]:
    """Drop messages, finished deliveries and attempts of days that ended `keep_days` or more days ago.

    Messages of unfinished deliveries are kept, and dropped later. With `until_summarized`, a day stays until it and its
    neighbours are summarized, which is logged once a day. Days without a broker do not count. Drops at most `MAX_DAYS`.
    Blocks no transaction: a day whose locks are not free is left whole for the next run. Starts no further day once
    `is_stopping`.

    Returns the days that are gone or smaller now.
    """
    with connection.cursor() as cursor:
        cursor.execute(PAST, [today, until_summarized, keep_days])
        past = cursor.fetchall()
    missing = StorageDay.objects.filter(day__in=[day for day, waits in past if waits], summarized_at=None)
    unsaid = missing.filter(Q(kept_on=None) | ~Q(kept_on=today)).order_by("day")
    days = [day for day in unsaid.values_list("day", flat=True) if unsaid.filter(day=day).update(kept_on=today)]
    if days:  # however many processes look, one of them logs a day
        log.warning("storage_day.waits_for_summary", days=[str(day) for day in days], hint=HINT)
    droppable = islice((day for day, waits in past if not waits and not is_stopping() and _drop(day)), MAX_DAYS)
    return [*droppable]


def _drop(day: dt.date) -> bool:
    began = time.monotonic()
    try:
        locked = _drop_leaves(day) if _is_prepared(day) else None
    except OperationalError as refused:
        log.warning("storage_day.in_use", day=str(day), reason=refused)
        return False
    if locked:
        ended = time.monotonic()
        log.info("storage_day.dropped", day=str(day), seconds=ended - began, locked_seconds=ended - locked)
    return bool(locked)


@contextmanager
def _transaction() -> Iterator[CursorWrapper | None]:
    """Start a transaction that waits for no lock; yield None if another process creates or drops days."""
    with answered_within(2 * COPY_SECONDS), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = '{COPY_SECONDS}s'")
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        cursor.execute(f"SELECT pg_try_advisory_xact_lock({partitions.ONE_AT_A_TIME})")
        yield cursor if cursor.fetchone()[0] else None


def _is_prepared(day: dt.date) -> bool:
    """Return whether something of `day` can be dropped now, after copying what is needed; each part stays copied."""
    with _transaction() as cursor:
        if cursor is None or (_leaves(cursor, day) == [leaf_of(MESSAGES, day)] and is_well_kept(cursor, day)):
            return False
        make_room(cursor, day)
    copied: int | None = 1
    while copied:
        with _transaction() as cursor:
            copied = copy_part(cursor, day) if cursor else None
    return copied == 0


def _drop_leaves(day: dt.date) -> float | None:
    """Drop what can go of `day`; return when others were locked out, None if never."""
    with _transaction() as cursor:
        if cursor is None:
            return None
        leaves = _leaves(cursor, day)
        kept = copy_rest(cursor, day)
        _lock([*TABLES, *leaves])
        locked = time.monotonic()
        for leaf in leaves:
            cursor.execute(f"DROP TABLE {leaf}")
        if kept:  # the copy becomes the partition of its day
            partitions.attach(cursor, MESSAGES, kept, day)
            cursor.execute(f"ALTER TABLE {kept} DROP CONSTRAINT {kept}_ids")
            cursor.execute(f"ALTER TABLE {kept} RENAME TO {leaf_of(MESSAGES, day)}")
        cursor.execute(KEPT if kept else GONE, [day])
        partitions.say_where_to_file(cursor)
    return locked


def _leaves(cursor: CursorWrapper, day: dt.date) -> list[str]:
    return [leaf for table in TABLES if exists(cursor, leaf := leaf_of(table, day))]


def _lock(tables: Sequence[str]) -> None:
    """Lock the tables exclusively, in the order in which publishers and workers use them.

    Raises `OperationalError` if they were in use at every try.
    """
    names = ", ".join(f"ONLY {table}" for table in tables)
    for tries_left in reversed(range(TRIES)):
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
        except OperationalError:
            if not tries_left:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return
