"""Store messages with their deliveries: one statement for all of them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import orjson
from django.db import transaction

from broker_project.core.db import array, rows
from delivery.dispatch import notify
from delivery.filing import MAIN_LINE
from delivery.mailbox import long_poll
from delivery.models import MessageOutcome
from delivery.publish.draft import Draft, document_of
from delivery.publish.idempotency import REMEMBER_NEW, Key, KeyUse, fingerprint_of
from delivery.publish.routing import (
    SENDER_LINE,
    UNRECEIVED,
    Route,
    failure_of,
    filter_groups,
    log_unreceived,
    ordering_key_of,
    sender_lines,
)
from subscriptions.credentials.keys import AS_FOUND, FoundKey, as_found, remember
from subscriptions.filters import Document, Work
from subscriptions.matching import REACHED, plain_lookups
from subscriptions.models import EventKind

RANGE_COLUMNS: Final = ("lookup", "event_type_id", "event_pattern", "header_filter", "low", "high")
DELIVERY_COLUMNS: Final = ("d_position", "d_subscription_id", "d_subscriber_id", "d_group")

RARE: Final = ("destination", "ttl", "not_before", "copy_of")
"""Message columns that are left out where they are None."""


STORED: Final = """
message AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS id, m.*, clock_timestamp() + make_interval(secs => m.ttl) AS expires_at
    FROM (
    SELECT * FROM unnest(%(body)s::bytea[]) WITH ORDINALITY AS b (body, position)
      JOIN json_to_recordset(%(messages)s::json)
        AS m (position bigint, event_type_id bigint, publisher_id bigint, content_type text, headers jsonb,
              filter_string text, destination text, ttl float8, not_before timestamptz, copy_of bigint,
              outcome text, {more})
     USING (position){deliveries} ORDER BY position) m),{once}
stored AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                destination, expires_at, not_before, copy_of, outcome, deliveries_count, published_at)
  SELECT id, event_type_id, publisher_id, body, octet_length(body), content_type, headers, filter_string, destination,
         expires_at, not_before, copy_of, outcome, deliveries_count, clock_timestamp() FROM {new}),"""
"""Stores messages, with `more` columns; `deliveries` joins how many each has, `once` finds the `new` ones."""
MESSAGES: Final = "WITH" + STORED.format(more="deliveries_count int", deliveries="", once="", new="message")

PENDING: Final = """
lined_up AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
  SELECT m.id, l.id, d.subscription_id, 'PENDING', octet_length(m.body)
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, place)"""

WAITS_FOR: Final = """
         CASE WHEN d.failure <> '' THEN 'RELEASE' WHEN m.not_before > clock_timestamp() THEN 'START' ELSE 'TURN' END"""

SOME_WAIT: Final = f"""
lined_up AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, reason, waits_for, expires_at,
                             not_before, ordering_key)
  SELECT m.id, l.id, d.subscription_id, CASE d.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END, octet_length(m.body),
         d.failure,{WAITS_FOR}, m.expires_at, m.not_before, d.ordering_key
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[],
                %(d_failure)s::text[], %(d_key)s::text[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, failure, ordering_key, place)"""

LINES: Final = f"""
    JOIN message m ON m.position = d.position
   CROSS JOIN {MAIN_LINE.format("d.subscriber_id")} l
   ORDER BY d.place
  RETURNING line_id, subscription_id, status)"""

SOME_GROUPED: Final = f"""
placed AS MATERIALIZED (
  SELECT next_delivery_id() AS id, p.* FROM (
    SELECT m.id AS message_id, d.subscription_id, d.failure, d.number, octet_length(m.body) AS size,
           m.expires_at, m.not_before, d.ordering_key,
           CASE d.number
             WHEN 0 THEN (SELECT l.id FROM {MAIN_LINE.format("d.subscriber_id")} l)
             ELSE {SENDER_LINE} END AS line_id,{WAITS_FOR} AS waits_for
      FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[],
                  %(d_failure)s::text[], %(d_key)s::text[], %(d_group)s::bigint[])
        WITH ORDINALITY AS d (position, subscription_id, subscriber_id, failure, ordering_key, number, place)
      JOIN message m ON m.position = d.position
     ORDER BY d.place) p),
