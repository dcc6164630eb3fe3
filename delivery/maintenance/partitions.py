"""Create and drop the partitions of days; the only module that knows their names.

Messages and attempts are partitioned by `id`. Ids come from ordinary sequences that move forward when a day begins, to
`YYMMDD · 10^10 + n`: the key stays simple, the day can be read off it, no clock decides the order of ids, and a late
maintenance job makes a bigger partition instead of failing inserts. Deliveries are partitioned by `closed_on`: the open
partition, or the day they ended.
"""

import datetime as dt
from contextlib import suppress
from typing import Any, Final

import psycopg
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from broker_project.core.db import RowLocked, rows
from delivery.filing import SHORT_LOCK_WAIT
from delivery.statuses import FINAL

Cursor = CursorWrapper | psycopg.Cursor[Any]

IDS_PER_DAY: Final = 10**10
"""900712 · 10^10 is below 2^53: ids are safe in JavaScript until the year 2090."""

DAYS_AHEAD: Final = 7
MESSAGES: Final = "delivery_message"
ATTEMPTS: Final = "delivery_attempt"
DELIVERIES: Final = "delivery_delivery"
SEQUENCES: Final = ("delivery_message_id_seq", "delivery_delivery_id_seq", "delivery_attempt_id_seq")

ONE_AT_A_TIME: Final = "hashtext('delivery.storage_days')"
"""Advisory lock of everything that creates or drops days."""

TIME_INDEX: Final = "CREATE INDEX ON {{leaf}} USING brin ({when}) WITH (pages_per_range = 32)"
INDEXES: Final = {
    MESSAGES: TIME_INDEX.format(when="published_at"),
    ATTEMPTS: TIME_INDEX.format(when="started_at"),
    DELIVERIES: f"""
ALTER TABLE {{leaf}} ADD CONSTRAINT delivery_open_or_filed
  CHECK (status = ANY (string_to_array('{",".join(sorted(FINAL))}', ',')) AND finished_at IS NOT NULL);
CREATE INDEX ON {{leaf}} (line_id, sequence) WHERE sequence IS NOT NULL;
CREATE INDEX ON {{leaf}} (subscription_id, id);
CREATE INDEX ON {{leaf}} (message_id);
CREATE INDEX ON {{leaf}} (resubmit_of) WHERE resubmit_of IS NOT NULL;
CREATE INDEX ON {{leaf}} (status, id) WHERE status <> 'DELIVERED';
CREATE INDEX ON {{leaf}} (subscription_id, status, id) WHERE status <> 'DELIVERED';
CREATE INDEX ON {{leaf}} USING brin (finished_at) WITH (pages_per_range = 32);
""",
}
"""Summaries read a table in ranges of its time, which is nearly in the order of its ids."""

FILING_DAYS: Final = """
SELECT min(day), max(day)
  FROM (SELECT day, (clock_timestamp() AT TIME ZONE 'UTC')::date AS now,
               day - row_number() OVER (ORDER BY day)::int AS run  -- the same of days without a gap between them
          FROM delivery_storageday WHERE dropped_at IS NULL) d
 GROUP BY run, now ORDER BY min(day) > now, GREATEST(min(day) - now, now - max(day)) LIMIT 1
"""
FILING_DAY: Final = "SELECT LEAST(GREATEST((clock_timestamp() AT TIME ZONE 'UTC')::date, '{first}'), '{last}')"

SUMMARIZE_TIMES: Final = """
SELECT brin_summarize_new_values(c.oid)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
 WHERE i.indrelid = to_regclass(%s) AND a.amname = 'brin'
"""

NOTE_DAY: Final = """
INSERT INTO delivery_storageday AS d (day, lived) VALUES (%s, %s)
    ON CONFLICT (day) DO UPDATE SET dropped_at = NULL, lived = d.lived OR excluded.lived
 WHERE d.dropped_at IS NOT NULL OR excluded.lived AND NOT d.lived
"""
TODAY: Final = "SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date"
LEFT: Final = """
SELECT extract(epoch FROM date_trunc('day', now, 'UTC') + interval '1 day' - now)::float8
  FROM (SELECT clock_timestamp() AS now) AS clock
"""


def first_id(day: dt.date) -> int:
    """Return the lowest id of `day`."""
    return int(day.strftime("%y%m%d")) * IDS_PER_DAY


