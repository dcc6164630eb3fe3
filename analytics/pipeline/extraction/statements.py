"""The SQL that reads each bronze table: from which partitions, which columns, and by which time or id it is sliced."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from analytics.pipeline import tables
from analytics.pipeline.connections import Unreadable, fetch
from analytics.pipeline.job import DAY, Window
from analytics.pipeline.tables import Table

MESSAGES: Final = "delivery_message"
DELIVERIES: Final = "delivery_delivery"
ATTEMPTS: Final = "delivery_attempt"

PARTITIONED: Final = frozenset({MESSAGES, DELIVERIES, ATTEMPTS})
IDS_DRAWN_LATE: Final = 10**6
"""Rows created just before midnight may draw their ids just after it: a quarter of an hour's at 1,000 a second."""

LEAVES: Final = r"""
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = to_regclass(%s) AND c.relname ~ '_\d{8}$'
 ORDER BY c.relname
"""

IDS_PER_DAY: Final = 10**10
"""Ids begin with the day, as YYMMDD."""

FIRST_CREATED: Final = f"""
SELECT LEAST(created_at, to_date(lpad((id / {IDS_PER_DAY})::text, 6, '0'), 'YYMMDD')) FROM {{leaf}} ORDER BY id LIMIT 1
"""
"""A backfill draws ids before it creates their rows, maybe days before: then the id says when the others began."""
DAY_EXISTS: Final = "SELECT FROM delivery_storageday WHERE day = %s AND dropped_at IS NULL"

OPEN: Final = "delivery_open"
"""The leaf of the unfinished deliveries."""

SUBSCRIPTION: Final = " LEFT JOIN subscriptions_subscription s ON s.id = r.subscription_id"

ENDPOINT: Final = r"regexp_replace(regexp_replace(r.endpoint, '[?#].*$', ''), '^([^/]*//)[^/]*@', '\1')"
"""Without user, password, query and fragment; with the HTTP method that may precede it."""

UNREAD: Final = "(r.status = 'EXPIRED' AND starts_with(r.reason, 'unread for '))"
"""The end of deliveries that nobody fetched from their mailbox for days, and of no others."""

ORDERING_KEY: Final = """CASE WHEN (r.ordering_key IS NOT NULL OR r.group_id IS NULL AND s.subscriber_id IN (
  SELECT id FROM subscriptions_subscriber WHERE keyless_until > 0)) AND COALESCE(
  (SELECT c.processing_before FROM subscriptions_statuschange c
    WHERE c.subscriber_id = s.subscriber_id AND c.subscription_id IS NULL AND c.at > r.finished_at
    ORDER BY c.at LIMIT 1),
  (SELECT u.processing FROM subscriptions_subscriber u WHERE u.id = s.subscriber_id),
  'KEYED') = 'KEYED' THEN md5(COALESCE(r.ordering_key, '')) END"""
"""A hash, since keys come from bodies; null unless its subscriber was KEYED when it ended, or is now.

What was published before its subscriber named a path has the empty key. What is of a deleted subscription counts as
KEYED.
"""

COUNT_WAITING: Final = """
SELECT r.subscription_id, r.line_id, {since} AS since, count(*) AS deliveries
  FROM {rows} r WHERE {condition} GROUP BY 1, 2, 3"""
SINCE: Final = "GREATEST('{start}', to_timestamp(ceil(extract(epoch FROM r.created_at) / 300) * 300))"
"""The end of the five minutes in which a delivery began to wait; the window's start for earlier ones."""

IDLE_BACKLOG: Final = """
SELECT m.at, o.subscriber_id, COALESCE(n.name, '') AS subscriber, sum(w.deliveries) AS deliveries
  FROM ({waiting}) w
  LEFT JOIN subscriptions_subscription s ON s.id = w.subscription_id
  LEFT JOIN delivery_line l ON l.id = w.line_id
  CROSS JOIN LATERAL (SELECT COALESCE(s.subscriber_id, l.subscriber_id) AS subscriber_id) o
  LEFT JOIN subscriptions_subscriber n ON n.id = o.subscriber_id
  JOIN generate_series('{start}'::timestamptz, '{end}'::timestamptz - interval '1 microsecond', '5 minutes') m (at)
    ON m.at >= w.since
 GROUP BY 1, 2, 3"""

