"""What is selected for each table of bronze, from which tables of the broker, and by which time or id it is sliced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from analytics.pipeline import tables
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table

MESSAGES: Final = "delivery_message"
DELIVERIES: Final = "delivery_delivery"
ATTEMPTS: Final = "delivery_attempt"
OPEN: Final = "delivery_open"
"""The leaf of the unfinished deliveries."""

SUBSCRIPTION: Final = " LEFT JOIN subscriptions_subscription s ON s.id = r.subscription_id"
EVENT_TYPE: Final = "event_type_id"
"""The subscription's; of subscriptions by pattern, deleted ones, and replies the message's."""

IDS_PER_DAY: Final = 10**10
"""Ids begin with the day, as YYMMDD."""

ENDPOINT: Final = r"regexp_replace(regexp_replace(r.endpoint, '[?#].*$', ''), '^([^/]*//)[^/]*@', '\1')"
"""Without user, password, query and fragment; with the method that may stand before it."""

UNREAD: Final = "(r.status = 'EXPIRED' AND starts_with(r.reason, 'unread for '))"
"""Of a mailbox's own making: what nobody has fetched for days ends so, and nothing else does."""

WAITS: Final = """
SELECT r.subscription_id, r.line_id, {since} AS since, count(*) AS deliveries
  FROM {rows} r WHERE {condition} GROUP BY 1, 2, 3"""
SINCE: Final = "GREATEST('{start}', to_timestamp(ceil(extract(epoch FROM r.created_at) / 300) * 300))"
"""The five minutes in which something began to wait go by their end, and by the window's start what did before it."""


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

IN_WINDOW: Final = frozenset({tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES, tables.CALLBACKS})
"""Their rows lie in the window."""
HAPPENED_TO_THEM: Final = frozenset({tables.STATUS_CHANGES, tables.RELEASES})
"""What may have happened to its deliveries, up to its end, since the first of them was made."""
UNENDED: Final = frozenset({tables.UNFINISHED, tables.WAITING})
"""Of deliveries that ended after the window, if at all.

Sliced by id, each slice one statement: so none is lost or doubled that is changed, and thereby moved within its table
or filed in another, while the slices are read one after the other.
"""

Stretch = tuple[str | None, str | None]
"""From (inclusive) and to (exclusive) which time or id; None: without an end."""


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
