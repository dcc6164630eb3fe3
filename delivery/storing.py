"""Storing messages with a delivery for every subscription that qualifies: one statement for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import orjson
from django.db import transaction

from delivery import wakeups
from delivery.idempotency import fingerprint_of
from delivery.models import MessageOutcome
from subscriptions.database import rows
from subscriptions.matching import Kind, Match, matching_subscriptions

STORE: Final = """
WITH message AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS id, m.* FROM (
    SELECT * FROM unnest(%(body)b::bytea[]) WITH ORDINALITY AS b (body, position)
      JOIN json_to_recordset(%(messages)s::json)
        AS m (position bigint, event_type_id bigint, publisher_id bigint, content_type text, headers jsonb,
              filter_string text, outcome text, deliveries_count int)
     USING (position) ORDER BY position) m),
stored AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                outcome, deliveries_count, published_at)
  SELECT id, event_type_id, publisher_id, body, octet_length(body), content_type, headers, filter_string, outcome,
         deliveries_count, clock_timestamp() FROM message),
lined_up AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
  SELECT m.id, l.id, d.subscription_id, 'PENDING', octet_length(m.body)
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, place)
    JOIN message m ON m.position = d.position
    JOIN delivery_line l ON l.subscriber_id = d.subscriber_id AND l.lane = 'main'
   ORDER BY d.place
  RETURNING line_id)
SELECT position, id FROM message
UNION ALL
SELECT DISTINCT 0, line_id FROM lined_up
"""
"""Ids are given out in the order of the messages, and of each one's deliveries; returns both ids and lines."""


@dataclass(frozen=True)
class NewMessage:
    """What a publisher wants published."""

    event_type_id: int
    event_type: str
    body: bytes
    content_type: str
    headers: Sequence[tuple[str, str]] = ()
    """Without those that are never kept (behaviour 2.11)."""
    filter_string: str | None = None
    idempotency_key: str | None = None

    @cached_property
    def fingerprint(self) -> bytes:
        """What makes two publishes the same: event type, body and filter string (behaviour 2.6)."""
        return fingerprint_of([self.event_type, self.body, self.filter_string])


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is answered to a publish."""

    id: int
    outcome: str
    deliveries: int
    replayed: bool = False
    """Whether an earlier publish with the same idempotency key was answered so."""


def store(messages: Sequence[NewMessage], publisher_id: int | None) -> list[Accepted]:
    """Store the messages in their order and, after the commit, wake the lines that got something."""
    if not messages:
        return []
    matches = _matches(messages)
    placed = [(place, *match) for place, qualified in enumerate(matches, 1) for match in qualified]
    found = rows(
        STORE,
        {
            "body": [message.body for message in messages],
            "messages": _columns(messages, matches, publisher_id),
            "d_position": [place for place, _, _ in placed],
            "d_subscription_id": [subscription_id for _, subscription_id, _ in placed],
            "d_subscriber_id": [subscriber_id for _, _, subscriber_id in placed],
        },
    )
    if woken := sorted(line_id for place, line_id in found if not place):
        transaction.on_commit(partial(wakeups.wake, wakeups.TOPIC, woken), robust=True)
    ids = [message_id for place, message_id in sorted(found) if place]
    return [
        Accepted(message_id, _outcome(qualified), len(qualified))
        for message_id, qualified in zip(ids, matches, strict=True)
    ]


def _matches(messages: Sequence[NewMessage]) -> list[list[Match]]:
    """Return the qualifying subscriptions of each message; like messages are matched once."""
    kinds = [Kind(message.event_type_id, message.filter_string) for message in messages]
    matches = matching_subscriptions(dict.fromkeys(kinds))
    return [matches.get(kind, []) for kind in kinds]


def _outcome(qualified: Sequence[Match]) -> MessageOutcome:
    return MessageOutcome.ROUTED if qualified else MessageOutcome.UNROUTED


def _columns(messages: Sequence[NewMessage], matches: Sequence[Sequence[Match]], publisher_id: int | None) -> str:
    return orjson.dumps(
        [
            {
                "position": place,
                "event_type_id": message.event_type_id,
                "publisher_id": publisher_id,
                "content_type": message.content_type,
                "headers": message.headers,
                "filter_string": message.filter_string,
                "outcome": _outcome(qualified),
                "deliveries_count": len(qualified),
            }
            for place, (message, qualified) in enumerate(zip(messages, matches, strict=True), 1)
        ]
    ).decode()
