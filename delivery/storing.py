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
from subscriptions.matching import Match, matching_subscriptions

NEW_IDS: Final = "SELECT nextval('delivery_message_id_seq') FROM generate_series(1, %s)"

STORE: Final = """
WITH message AS (
  SELECT * FROM unnest(%(id)s::bigint[], %(body)s::bytea[])
    WITH ORDINALITY AS b (id, body, position)
    JOIN json_to_recordset(%(messages)s::json)
      AS m (id bigint, event_type_id bigint, publisher_id bigint, content_type text, headers jsonb, filter_string text,
            outcome text, deliveries_count int)
   USING (id)),
stored AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                outcome, deliveries_count, published_at)
  SELECT id, event_type_id, publisher_id, body, octet_length(body), content_type, headers, filter_string, outcome,
         deliveries_count, clock_timestamp() FROM message)
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
SELECT m.id, l.id, d.subscription_id, 'PENDING', octet_length(m.body)
  FROM unnest(%(d_message_id)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[])
    WITH ORDINALITY AS d (message_id, subscription_id, subscriber_id, position)
  JOIN message m ON m.id = d.message_id
  JOIN delivery_line l ON l.subscriber_id = d.subscriber_id AND l.lane = 'main'
 ORDER BY d.position
RETURNING line_id
"""


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
    ids = [message_id for (message_id,) in rows(NEW_IDS, [len(messages)])]
    answers = [
        Accepted(message_id, MessageOutcome.ROUTED if qualified else MessageOutcome.UNROUTED, len(qualified))
        for message_id, qualified in zip(ids, matches, strict=True)
    ]
    deliveries = [
        (message_id, *match) for message_id, qualified in zip(ids, matches, strict=True) for match in qualified
    ]
    line_ids = rows(
        STORE,
        {
            "id": ids,
            "body": [message.body for message in messages],
            "messages": _columns(messages, answers, publisher_id),
            "d_message_id": [message_id for message_id, _, _ in deliveries],
            "d_subscription_id": [subscription_id for _, subscription_id, _ in deliveries],
            "d_subscriber_id": [subscriber_id for _, _, subscriber_id in deliveries],
        },
    )
    if woken := sorted({line_id for (line_id,) in line_ids}):
        transaction.on_commit(partial(wakeups.wake, wakeups.TOPIC, woken), robust=True)
    return answers


def _matches(messages: Sequence[NewMessage]) -> list[list[Match]]:
    """Return the qualifying subscriptions of each message; like messages are matched once."""
    by_kind: dict[tuple[int, str | None], list[Match]] = {}
    for message in messages:
        kind = (message.event_type_id, message.filter_string)
        if kind not in by_kind:
            by_kind[kind] = matching_subscriptions(*kind)
    return [by_kind[message.event_type_id, message.filter_string] for message in messages]


def _columns(messages: Sequence[NewMessage], answers: Sequence[Accepted], publisher_id: int | None) -> str:
    return orjson.dumps(
        [
            {
                "id": answer.id,
                "event_type_id": message.event_type_id,
                "publisher_id": publisher_id,
                "content_type": message.content_type,
                "headers": message.headers,
                "filter_string": message.filter_string,
                "outcome": answer.outcome,
                "deliveries_count": answer.deliveries,
            }
            for message, answer in zip(messages, answers, strict=True)
        ]
    ).decode()
