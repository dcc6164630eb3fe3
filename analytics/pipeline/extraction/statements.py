"""What is selected for each table of bronze, from which tables of the broker, and by which time or id it is sliced."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from analytics.pipeline import tables
from analytics.pipeline.extraction.connection import Connection, DayGone
from analytics.pipeline.job import DAY, Window
from analytics.pipeline.tables import Table

MESSAGES: Final = "delivery_message"
DELIVERIES: Final = "delivery_delivery"
ATTEMPTS: Final = "delivery_attempt"

PARTITIONED: Final = frozenset({MESSAGES, DELIVERIES, ATTEMPTS})
IDS_DRAWN_LATE: Final = 10**6
"""What is made just before midnight may draw its id just after it: a quarter of an hour's at 1,000 a second."""

LEAVES: Final = r"""
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = to_regclass(%s) AND c.relname ~ '_\d{8}$'
 ORDER BY c.relname
"""

IDS_PER_DAY: Final = 10**10
"""Ids begin with the day, as YYMMDD."""

FIRST_MADE: Final = f"""
SELECT LEAST(created_at, to_date(lpad((id / {IDS_PER_DAY})::text, 6, '0'), 'YYMMDD')) FROM {{leaf}} ORDER BY id LIMIT 1
"""
"""A backfill draws its ids before it makes what gets them, maybe days before: then the id tells of the others."""
STANDS: Final = "SELECT FROM delivery_storageday WHERE day = %s AND dropped_at IS NULL"

OPEN: Final = "delivery_open"
"""The leaf of the unfinished deliveries."""

SUBSCRIPTION: Final = " LEFT JOIN subscriptions_subscription s ON s.id = r.subscription_id"
EVENT_TYPE: Final = "event_type_id"
"""The subscription's; of subscriptions by pattern, deleted ones, and replies the message's."""


ENDPOINT: Final = r"regexp_replace(regexp_replace(r.endpoint, '[?#].*$', ''), '^([^/]*//)[^/]*@', '\1')"
"""Without user, password, query and fragment; with the method that may stand before it."""

UNREAD: Final = "(r.status = 'EXPIRED' AND starts_with(r.reason, 'unread for '))"
"""Of a mailbox's own making: what nobody has fetched for days ends so, and nothing else does."""

WAITS: Final = """
SELECT r.subscription_id, r.line_id, {since} AS since, count(*) AS deliveries
  FROM {rows} r WHERE {condition} GROUP BY 1, 2, 3"""
SINCE: Final = "GREATEST('{start}', to_timestamp(ceil(extract(epoch FROM r.created_at) / 300) * 300))"
"""The five minutes in which something began to wait go by their end, and by the window's start what did before it."""


IN_WINDOW: Final = frozenset({tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES, tables.CALLBACKS})
"""Their rows lie in the window."""
HAPPENED_TO_THEM: Final = frozenset({tables.STATUS_CHANGES, tables.RELEASES})
"""What may have happened to its deliveries, up to its end, since the first of them was made."""


Stretch = tuple[str | None, str | None]
"""From (inclusive) and to (exclusive) which time or id; None: without an end."""

DAYS_OF_MESSAGES: Final = f"""
WITH RECURSIVE found (first) AS (
  SELECT min(message_id) FROM {{leaf}}
  UNION ALL
  SELECT (SELECT min(message_id) FROM {{leaf}} WHERE message_id >= (first / {IDS_PER_DAY} + 1) * {IDS_PER_DAY})
    FROM found WHERE first IS NOT NULL)
SELECT first / {IDS_PER_DAY} FROM found WHERE first IS NOT NULL
"""
"""A look into the index for each day, however many deliveries there are."""


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


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows of one table of bronze come from."""

    rows: str
    """A table of the broker; for partitioned ones its leaves are read by name."""
    by: str
    """A column that never changes: slices are pieces of it, so that no row is in two of them, or in none."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not simply columns of it."""
    only: str = "true"
    """Which of its rows `r`."""
    joined: str = ""
    """What is joined to a row, once."""