def ids_of(day: dt.date) -> tuple[int, int]:
    """Return the lowest id of `day` and of the day after."""
    return first_id(day), first_id(day + dt.timedelta(days=1))


def leaf_of(table: str, day: dt.date) -> str:
    """Return the name of the partition of `day`."""
    return f"{table}_{day:%Y%m%d}"


def today() -> dt.date:
    """Return the database's day: a worker with a wrong clock creates and drops nothing."""
    day: dt.date = rows(TODAY)[0][0]
    return day


def seconds_left() -> float:
    """Return the seconds until the database's day ends."""
    return float(rows(LEFT)[0][0])


def open_days(today: dt.date, ahead: int = DAYS_AHEAD) -> None:
    """Create the partitions of `today` and the days ahead, and move ids into today; safe at any time."""
    with transaction.atomic(), connection.cursor() as cursor:
        open_with(cursor, today, ahead)


def open_with(cursor: Cursor, today: dt.date, ahead: int) -> None:
    """Do as `open_days`, in the cursor's transaction."""
    cursor.execute("SET LOCAL lock_timeout = '2s'")
    cursor.execute(f"SELECT pg_advisory_xact_lock({ONE_AT_A_TIME})")
    for day in (today + dt.timedelta(days=n) for n in range(ahead + 1)):
        for table, indexes in INDEXES.items():
            leaf = leaf_of(table, day)
            if not exists(cursor, leaf):
                create_leaf(cursor, table, leaf)
                cursor.execute(indexes.format(leaf=leaf))
                attach(cursor, table, leaf, day)
        cursor.execute(NOTE_DAY, [day, day == today])
    for sequence in SEQUENCES:
        # Forward only: a clock set back must not give out an id twice.
        cursor.execute(
            f"SELECT setval('{sequence}', %s, false) FROM {sequence} WHERE last_value < %s",
            [first_id(today)] * 2,
        )
    say_where_to_file(cursor)


def summarize_times(first: dt.date, last: dt.date) -> None:
    """Let the index of times know what was filed under these days since, which autovacuum does much later.

    If autovacuum has the table, it is left alone.
    """
    for leaf in (leaf_of(DELIVERIES, first + dt.timedelta(days=one)) for one in range((last - first).days + 1)):
        with suppress(RowLocked), transaction.atomic():
            rows(f"SELECT {SHORT_LOCK_WAIT}")
            rows(SUMMARIZE_TIMES, [leaf])


def say_where_to_file(cursor: Cursor) -> None:
    """Let statements file what ends under today, as far as there are partitions, else under the next day that has one.

    So a late maintenance job stops nothing, nor does a clock set back. The days are constants in a function: looking
    them up would take a tenth of a statement that settles one delivery. Replacing it lets each session plan again.
    """
    cursor.execute(FILING_DAYS)
    for first, last in cursor.fetchall():
        body = FILING_DAY.format(first=first, last=last)
        cursor.execute("SELECT FROM pg_proc WHERE proname = 'delivery_filing_day' AND prosrc = %s", [body])
        if not cursor.fetchone():
            cursor.execute(f"CREATE OR REPLACE FUNCTION delivery_filing_day() RETURNS date LANGUAGE sql AS $${body}$$")


def exists(cursor: Cursor, leaf: str) -> bool:
    """Return whether the partition exists."""
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [leaf])
    ((found,),) = cursor.fetchall()
    return bool(found)


def create_leaf(cursor: Cursor, table: str, leaf: str) -> None:
    """Create a table that can be attached to `table`.

    Rows are only added to it, so `autovacuum` gathers statistics when it has doubled: by default a busy day begins with
    sampling all of it every few seconds, which takes a tenth of PostgreSQL's CPU time.
    """
    cursor.execute(f"CREATE TABLE {leaf} (LIKE {table} INCLUDING ALL) WITH (autovacuum_analyze_scale_factor = 1)")


def attach(cursor: Cursor, table: str, leaf: str, day: dt.date) -> None:
    """Make `leaf` the partition of `day`.

    `LIKE` and `ATTACH` take a lock that publishers and workers do not notice; `PARTITION OF` would stop them all.
    """
    low, high = (day, day + dt.timedelta(days=1)) if table == DELIVERIES else ids_of(day)
    cursor.execute(f"ALTER TABLE {table} ATTACH PARTITION {leaf} FOR VALUES FROM ('{low}') TO ('{high}')")