IN_WINDOW: Final = (tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES, tables.CALLBACKS)
"""Tables whose rows lie in the window; they no longer change once it is closed."""
EVENTS: Final = frozenset({tables.STATUS_CHANGES, tables.RELEASES})
"""Tables of events that affect the window's deliveries, from before the first was created to the window's end."""

Bounds = tuple[str | None, str | None]
"""The first time or id (inclusive) and the last (exclusive); None: unbounded."""

MESSAGE_DAYS: Final = f"""
WITH RECURSIVE found (first) AS (
  SELECT min(message_id) FROM {{leaf}}
  UNION ALL
  SELECT (SELECT min(message_id) FROM {{leaf}} WHERE message_id >= (first / {IDS_PER_DAY} + 1) * {IDS_PER_DAY})
    FROM found WHERE first IS NOT NULL)
SELECT first / {IDS_PER_DAY} FROM found WHERE first IS NOT NULL
"""
"""One index lookup per day, however many deliveries there are."""


def leaf_of(table: str, day: dt.date) -> str:
    """Return the name of the partition of a day."""
    return f"{table}_{day:%Y%m%d}"


def leaves_of(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """Return the day partitions of a table, in the order of days."""
    return [name for (name,) in fetch(connection, LEAVES, table)]


def relations_of(connection: psycopg.Connection[Any], table: Table, window: Window) -> list[str]:
    """Return the names of the partitions, or the table, to read for a window.

    A row is filed in the newest partition that its table or sequence has switched to: after a late switch it is in an
    earlier day's, and after the clock was set back in a later day's. So each partition is asked; the index by time
    answers quickly if it has no rows of the window. Deliveries that end now are filed under today or later: for
    unfinished ones those partitions are always read.

    Raises:
        Unreadable: retention has dropped some of the rows.
    """
    source = SOURCES[table].rows
    if source not in PARTITIONED:
        return [source]
    if not fetch(connection, DAY_EXISTS, window.day):
        # Reading the day would replace its summaries with nothing.
        raise Unreadable(f"{window.day} cannot be summarized (again): its rows have been dropped, or it has not begun")
    own, is_unfinished = leaf_of(source, window.day), table in UNFINISHED_TABLES
    condition = ended_later(connection, window) if is_unfinished else within(table, bounds_of(table, window))
    found = [
        leaf
        for leaf in leaves_of(connection, source)
        if leaf == own
        or (is_unfinished and leaf > own)
        or fetch(connection, f"SELECT 1 FROM {leaf} r WHERE {condition} LIMIT 1")
    ]
    return [*found, OPEN] if is_unfinished else found


def rows_of(
    connection: psycopg.Connection[Any], table: Table, window: Window, relations: Sequence[str], sampling: str = ""
) -> str:
    """Return SQL for the rows of all relations, which have the same columns."""
    conditions = dict.fromkeys(relations, "")
    if table in UNFINISHED_TABLES:
        created = f"r.created_at < '{window.end.isoformat()}'"
        conditions = dict.fromkeys(relations, f" WHERE {created} AND {ended_later(connection, window)}") | {
            OPEN: f" WHERE {created}"
        }
    selects = (f"SELECT r.* FROM {name} r{sampling}{conditions[name]}" for name in relations)
    return f"({' UNION ALL '.join(selects)})"


def messages_of(connection: psycopg.Connection[Any], relations: Sequence[str]) -> list[str]:
    """Return the partitions with the messages of the deliveries in `relations`."""
    days = set[str]()
    for leaf in relations:
        days |= {f"{day:06}" for (day,) in fetch(connection, MESSAGE_DAYS.format(leaf=leaf))}
    return [leaf for leaf in leaves_of(connection, MESSAGES) if leaf[-6:] in days]


def earliest_event(connection: psycopg.Connection[Any], window: Window) -> dt.datetime:
    """Return an instant before the window's deliveries were created, at most a day before their partitions' first.

    Ids follow the order of publishing, except for overlapping publishes, which take less than a day.
    """
    created = [window.start]
    for leaf in relations_of(connection, tables.DELIVERIES, window):
        created += [at for (at,) in fetch(connection, FIRST_CREATED.format(leaf=leaf))]
    return min(created) - DAY


def ended_later(connection: psycopg.Connection[Any], window: Window) -> str:
    """Return the condition of deliveries `r` created before the window's end that ended after it.

    Ids begin with the day: the bound on them keeps the scan out of what later days created. After the clock was set
    back, the ids of a day begin with a later one, as those of its messages do.
    """
    published = f"r.published_at < '{window.end.isoformat()}'"
    last_leaf = leaf_of(MESSAGES, (window.end - dt.timedelta.resolution).date())
    later = [leaf for leaf in leaves_of(connection, MESSAGES) if leaf > last_leaf]
    filed = (leaf for leaf in reversed(later) if fetch(connection, f"SELECT 1 FROM {leaf} r WHERE {published} LIMIT 1"))
    day_after = dt.date.fromisoformat(next(filed, last_leaf)[-8:]) + DAY
    first_id_after = int(f"{day_after:%y%m%d}") * IDS_PER_DAY + IDS_DRAWN_LATE
    return f"r.finished_at >= '{window.end.isoformat()}' AND r.id < {first_id_after}"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows of one bronze table come from."""

    rows: str
    """A table of the broker; partitioned ones are read partition by partition, by name."""
    by: str
    """A column that never changes: slices are ranges of it, so that each row is in exactly one."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """Columns that are expressions."""
    only: str = "true"
    """The condition on its rows `r`."""
    joined: str = ""
    """A join that keeps one row per row."""


SOURCES: Final = {
    tables.DELIVERIES: Source(
        DELIVERIES, "finished_at", {"unread": UNREAD, "ordering_key": ORDERING_KEY}, joined=SUBSCRIPTION
    ),
    tables.UNFINISHED: Source(
        DELIVERIES,
        "id",
        {"finished_at": "NULL", "unread": UNREAD, "ordering_key": ORDERING_KEY},
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

UNFINISHED_TABLES: Final = frozenset({tables.UNFINISHED, tables.WAITING})
"""Tables of deliveries that were unfinished at the window's end.

Sliced by id, each slice one statement: a delivery that moves to another partition between two slices is read once.
"""


def bounds_of(table: Table, window: Window) -> Bounds:
    """Return the bounds of a table's rows for a window."""
    if table in IN_WINDOW:
        return window.start.isoformat(), window.end.isoformat()
    return None, window.end.isoformat() if table in EVENTS else None


def within(table: Table, bounds: Bounds) -> str:
    """Return the condition of a table's rows `r` within bounds, as SQL."""
    source = SOURCES[table]
    ends = zip((">=", "<"), bounds, strict=True)
    return " AND ".join([source.only, *(f"r.{source.by} {sign} '{end}'" for sign, end in ends if end is not None)])


def selected(table: Table, window: Window, rows: str, bounds: Bounds, messages: Sequence[str] = ()) -> str:
    """Return the query for the rows of a table within bounds, with its columns in order; `rows` comes from `rows_of`.

    `messages` are the partitions of the deliveries' messages.
    """
    condition = within(table, bounds)
    if table == tables.WAITING:
        since = SINCE.format(start=window.start.isoformat())
        return COUNT_WAITING.format(since=since, rows=rows, condition=condition)
    source = SOURCES[table]
    computed = {**source.computed, **({"event_type_id": event_type(messages)} if source.joined else {})}
    columns = ", ".join(f"{computed.get(name, f'r.{name}')} AS {name}" for name in table.types)
    return f"SELECT {columns} FROM {rows} r{source.joined} WHERE {condition}"


def idle_backlog(connection: psycopg.Connection[Any], window: Window) -> str:
    """Return the query for the backlog of a window in which no delivery ended: what waits at its end has only grown.

    Raises:
        Unreadable: retention has dropped some of the rows.
    """
    table = tables.WAITING
    rows = rows_of(connection, table, window, relations_of(connection, table, window))
    return IDLE_BACKLOG.format(waiting=selected(table, window, rows, bounds_of(table, window)), **window.as_json())


def event_type(messages: Sequence[str]) -> str:
    """Return the event type of a delivery `r`, as SQL; its message is looked up in its own partition only.

    A query on the parent table would lock all partitions; retention would wait for that, and publishers for retention.
    """
    looked_up = "".join(
        f" WHEN {leaf[-6:]} THEN (SELECT m.event_type_id FROM {leaf} m WHERE m.id = r.message_id)" for leaf in messages
    )
    of_message = f"CASE r.message_id / {IDS_PER_DAY}{looked_up} END" if looked_up else "NULL"
    return f"COALESCE(s.event_type_id, {of_message})"
