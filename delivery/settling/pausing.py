"""Pausing subscriptions by hand, and letting those that are paused go on (behaviour 1.6).

What is paused qualifies for messages and is not sent them. Its version rises, so what a line has in hand is refused.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from django.db import transaction

from delivery.waking import wakeups
from subscriptions.database import rows
from subscriptions.models import EventKind, Subscription
from subscriptions.models.pausable import PausedBy
from subscriptions.names import OWN_EVENTS

ENDED_BY_HAND: Final = (PausedBy.HAND, PausedBy.POLICY)
"""The pauses that whoever says so ends."""

_TOLD: Final = f"""
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, reason)
  SELECT l.id, clock_timestamp(), %(event)s, concat_ws(': ', 'subscription ' || c.id, NULLIF(%(why)s, ''))
    FROM changed c JOIN delivery_line l ON l.subscriber_id = c.subscriber_id AND l.lane = 'main'
   WHERE c.kind = 'TOPIC'),
announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, details)
  SELECT '{OWN_EVENTS}Line.' || initcap(%(event)s), l.id, c.id, jsonb_build_object('reason', %(why)s::text)
    FROM changed c LEFT JOIN delivery_line l
      ON l.subscriber_id = c.subscriber_id AND l.lane = 'main' AND c.kind = 'TOPIC'
   WHERE c.turns)
SELECT c.id, l.queue, l.id
  FROM changed c LEFT JOIN delivery_line l ON l.subscriber_id = c.subscriber_id AND c.kind = 'TOPIC'
"""
"""History and announcement, in the same transaction; what is for the broker's own events makes none (5.7).

Nor does the end of a backfill, whose beginning was not announced.
"""

_ASKED: Final = f"""
WITH asked AS MATERIALIZED (
  SELECT s.id, NOT starts_with(COALESCE(e.name, s.event_pattern), '{OWN_EVENTS}')
               AND (s.paused_since IS NULL) = %(pauses)s AND s.paused_by <> 'BACKFILL' AS turns
    FROM subscriptions_subscription s LEFT JOIN subscriptions_eventtype e ON e.id = s.event_type_id
   WHERE s.id = ANY(%(subscriptions)s) AND s.kind <> 'SYNC' AND s.paused_by = ANY(%(paused_by)s)
   ORDER BY s.id FOR NO KEY UPDATE OF s),"""

PAUSE: Final = f"""{_ASKED}
changed AS (
  UPDATE subscriptions_subscription s
     SET paused_since = COALESCE(s.paused_since, clock_timestamp()), paused_by = 'HAND', paused_reason = %(why)s,
         on_trial = false, probe_due_at = NULL
    FROM asked a WHERE s.id = a.id
  RETURNING s.id, s.subscriber_id, s.kind, a.turns),{_TOLD}"""
"""A pause of its retry policy becomes one by hand: nothing tries it any more. Lines are not locked: as inactivating."""

RESUME: Final = f"""{_ASKED}
changed AS (
  UPDATE subscriptions_subscription s
     SET paused_since = NULL, paused_by = '', paused_reason = '', on_trial = false, probe_due_at = NULL
    FROM asked a WHERE s.id = a.id
  RETURNING s.id, s.subscriber_id, s.kind, a.turns),{_TOLD}"""


class NotPausable(Exception):
    """It is not sent anything that could wait."""


class Backfilling(Exception):
    """It is paused until it has all older messages."""


def pause(subscription_ids: Sequence[int], *, reason: str) -> list[int]:
    """Pause those that nobody has paused by hand, and that are not getting older messages; return which."""
    return _turned(PAUSE, subscription_ids, ("", PausedBy.POLICY), "PAUSED", reason)


def resume(
    subscription_ids: Sequence[int], *, reason: str = "", paused_by: Collection[PausedBy] = ENDED_BY_HAND
) -> list[int]:
    """Let those go on, in order, that were paused so; return which."""
    return _turned(RESUME, subscription_ids, paused_by, "RESUMED", reason)


def pause_one(subscription_id: int, *, reason: str) -> None:
    """Pause one; that it is paused by hand already is no error.

    Raises:
        NotPausable, Backfilling: it cannot be; the text says why.

    """
    if not pause([subscription_id], reason=reason):
        _refuse(subscription_id)


def resume_one(subscription_id: int, *, reason: str) -> None:
    """Let one go on; that it does is no error.

    Raises:
        NotPausable, Backfilling: it cannot; the text says why.

    """
    if not resume([subscription_id], reason=reason):
        _refuse(subscription_id)


def _turned(
    statement: str, subscription_ids: Sequence[int], paused_by: Collection[str], event: str, reason: str
) -> list[int]:
    arguments = {
        "subscriptions": [*subscription_ids],
        "paused_by": [str(one) for one in paused_by],
        "pauses": event == "PAUSED",
        "event": event,
        "why": reason,
    }
    with transaction.atomic():
        found = rows(statement, arguments)
        by_queue: dict[str, set[int]] = defaultdict(set)
        for _, queue, line_id in found:
            if line_id:
                by_queue[queue].add(line_id)
        for queue, lines in by_queue.items():
            transaction.on_commit(partial(wakeups.wake, queue, sorted(lines)), robust=True)
    return sorted({subscription_id for subscription_id, *_ in found})


def _refuse(subscription_id: int) -> None:
    """Raise where it is not as was asked for: it had not to be changed, or cannot be."""
    kind, paused_by = Subscription.objects.values_list("kind", "paused_by").get(pk=subscription_id)
    if kind == EventKind.SYNC:
        raise NotPausable("A SYNC subscription is asked while the publisher waits; inactivate it instead.")
    if paused_by == PausedBy.BACKFILL:
        raise Backfilling("It is getting older messages and goes on by itself after them; cancel that, or wait.")
