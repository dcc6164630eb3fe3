"""Publish the broker's own events, once and in order (contract 5.7)."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from django.db import transaction

from broker_project.core.db import rows
from delivery.publish.store import NewMessage, store
from subscriptions.models import EventType, Status, Subscription
from subscriptions.names import OWN_EVENTS

TOLD: Final = ("status", "pause", "reason", "attempts", "fetches", "since")
"""Of the details recorded with an occasion those that are published, whatever else is there."""

SLICE: Final = 500
HELD_SECONDS: Final = 60
"""A line that is held for less has merely been interrupted."""
JSON: Final = "application/json"

ALONE: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('announcements', 0))"
"""Two at a time would not keep the order."""
ALONE_WITH_LINES: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('held lines', 0))"
"""One at a time is enough."""

HOLDS: Final = """
       (h.status IN ('PENDING', 'IN_FLIGHT')
        AND (h.subscription_id IS NULL OR s.status = 'ACTIVE' AND s.paused_since IS NULL AND u.status = 'ACTIVE'))"""
"""Whether a line's head, `h`, holds anything up: one cancelled, paused, even if on trial, or inactivated does not."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """One thing that has gone wrong, or goes right again."""

    id: int
    kind: str
    """The event type's name."""
    at: datetime
    details: dict[str, Any]
    subscriber: str | None
    subscription_id: int | None
    events: str | None
    """What the subscription is for: an event type's name, or a pattern."""
    delivery_id: int | None
    callback_id: int | None
    """Of a line that is a callback's."""

    @property
    def document(self) -> bytes:
        """The JSON object that is published: what does not apply is left out."""
        said = {
            "announcement": self.id,
            "at": self.at,
            "subscriber": self.subscriber,
            "subscription": self.subscription_id,
            "events": self.events,
            "delivery": self.delivery_id,
            "callback": self.callback_id,
            **{name: self.details.get(name) for name in TOLD},
        }
        return orjson.dumps({name: value for name, value in said.items() if value not in {None, ""}})


TAKE: Final = f"""
WITH taken AS (
  DELETE FROM delivery_announcement WHERE id = ANY (ARRAY(
    SELECT id FROM delivery_announcement ORDER BY id LIMIT {SLICE} FOR UPDATE SKIP LOCKED))
  RETURNING *)
SELECT t.id, t.kind, t.at, t.details::text, u.name, s.id, COALESCE(e.name, s.event_pattern), t.delivery_id,
       l.callback_id
  FROM taken t
  LEFT JOIN delivery_line l ON l.id = t.line_id
  LEFT JOIN subscriptions_subscription s ON s.id = t.subscription_id
  LEFT JOIN subscriptions_eventtype e ON e.id = s.event_type_id
  LEFT JOIN subscriptions_subscriber u ON u.id = COALESCE(s.subscriber_id, l.subscriber_id)
 ORDER BY t.id
"""

TELL_OF_HELD: Final = f"""
WITH held AS MATERIALIZED (
  SELECT l.id, l.head_id, h.subscription_id, l.held_reason, l.held_since
    FROM delivery_line l
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open d WHERE d.id = l.head_id AND d.closed_on = '9999-12-31' LIMIT 1) h
   CROSS JOIN LATERAL (
     SELECT (SELECT name FROM subscriptions_eventtype e WHERE e.id = m.event_type_id) AS event_type
       FROM delivery_message m WHERE m.id = h.message_id LIMIT 1) m
    LEFT JOIN subscriptions_subscription s ON s.id = h.subscription_id
    LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   WHERE l.held_since <= (SELECT clock_timestamp()) - make_interval(secs => {HELD_SECONDS})
     AND l.pause_announced_at IS NULL AND NOT starts_with(COALESCE(m.event_type, ''), '{OWN_EVENTS}') AND {HOLDS}
   ORDER BY l.id LIMIT {SLICE} FOR NO KEY UPDATE OF l SKIP LOCKED),
noted AS (UPDATE delivery_line l SET pause_announced_at = clock_timestamp() FROM held h WHERE l.id = h.id)
INSERT INTO delivery_announcement (kind, line_id, subscription_id, delivery_id, details)
SELECT '{OWN_EVENTS}Line.Paused', id, subscription_id, head_id,
       jsonb_build_object('pause', 'HELD', 'reason', held_reason, 'since', held_since)
  FROM held ORDER BY id RETURNING id
"""

TELL_OF_FREE: Final = f"""
WITH free AS MATERIALIZED (
  SELECT l.id FROM delivery_line l
   WHERE l.pause_announced_at IS NOT NULL AND (
     l.held_since IS NULL OR l.held_since > l.pause_announced_at
     OR (SELECT h.id FROM delivery_open h LEFT JOIN subscriptions_subscription s ON s.id = h.subscription_id
           LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
          WHERE h.id = l.head_id AND h.closed_on = '9999-12-31' AND {HOLDS} LIMIT 1) IS NULL)
   ORDER BY l.id LIMIT {SLICE} FOR NO KEY UPDATE OF l SKIP LOCKED),
noted AS (UPDATE delivery_line l SET pause_announced_at = NULL FROM free f WHERE l.id = f.id)
INSERT INTO delivery_announcement (kind, line_id, details)
SELECT '{OWN_EVENTS}Line.Resumed', id, '{{"pause": "HELD"}}' FROM free ORDER BY id RETURNING id
"""


def announce() -> int:
    """Publish the oldest announcements, unless somebody else is at it; return how many.

    One of a kind that nobody subscribes to is dropped: it would be stored for nobody.
    """
    with transaction.atomic():
        ((is_alone,),) = rows(ALONE)
        if not is_alone:
            return 0
        occasions = [
            Occasion(number, kind, at, orjson.loads(details), *columns)
            for number, kind, at, details, *columns in rows(TAKE)
        ]
        wanted = _wanted({one.kind for one in occasions})
        messages = [
            NewMessage(wanted[one.kind], one.kind, one.document, JSON) for one in occasions if one.kind in wanted
        ]
        store(messages, publisher_id=None, senders=0)
    return len(occasions)


def tell_of_held_lines() -> int:
    """Record of lines held for over a minute that they are, and of others told of that they go on; return how many.

    Nothing where somebody else is at it.
    """
    with transaction.atomic():
        ((is_alone,),) = rows(ALONE_WITH_LINES)
        return len(rows(TELL_OF_HELD)) + len(rows(TELL_OF_FREE)) if is_alone else 0


def _wanted(kinds: Collection[str]) -> dict[str, int]:
    """Return the ids of those event types, by name, that some subscription which is active is reached by."""
    active = Subscription.objects.filter(status=Status.ACTIVE, subscriber__status=Status.ACTIVE)
    return {
        one.name: one.pk
        for one in EventType.objects.filter(name__in=kinds)
        if active.filter(pk__in=Subscription.objects.reached_by(one)).exists()
    }
