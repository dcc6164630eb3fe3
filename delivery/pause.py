"""Pause and resume subscriptions by hand (contract 1.6)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, LiteralString

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.filing import MAIN_LINE
from delivery.models import Replay, ReplayKind
from subscriptions.models import EventKind, Subscription
from subscriptions.models.subscriptions import PausedBy
from subscriptions.names import OWN_EVENTS

_OF_THESE: Final = """s.id = ANY(%(subscriptions)s) AND s.kind <> 'SYNC' AND s.paused_by = ANY(%(paused_by)s)
     AND NOT EXISTS (SELECT FROM delivery_replay r
                      WHERE r.subscription_id = s.id AND r.kind = 'BACKFILL' AND r.finished_at IS NULL)
   ORDER BY s.id FOR NO KEY UPDATE OF s),"""
_SUSPENDED_SINCE: Final = """s.paused_by = 'POLICY' AND (s.id, s.paused_since) IN (
         SELECT * FROM unnest(%(subscriptions)s::bigint[], %(since)s::timestamptz[]))
   ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED),"""

_END_PAUSE: Final = """
changed AS (
  UPDATE subscriptions_subscription s
     SET paused_since = NULL, paused_by = '', paused_reason = '', half_open = false, probe_due_at = NULL
    FROM asked a WHERE s.id = a.id"""

_NOTED: Final = f"""
  RETURNING s.id, s.subscriber_id, s.kind, a.turns, a.paused_by),
noted AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, reason)
  SELECT l.id, clock_timestamp(), %(event)s, concat_ws(': ', 'subscription ' || c.id, NULLIF(%(why)s, ''))
    FROM changed c CROSS JOIN {MAIN_LINE.format("c.subscriber_id")} l
   WHERE c.kind = 'TOPIC'),
announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, details)
  SELECT '{OWN_EVENTS}Line.' || initcap(%(event)s), l.id, c.id,
         jsonb_build_object('pause', CASE c.paused_by WHEN 'POLICY' THEN 'SUSPENDED' ELSE 'BY_HAND' END,
                            'reason', %(why)s::text)
    FROM changed c LEFT JOIN {MAIN_LINE.format("c.subscriber_id")} l ON c.kind = 'TOPIC'
   WHERE c.turns)
SELECT c.id, l.queue, l.id
  FROM changed c LEFT JOIN delivery_line l ON l.subscriber_id = c.subscriber_id AND c.kind = 'TOPIC'
"""
"""Notes the change in the line's history, and announces it.

Not announced are subscriptions to the broker's own events (5.7), a pause by hand that replaces a suspension, and the
end of a backfill's pause.
"""

_ASKED: Final = f"""
WITH asked AS MATERIALIZED (
  SELECT s.id, s.paused_by, NOT starts_with(COALESCE(e.name, s.event_pattern), '{OWN_EVENTS}')
               AND s.paused_by <> 'BACKFILL' AND (s.paused_since IS NULL) = (%(event)s = 'PAUSED') AS turns
    FROM subscriptions_subscription s LEFT JOIN subscriptions_eventtype e ON e.id = s.event_type_id
   WHERE """


PAUSE: Final = f"""{_ASKED}{_OF_THESE}
changed AS (
  UPDATE subscriptions_subscription s
     SET paused_since = COALESCE(s.paused_since, clock_timestamp()), paused_by = 'HAND', paused_reason = %(why)s,
         half_open = false, probe_due_at = NULL
    FROM asked a WHERE s.id = a.id{_NOTED}"""
"""A pause by hand replaces a suspension, so no probe ends it. Lines are not locked, as with inactivation."""

RESUME: Final = f"{_ASKED}{_OF_THESE}{_END_PAUSE}{_NOTED}"

END_SUSPENSIONS: Final = f"{_ASKED}{_SUSPENDED_SINCE}{_END_PAUSE}{_NOTED}"
"""Only those suspended since that moment: a later suspension is not ended. Locked ones are skipped."""


class NotPausable(Exception):
    """SYNC subscriptions cannot be paused."""


class Backfilling(Exception):
    """The subscription is paused until its backfill is done."""


def pause(subscription_ids: Sequence[int], *, reason: str) -> list[int]:
    """Pause subscriptions that are not being backfilled, nor paused by hand or a backfill; return the ids of those."""
    return _change(PAUSE, "PAUSED", reason, subscription_ids, paused_by=["", str(PausedBy.POLICY)])


def resume(subscription_ids: Sequence[int], *, reason: str = "") -> list[int]:
    """Resume paused subscriptions that are not being backfilled; return the ids of those."""
    return _change(RESUME, "RESUMED", reason, subscription_ids, paused_by=PausedBy.values)


def end_suspensions(since: Mapping[int, datetime], *, reason: str) -> list[int]:
    """Resume subscriptions suspended since the given moments, except locked ones; return the ids of those."""
    return _change(END_SUSPENSIONS, "RESUMED", reason, [*since], since=[*since.values()])


def pause_one(subscription_id: int, *, reason: str) -> None:
    """Pause a subscription; it may be paused by hand already.

    Raises `NotPausable` if it is SYNC, and `Backfilling` if it is being backfilled.
    """
    if not pause([subscription_id], reason=reason):
        _refuse(subscription_id)


def resume_one(subscription_id: int, *, reason: str) -> None:
    """Resume a subscription, which need not be paused; raises as `pause_one`."""
    if not resume([subscription_id], reason=reason):
        _refuse(subscription_id)


def _change(
    statement: LiteralString, event: str, reason: str, subscription_ids: Sequence[int], **which: Any
) -> list[int]:
    arguments = {"subscriptions": [*subscription_ids], "event": event, "why": reason, **which}
    with transaction.atomic():
        found = rows(statement, arguments)
        notify.wake_after_commit((queue, line_id) for _, queue, line_id in found if line_id)
    return sorted({subscription_id for subscription_id, *_ in found})


def _refuse(subscription_id: int) -> None:
    """Raise if the subscription cannot be paused or resumed by hand; return if it needed no change."""
    if Subscription.objects.values_list("kind", flat=True).get(pk=subscription_id) == EventKind.SYNC:
        raise NotPausable("SYNC subscriptions cannot be paused; inactivate it instead.")
    if Replay.objects.filter(subscription=subscription_id, kind=ReplayKind.BACKFILL, finished_at=None).exists():
        raise Backfilling("It is being backfilled and resumes afterwards; wait, or cancel the backfill.")
