"""Days in the database: opening them ahead; the only module that knows the names of partitions.

Messages and attempts are partitioned by `id`. Ids come from ordinary sequences that are moved forward when a day
opens, `YYMMDD · 10^10 + n`: the key stays plain, the day can be read off it, no clock takes part in the order of
ids, and a late maintenance job means a bigger partition and never a refused insert. Deliveries are partitioned by
`closed_on`: the open shelf, or the day they ended.
"""

import datetime as dt
from typing import Final

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

IDS_PER_DAY: Final = 10**10
"""991231 · 10^10 is above 2^53, 900712 · 10^10 is not: ids are safe in JavaScript until the year 2090."""

DAYS_AHEAD: Final = 7
BY_ID: Final = ("delivery_message", "delivery_attempt")
SEQUENCES: Final = ("delivery_message_id_seq", "delivery_delivery_id_seq", "delivery_attempt_id_seq")

FILED_INDEXES: Final = """
CREATE INDEX ON {leaf} (line_id, sequence);
CREATE INDEX ON {leaf} (subscription_id, id);
CREATE INDEX ON {leaf} (message_id);
CREATE INDEX ON {leaf} (status, id) WHERE status <> 'DELIVERED';
CREATE INDEX ON {leaf} USING brin (finished_at) WITH (pages_per_range = 32);
"""


def first_id(day: dt.date) -> int:
    """Return the lowest id that can be given out on `day`."""
    return int(day.strftime("%y%m%d")) * IDS_PER_DAY


def open_days(today: dt.date, ahead: int = DAYS_AHEAD) -> None:
    """Make sure that `today` and the days ahead have partitions, and move the ids into today; safe at any time."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('delivery.storage_days'))")
        cursor.execute("SET LOCAL lock_timeout = '2s'")
        for day in (today + dt.timedelta(days=n) for n in range(ahead + 1)):
            _open(cursor, day)
        for sequence in SEQUENCES:
            # Forward only: a clock set back must not give out an id twice.
            cursor.execute(
                f"SELECT setval('{sequence}', %s, false) FROM {sequence} WHERE last_value < %s",  # noqa: S608
                [first_id(today)] * 2,
            )


def _open(cursor: CursorWrapper, day: dt.date) -> None:
    after = day + dt.timedelta(days=1)
    for table in BY_ID:
        _attach(cursor, table, day, str(first_id(day)), str(first_id(after)))
    if _attach(cursor, "delivery_delivery", day, f"'{day}'", f"'{after}'"):
        cursor.execute(FILED_INDEXES.format(leaf=f"delivery_delivery_{day:%Y%m%d}"))
    cursor.execute("INSERT INTO delivery_storageday (day) VALUES (%s) ON CONFLICT DO NOTHING", [day])


def _attach(cursor: CursorWrapper, table: str, day: dt.date, low: str, high: str) -> bool:
    """Attach the leaf of `day` unless it is there; say whether it was made.

    `LIKE` and `ATTACH` take a lock that publishers and workers do not notice; `PARTITION OF` would stop them all.
    """
    leaf = f"{table}_{day:%Y%m%d}"
    cursor.execute("SELECT to_regclass(%s)", [leaf])
    if cursor.fetchone()[0]:
        return False
    cursor.execute(f"CREATE TABLE {leaf} (LIKE {table} INCLUDING ALL)")
    cursor.execute(f"ALTER TABLE {table} ATTACH PARTITION {leaf} FOR VALUES FROM ({low}) TO ({high})")
    return True