grouped AS MATERIALIZED (
  SELECT min(id) AS id, number, message_id, line_id, size, array_agg(id ORDER BY id) AS delivery_ids,
         min(waits_for) AS waits_for, CASE min(waits_for) WHEN 'START' THEN min(not_before) END AS due_at
    FROM placed WHERE number > 0 GROUP BY number, message_id, line_id, size),
kept AS (
  INSERT INTO delivery_queuegroup (id, message_id, line_id, delivery_ids, size, waits_for, due_at)
  SELECT id, message_id, line_id, delivery_ids, size, waits_for, due_at FROM grouped ORDER BY id),
lined_up AS (
  INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, reason, waits_for,
                             expires_at, not_before, ordering_key)
  SELECT p.id, p.message_id, p.line_id, p.subscription_id, g.id, CASE p.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END,
         p.size, p.failure, CASE WHEN p.number > 0 AND p.waits_for = 'START' THEN 'TURN' ELSE p.waits_for END,
         p.expires_at, p.not_before, p.ordering_key
    FROM placed p LEFT JOIN grouped g ON g.number = p.number
   ORDER BY p.id
  RETURNING line_id, subscription_id, status)"""
"""The ids come first, since deliveries and groups name each other: a group has the id of its first delivery.

A group is HELD or delayed as a whole. Order does not count for groups, so a delayed one simply becomes due later.
"""

RESULT: Final = """
SELECT position, id FROM message
UNION ALL
SELECT DISTINCT 0, line_id FROM lined_up WHERE status = 'PENDING' AND subscription_id <> ALL (%(pulled)s::bigint[])
"""

STORE: Final = MESSAGES + PENDING + LINES + RESULT
"""TOPIC messages that are sent as soon as possible.

All three statements give out ids in the order of the messages, and of each one's groups and deliveries. They return
the messages' ids by position and, at position 0, the lines that have work. `pulled` are the subscriptions with a
mailbox.
"""
STORE_WAITING: Final = MESSAGES + SOME_WAIT + LINES + RESULT
"""The same where a filter failed (contract 3.6), a message has a time to live or is delayed (2.10, 2.13), or there
are ordering keys (4.18).
"""
STORE_GROUPS: Final = MESSAGES + SOME_GROUPED + RESULT
"""The same where some messages are QUEUE messages."""

_COUNTED: Final = f"""
      JOIN counted USING (lookup)
     WHERE (SELECT bool_and(is_plain IS TRUE) AND sum(deliveries_count * uses) <= %(max_deliveries)s
              FROM unnest(%(uses)s::bigint[]) WITH ORDINALITY AS u (uses, lookup) LEFT JOIN counted USING (lookup))
       AND {AS_FOUND}"""
_CANDIDATES: Final = f"""
WITH candidate AS MATERIALIZED (
  SELECT k.lookup, s.id, s.subscriber_id, s.position,
         s.filter = '' AND s.delivery_mode = 'PUSH' AND u.key_path IS NULL AS is_plain
    FROM unnest(%(lookup)s::bigint[], %(event_type_id)s::bigint[], %(event_pattern)s::text[],
                %(header_filter)s::text[], %(low)s::text[], %(high)s::text[])
           AS k (lookup, event_type_id, event_pattern, filter_string, low, high){REACHED}),
counted AS MATERIALIZED (
  SELECT lookup, count(*)::int AS deliveries_count, bool_and(is_plain) AS is_plain FROM candidate GROUP BY lookup),
"""
_LINED_UP: Final = f"""
lined_up AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
  SELECT m.id, l.id, c.id, 'PENDING', octet_length(m.body)
    FROM {{new}} m JOIN candidate c USING (lookup)
   CROSS JOIN {MAIN_LINE.format("c.subscriber_id")} l
   ORDER BY m.position, c.subscriber_id, c.position, c.id
  RETURNING line_id)
SELECT DISTINCT 0, line_id, 0 FROM lined_up
UNION ALL
"""
CHOOSE_AND_STORE: Final = (
    _CANDIDATES
    + STORED.format(more="lookup bigint", deliveries=_COUNTED, once="", new="message")
    + _LINED_UP.format(new="message")
    + "SELECT position, id, deliveries_count FROM message"
)
"""The same, and chooses the subscriptions; unless each message has some, all without filter, mailbox and ordering keys,
or keys or event types are not as they were found.

