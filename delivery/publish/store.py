"""Store messages with their deliveries: one statement for all of them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property, partial
from typing import Any, Final, LiteralString

import orjson
from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.due_times import DUE_LATER, RELEASED
from delivery.mailbox import long_poll
from delivery.publish.document import document_of
from delivery.publish.idempotency import fingerprint_of
from delivery.publish.routing import ASTRAY, Route, log_astray, placed, routes_of, sender_lines
from subscriptions.filters import Document
from subscriptions.models import EventKind

LINES: Final = """
    JOIN message m ON m.position = d.position
    JOIN delivery_line l ON l.subscriber_id = d.subscriber_id AND l.lane = 'main'
   ORDER BY d.place
  RETURNING line_id, subscription_id, status)"""


RESULT: Final = """
SELECT position, id FROM message
UNION ALL
SELECT DISTINCT 0, line_id FROM lined_up WHERE status = 'PENDING' AND subscription_id <> ALL (%(pulled)s::bigint[])
"""

DELIVERY_COLUMNS: Final = ("d_position", "d_subscription_id", "d_subscriber_id", "d_failure", "d_group")

RARE: Final = ("destination", "ttl", "not_before", "copy_of")
"""Columns that are left out where they say nothing."""

MESSAGES: Final = """
WITH message AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS id, m.*, clock_timestamp() + make_interval(secs => m.ttl) AS expires_at
    FROM (
    SELECT * FROM unnest(%(body)b::bytea[]) WITH ORDINALITY AS b (body, position)
      JOIN json_to_recordset(%(messages)s::json)
        AS m (position bigint, event_type_id bigint, publisher_id bigint, content_type text, headers jsonb,
              filter_string text, destination text, ttl float8, not_before timestamptz, copy_of bigint,
              outcome text, deliveries_count int)
     USING (position) ORDER BY position) m),
stored AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                destination, expires_at, not_before, copy_of, outcome, deliveries_count, published_at)
  SELECT id, event_type_id, publisher_id, body, octet_length(body), content_type, headers, filter_string, destination,
         expires_at, not_before, copy_of, outcome, deliveries_count, clock_timestamp() FROM message),"""

PENDING: Final = """
lined_up AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
  SELECT m.id, l.id, d.subscription_id, 'PENDING', octet_length(m.body)
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, place)"""

SOME_WAIT: Final = f"""
lined_up AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, reason, due_at, expires_at, not_before)
  SELECT m.id, l.id, d.subscription_id, CASE d.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END, octet_length(m.body),
         d.failure,
         CASE WHEN d.failure <> '' THEN {RELEASED} WHEN m.not_before > clock_timestamp() THEN {DUE_LATER} END,
         m.expires_at, m.not_before
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[],
                %(d_failure)s::text[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, failure, place)"""


SOME_GROUPED: Final = f"""
placed AS MATERIALIZED (
  SELECT nextval('delivery_delivery_id_seq') AS id, p.* FROM (
    SELECT m.id AS message_id, d.subscription_id, d.failure, d.number, octet_length(m.body) AS size,
           m.expires_at, m.not_before,
           CASE d.number
             WHEN 0 THEN (SELECT id FROM delivery_line WHERE subscriber_id = d.subscriber_id AND lane = 'main')
             ELSE (%(senders)s::bigint[])[1 + m.id %% cardinality(%(senders)s::bigint[])] END AS line_id,
           CASE WHEN d.failure <> '' THEN {RELEASED}
                WHEN m.not_before > clock_timestamp() THEN CASE d.number WHEN 0 THEN {DUE_LATER} ELSE m.not_before END
           END AS due_at
      FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[],
                  %(d_failure)s::text[], %(d_group)s::bigint[])
        WITH ORDINALITY AS d (position, subscription_id, subscriber_id, failure, number, place)
      JOIN message m ON m.position = d.position
     ORDER BY d.place) p),
grouped AS MATERIALIZED (
  SELECT min(id) AS id, number, message_id, line_id, size, due_at, array_agg(id ORDER BY id) AS delivery_ids
    FROM placed WHERE number > 0 GROUP BY number, message_id, line_id, size, due_at),
kept AS (
  INSERT INTO delivery_queuegroup (id, message_id, line_id, delivery_ids, size, due_at)
  SELECT id, message_id, line_id, delivery_ids, size, due_at FROM grouped ORDER BY id),
lined_up AS (
  INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, reason, due_at,
                             expires_at, not_before)
  SELECT p.id, p.message_id, p.line_id, p.subscription_id, g.id, CASE p.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END,
         p.size, p.failure, CASE WHEN p.number = 0 OR p.failure <> '' THEN p.due_at END, p.expires_at, p.not_before
    FROM placed p LEFT JOIN grouped g ON g.number = p.number
   ORDER BY p.id
  RETURNING line_id, subscription_id, status)"""
"""The ids first, since deliveries and groups name each other: a group has the id of its first delivery.