SOURCES: Final = {
    tables.DELIVERIES: Source(DELIVERIES, "finished_at", {"unread": UNREAD}, joined=SUBSCRIPTION),
    tables.UNFINISHED: Source(
        DELIVERIES,
        "id",
        {"finished_at": "NULL", "unread": UNREAD},
        "(r.attempts > 0 OR r.sequence IS NOT NULL)",
        SUBSCRIPTION,
    ),
    tables.WAITING: Source(DELIVERIES, "id"),
    tables.ATTEMPTS: Source(ATTEMPTS, "started_at"),
    tables.MESSAGES: Source(MESSAGES, "published_at"),
    tables.CALLBACKS: Source("delivery_callback", "created_at"),
    tables.STATUS_CHANGES: Source("subscriptions_statuschange", "at"),
    tables.RELEASES: Source(
        "delivery_lineevent", "at", only="r.kind IN ('RELEASED', 'RESUMED') AND r.delivery_id IS NOT NULL"
    ),
    tables.SUBSCRIBERS: Source("subscriptions_subscriber", "id"),
    tables.SUBSCRIPTIONS: Source("subscriptions_subscription", "id", {"endpoint": ENDPOINT}),
    tables.EVENT_TYPES: Source("subscriptions_eventtype", "id"),
    tables.PUBLISHERS: Source("subscriptions_publisher", "id"),
    tables.LINES: Source("delivery_line", "id", only="(r.subscriber_id IS NOT NULL OR r.sender IS NOT NULL)"),
}


UNENDED: Final = frozenset({tables.UNFINISHED, tables.WAITING})
"""Of deliveries that ended after the window, if at all.

Sliced by id, each slice one statement: so none is lost or doubled that is changed, and thereby moved within its table
or filed in another, while the slices are read one after the other.
"""


def stretch_of(table: Table, window: Window) -> Stretch:
    """Return which rows of a table a window has."""
    if table in IN_WINDOW:
        return window.start.isoformat(), window.end.isoformat()
    return None, window.end.isoformat() if table in HAPPENED_TO_THEM else None


def within(table: Table, stretch: Stretch) -> str:
    """Return the condition of a table's rows `r` in a stretch, as SQL."""
    source = SOURCES[table]
    ends = zip((">=", "<"), stretch, strict=True)
    return " AND ".join([source.only, *(f"r.{source.by} {sign} '{end}'" for sign, end in ends if end is not None)])


def selected(table: Table, window: Window, rows: str, stretch: Stretch, messages: Sequence[str] = ()) -> str:
    """Return the query for a stretch of a table, its columns in their order; `rows` is as `leaves.rows_of` says.

    `messages` are the leaves in which the deliveries' messages are.
    """
    condition = within(table, stretch)
    if table == tables.WAITING:
        since = SINCE.format(start=window.start.isoformat())
        return WAITS.format(since=since, rows=rows, condition=condition)
    source = SOURCES[table]
    computed = {**source.computed, **({EVENT_TYPE: event_type(messages)} if source.joined else {})}
    columns = ", ".join(f"{computed.get(name, f'r.{name}')} AS {name}" for name in names_of(table))
    return f"SELECT {columns} FROM {rows} r{source.joined} WHERE {condition}"


def event_type(messages: Sequence[str]) -> str:
    """Return the event type of a delivery `r`, as SQL: a message is looked up, where it must be, in its own leaf only.

    Through their parent each slice would hold a lock on it and all leaves, for which retention would wait, and behind
    it whoever publishes.
    """
    looked_up = "".join(
        f" WHEN {leaf[-6:]} THEN (SELECT m.event_type_id FROM {leaf} m WHERE m.id = r.message_id)" for leaf in messages
    )
    of_message = f"CASE r.message_id / {IDS_PER_DAY}{looked_up} END" if looked_up else "NULL"
    return f"COALESCE(s.event_type_id, {of_message})"


def names_of(table: Table) -> Sequence[str]:
    """Return the names of a table's columns."""
    return [column.split()[0] for column in table.columns.split(", ")]
