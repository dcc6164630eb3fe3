"""Publish the broker's own events, once and in order (contract 5.7)."""

from datetime import datetime
from typing import Final, NamedTuple

import orjson
from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch.claim import HELD_DELIVERY
from delivery.filing import IS_OWN
from delivery.publish.routing import routes_of
from delivery.publish.store import NewMessage, store
from subscriptions.models import EventType, Status, Subscription
from subscriptions.names import OWN_EVENTS

PUBLISHED_DETAILS: Final = ("alert", "status", "pause", "reason", "attempts", "fetches", "since")
"""The recorded details that are published; others are for us."""

SLICE: Final = 500
HELD_SECONDS: Final = 60
"""A line that is held for less time is not announced."""
JSON: Final = "application/json"

ARE_THERE: Final = "EXISTS (SELECT FROM delivery_announcement)"
ALONE: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('announcements', 0))"
"""Two processes at a time would not keep the order."""
ALONE_WITH_LINES: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('held lines', 0))"
"""One process at a time is enough."""

HOLDS: Final = f"""
    SELECT h.delivery_id, h.since, h.reason, d.subscription_id FROM delivery_hold h {HELD_DELIVERY}
     WHERE h.line_id = l.id AND h.reason <> '' AND d.status IN ('PENDING', 'IN_FLIGHT')
       AND (s.id IS NULL OR s.status = 'ACTIVE' AND s.paused_since IS NULL AND u.status = 'ACTIVE' AND NOT {IS_OWN})"""
"""What holds others of a line `l` up: nothing that is cancelled, or whose subscription is paused or inactive, and none
of the broker's own events."""


class AnnouncedEvent(NamedTuple):
    """Something that has gone wrong, or works again: a row of `TAKE`."""

    id: int
    kind: str
    """The event type's name."""
    at: datetime
    details: str
    """A JSON object."""
    subscriber: str | None
    subscription_id: int | None
    events: str | None
    """The subscription's event type or pattern."""
    delivery_id: int | None
    callback_id: int | None
    """Of a callback's line."""

    @property
    def document(self) -> bytes:
        """The JSON object that is published, without what does not apply."""
        details = orjson.loads(self.details)
        members = {
            "announcement": self.id,
            "at": self.at,
            "subscriber": self.subscriber,
            "subscription": self.subscription_id,
            "events": self.events,
            "delivery": self.delivery_id,
            "callback": self.callback_id,
            **{name: details.get(name) for name in PUBLISHED_DETAILS},
        }
        return orjson.dumps({name: value for name, value in members.items() if value not in {None, ""}})


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

IS_HELD: Final = f"""
  reason <> '' AND since <= (SELECT clock_timestamp()) - make_interval(secs => {HELD_SECONDS})"""
ARE_HELD: Final = f"""
  (EXISTS (SELECT FROM delivery_hold WHERE {IS_HELD})
   OR (SELECT id FROM delivery_line WHERE pause_announced_at IS NOT NULL ORDER BY id LIMIT 1) IS NOT NULL)"""
"""Whether there are lines to announce, or announced ones that may go on."""
ANNOUNCE_HELD: Final = f"""
WITH held AS MATERIALIZED (
  SELECT l.id, h.delivery_id, h.subscription_id, h.reason, h.since
    FROM (SELECT DISTINCT line_id FROM delivery_hold WHERE {IS_HELD}) w
    JOIN delivery_line l ON l.id = w.line_id AND l.pause_announced_at IS NULL
   CROSS JOIN LATERAL ({HOLDS} ORDER BY h.since, h.delivery_id LIMIT 1) h
   WHERE h.since <= (SELECT clock_timestamp()) - make_interval(secs => {HELD_SECONDS})
   ORDER BY l.id LIMIT {SLICE} FOR NO KEY UPDATE OF l SKIP LOCKED),
noted AS (UPDATE delivery_line l SET pause_announced_at = clock_timestamp() FROM held h WHERE l.id = h.id)
INSERT INTO delivery_announcement (kind, line_id, subscription_id, delivery_id, details)
SELECT '{OWN_EVENTS}Line.Paused', id, subscription_id, delivery_id,
       jsonb_build_object('pause', 'HELD', 'reason', reason, 'since', since)
  FROM held ORDER BY id RETURNING id
"""

ANNOUNCE_FREE: Final = f"""
WITH free AS MATERIALIZED (
  SELECT l.id FROM delivery_line l
   WHERE l.pause_announced_at IS NOT NULL AND NOT EXISTS ({HOLDS} AND h.since <= l.pause_announced_at)
   ORDER BY l.id LIMIT {SLICE} FOR NO KEY UPDATE OF l SKIP LOCKED),
noted AS (UPDATE delivery_line l SET pause_announced_at = NULL FROM free f WHERE l.id = f.id)
INSERT INTO delivery_announcement (kind, line_id, details)
SELECT '{OWN_EVENTS}Line.Resumed', id, '{{"pause": "HELD"}}' FROM free ORDER BY id RETURNING id
"""


def announce() -> int:
    """Publish the oldest announcements that a subscription wants, drop the others, and return how many all were."""
    with transaction.atomic():
        ((is_alone,),) = rows(ALONE)
        if not is_alone:
            return 0
        events = [AnnouncedEvent._make(row) for row in rows(TAKE)]
        active = Subscription.objects.filter(status=Status.ACTIVE, subscriber__status=Status.ACTIVE)
        wanted = {
            one.name: one.pk
            for one in EventType.objects.filter(name__in={event.kind for event in events})
            if active.filter(pk__in=Subscription.objects.reached_by(one)).exists()
        }
        messages = [
            NewMessage(event_type_id=wanted[event.kind], event_type=event.kind, body=event.document, content_type=JSON)
            for event in events
            if event.kind in wanted
        ]
        store(messages, routes_of(messages), senders=0)
    return len(events)


def announce_held_lines() -> int:
    """Announce lines held for over a minute, and those that go on; return how many, 0 beside another process."""
    with transaction.atomic():
        ((is_alone,),) = rows(ALONE_WITH_LINES)
        return len(rows(ANNOUNCE_HELD)) + len(rows(ANNOUNCE_FREE)) if is_alone else 0