A group is delayed as a whole: order does not count there, so that it is simply due later.
"""


@cache
def store_statement(*, waits: bool, groups: bool = False) -> LiteralString:
    """Return the statement for messages of which some are not just to be sent, or none; or some are QUEUE's.

    Some wait: their filter failed (contract 3.6), or they have a time to live or are delayed (contract 2.10, 2.13).

    Ids are given out in the order of the messages, and of each one's groups and deliveries; returns the messages' ids
    by position, and at 0 the lines that have something to send: those `pulled`
    are fetched from mailboxes.
    """
    if groups:
        return MESSAGES + SOME_GROUPED + RESULT
    return MESSAGES + (SOME_WAIT if waits else PENDING) + LINES + RESULT


@dataclass(frozen=True)
class NewMessage:
    """What a publisher wants published."""

    event_type_id: int
    event_type: str
    body: bytes
    content_type: str
    headers: Sequence[tuple[str, str]] = ()
    """Without those that are never kept (contract 2.11)."""
    filter_string: str | None = None
    idempotency_key: str | None = None
    kind: str = EventKind.TOPIC
    """The event type's."""
    callback_url: str | None = None
    """Where the result of a QUEUE message is to be posted (contract 6.7)."""
    destination: str | None = None
    """The subscriber that it is for, or `default`: one for each; None: whoever qualifies (contract 2.8)."""
    ttl: float | None = None
    """Seconds after which it is not sent any more (contract 2.10)."""
    not_before: datetime | None = None
    """Before when it is not sent (contract 2.13)."""
    copy_of: int | None = None
    """The message that somebody resubmits as this one (contract 5.8)."""

    @property
    def is_timed(self) -> bool:
        """Whether the time in which it is sent is limited."""
        return self.ttl is not None or self.not_before is not None

    @cached_property
    def document(self) -> Document:
        """What filters see of it."""
        return document_of(self.headers, self.content_type, self.filter_string, self.body)

    @cached_property
    def fingerprint(self) -> bytes:
        """What makes two publishes the same: event type, body, filter string, callback and destination (2.6)."""
        return fingerprint_of([self.event_type, self.body, self.filter_string, self.callback_url, self.destination])


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is answered to a publish."""

    id: int
    outcome: str
    deliveries: int
    replayed: bool = False
    """Whether an earlier publish with the same idempotency key was answered so."""


def store(messages: Sequence[NewMessage], publisher_id: int | None, senders: int) -> list[Accepted]:
    """Store the messages in their order and, after the commit, wake the lines that got something."""
    if not messages:
        return []
    routes = routes_of(messages)
    queues = sender_lines(senders) if any(message.kind == EventKind.QUEUE for message in messages) else {}
    pulled = _pulled(routes)
    arguments = {
        "body": [message.body for message in messages],
        "messages": _columns(messages, routes, publisher_id),
        **_delivery_columns(messages, routes),
        "pulled": sorted(pulled),
    }
    waits = any(arguments["d_failure"]) or any(message.is_timed for message in messages)
    found = rows(store_statement(waits=waits, groups=bool(queues)), arguments | {"senders": [*queues]})
    _wake_after_commit({line_id: queues.get(line_id, notify.TOPIC) for place, line_id in found if not place})
    transaction.on_commit(partial(long_poll.hint, {*pulled.values()}), robust=True)
    ids = [message_id for place, message_id in sorted(found) if place]
    if any(route.outcome in ASTRAY for route in routes):
        transaction.on_commit(partial(log_astray, ids, messages, routes), robust=True)
    return [
        Accepted(message_id, route.outcome, len(route.matches)) for message_id, route in zip(ids, routes, strict=True)
    ]


def _pulled(routes: Sequence[Route]) -> dict[int, int]:
    """Return the subscriptions that have something to be fetched now, each with its subscriber."""
    matches = itertools.chain.from_iterable(route.matches for route in routes)
    return {match.subscription_id: match.subscriber_id for match in matches if match.is_pulled}


def _wake_after_commit(queues: Mapping[int, str]) -> None:
    """Wake the lines, of which each has its Celery queue, once what they are to send is there."""
    for queue in sorted({*queues.values()}):
        lines = sorted(line_id for line_id, its in queues.items() if its == queue)
        transaction.on_commit(partial(notify.wake, queue, lines), robust=True)


def _delivery_columns(messages: Sequence[NewMessage], routes: Sequence[Route]) -> dict[str, list[Any]]:
    matches = [route.matches for route in routes]
    columns = [*zip(*placed(messages, matches), strict=True)] or [()] * len(DELIVERY_COLUMNS)
    return {name: [*column] for name, column in zip(DELIVERY_COLUMNS, columns, strict=True)}


def _columns(messages: Sequence[NewMessage], routes: Sequence[Route], publisher_id: int | None) -> str:
    return orjson.dumps(
        [
            {
                "position": place,
                "event_type_id": message.event_type_id,
                "publisher_id": publisher_id,
                "content_type": message.content_type,
                "headers": message.headers,
                "filter_string": message.filter_string,
                "outcome": route.outcome,
                "deliveries_count": len(route.matches),
                **_rare_columns(message),
            }
            for place, (message, route) in enumerate(zip(messages, routes, strict=True), 1)
        ]
    ).decode()


def _rare_columns(message: NewMessage) -> dict[str, object]:
    columns = {name: getattr(message, name) for name in RARE}
    return {name: value for name, value in columns.items() if value is not None}