`uses` says how many messages have each look-up.
"""
_ONCE: Final = f"""
used AS ({REMEMBER_NEW}),
new AS MATERIALIZED (SELECT * FROM message WHERE key IS NULL OR id IN (SELECT message_id FROM used)),"""
CHOOSE_AND_STORE_ONCE: Final = (
    _CANDIDATES
    + STORED.format(more="lookup bigint, key text, fingerprint text", deliveries=_COUNTED, once=_ONCE, new="new")
    + _LINED_UP.format(new="new")
    + "SELECT position, new.id, message.deliveries_count FROM message LEFT JOIN new USING (position)"
)
"""The same where some messages have idempotency keys. A message whose key is in use is not stored, and has no id.

A statement of its own: the additions cost a message without a key 5 % more.
"""


@dataclass(frozen=True, kw_only=True)
class NewMessage(Draft):
    """A checked message; its headers are without those that are never kept (contract 2.11)."""

    content_type: str
    event_type_id: int
    kind: str = EventKind.TOPIC
    """The event type's."""
    publisher_id: int | None = None
    """None: published with a management key, or by the broker itself."""
    copy_of: int | None = None
    """The message that is resubmitted as this one (contract 5.8)."""
    work: Work = field(default_factory=Work, compare=False)
    """What filters do; the messages of one publish share it."""
    repeats: KeyUse | None = None
    """The earlier publish that it repeats, and would be refused if it did not: it is answered and never stored."""

    @cached_property
    def document(self) -> Document:
        """What filters see of it."""
        document = document_of(self.headers, self.content_type, self.filter_string, self.body)
        document.work = self.work
        return document

    @property
    def key(self) -> Key | None:
        """Its idempotency key, which is its publisher's own."""
        return Key(self.publisher_id, self.idempotency_key) if self.idempotency_key else None

    @cached_property
    def fingerprint(self) -> bytes:
        """A hash of what makes two publishes the same (contract 2.6)."""
        return fingerprint_of([self.event_type, self.body, self.filter_string, self.callback_url, self.destination])


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to one published message."""

    id: int
    """0: it is volatile, so it is not stored."""
    outcome: str
    deliveries: int
    """How many subscriptions it is to be sent to."""
    replayed: bool = False
    """Whether it repeats the answer to an earlier publish with the same idempotency key."""


def store(
    messages: Sequence[NewMessage], routes: Sequence[Route], senders: int, *, is_last: bool = False
) -> list[Accepted]:
    """Store the messages in their order, with their deliveries; after the commit, wake the lines that got something.

    `is_last`: nothing follows in the transaction.
    """
    if not messages:
        return []
    queues = sender_lines(senders) if any(message.kind == EventKind.QUEUE for message in messages) else {}
    pulled = {one.subscription_id: one.subscriber_id for route in routes for one in route.matches if one.is_pulled}
    arguments = {
        "body": [message.body for message in messages],
        "messages": _message_columns(
            messages, [{"outcome": route.outcome, "deliveries_count": len(route.matches)} for route in routes]
        ),
        "pulled": sorted(pulled),
        "senders": [*queues],
        **_delivery_columns(messages, routes),
    }
    is_plain = not (
        any(arguments["d_failure"])
        or any(key is not None for key in arguments["d_key"])
        or any(one.ttl is not None or one.not_before is not None for one in messages)
    )
    found = rows(STORE_GROUPS if queues else STORE if is_plain else STORE_WAITING, arguments, is_last=is_last)
    ids = [message_id for place, message_id in sorted(found) if place]
    notify.wake_after_commit((queues.get(line_id, notify.TOPIC), line_id) for place, line_id in found if not place)
    transaction.on_commit(partial(long_poll.hint, {*pulled.values()}), robust=True)
    if any(route.outcome in UNRECEIVED for route in routes):
        transaction.on_commit(partial(log_unreceived, ids, messages, routes), robust=True)
    return [Accepted(found_id, route.outcome, len(route.matches)) for found_id, route in zip(ids, routes, strict=True)]


def choose_and_store(
    messages: Sequence[NewMessage], found: Collection[FoundKey], *, max_deliveries: int, key_hours: int
) -> list[Accepted | None]:
    """Store messages with their deliveries in one statement, a transaction of its own, if that is possible.

    That is for TOPIC messages without delay, time to live and destination. It is tried if the last messages like these
    had subscriptions, and these had neither filters nor mailboxes nor ordering keys; it is done if that is so now, the
    messages have at most `max_deliveries` together, and API keys and event types are as they were `found`, which is
    remembered then. If it is not done, nothing is returned. It does what `routes_of` and `store` do, and stores
    idempotency keys. A message whose idempotency key is in use, also by one before it, is left out; its answer is None.
    """
    lookups = plain_lookups(messages)
    if not lookups:
        return []
    numbers = {lookup: number for number, lookup in enumerate(dict.fromkeys(lookups), 1)}
    ranges = [(str(number), *range_.columns) for lookup, number in numbers.items() for range_ in lookup.ranges]
    columns = [
        {"outcome": MessageOutcome.ROUTED, "lookup": numbers[lookup]}
        | ({"key": key, "fingerprint": message.fingerprint.hex()} if (key := message.idempotency_key) else {})
        for message, lookup in zip(messages, lookups, strict=True)
    ]
    arguments = {
        "body": [message.body for message in messages],
        "messages": _message_columns(messages, columns),
        "uses": array(Counter(lookups).values()),
        "max_deliveries": max_deliveries,
        "hours": key_hours,
        **as_found([*{one.asked: one for one in found}.values()]),
        **dict(zip(RANGE_COLUMNS, (array(column) for column in zip(*ranges, strict=True)), strict=True)),
    }
    has_keys = any(message.idempotency_key for message in messages)
    answer = rows(CHOOSE_AND_STORE_ONCE if has_keys else CHOOSE_AND_STORE, arguments)
    notify.wake_after_commit((notify.TOPIC, line_id) for place, line_id, _ in answer if not place)
    stored = sorted(one for one in answer if one[0])
    if stored:
        remember(found)
    return [one and Accepted(one, MessageOutcome.ROUTED, deliveries) for _, one, deliveries in stored]


def _message_columns(messages: Sequence[NewMessage], more: Sequence[Mapping[str, Any]]) -> str:
    return orjson.dumps(
        [
            {
                "position": place,
                "event_type_id": message.event_type_id,
                "publisher_id": message.publisher_id,
                "content_type": message.content_type,
                "headers": message.headers,
                "filter_string": message.filter_string,
                **columns,
                **{name: value for name in RARE if (value := getattr(message, name)) is not None},
            }
            for place, (message, columns) in enumerate(zip(messages, more, strict=True), 1)
        ]
    ).decode()


def _delivery_columns(messages: Sequence[NewMessage], routes: Sequence[Route]) -> dict[str, list[Any] | str]:
    """Return the new deliveries, by column, in the order of the messages.

    Groups are numbered from 1 through all messages; 0 is no group. Numbers are written as PostgreSQL writes arrays,
    which takes an eighth of the time that psycopg takes.
    """
    deliveries: list[tuple[int, int, int, int]] = []
    failures: list[str] = []
    keys: list[str | None] = []
    number = 0
    for position, (message, route) in enumerate(zip(messages, routes, strict=True), 1):
        if message.kind != EventKind.QUEUE:
            deliveries += [(position, one.subscription_id, one.subscriber_id, 0) for one in route.matches]
            failures += [one.failure for one in route.matches]
            paths = [one.key_path for one in route.matches]
            keys += [None if path is None else ordering_key_of(path, message.document) for path in paths]
            continue
        for group in filter_groups(route.matches):
            number, failure = number + 1, failure_of(group)
            deliveries += [(position, one.subscription_id, one.subscriber_id, number) for one in group]
            failures += [failure] * len(group)
            keys += [None] * len(group)
    columns = [*zip(*deliveries, strict=True)] or [()] * len(DELIVERY_COLUMNS)
    return {
        "d_failure": failures,
        "d_key": keys,
        **{
            name: "{" + ",".join(map(str, column)) + "}" for name, column in zip(DELIVERY_COLUMNS, columns, strict=True)
        },
    }
