"""Pause and resume subscriptions by hand (contract 1.6)."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, LiteralString

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.models import Replay, ReplayKind, ReplayState
from subscriptions.models import EventKind, Subscription
from subscriptions.models.subscriptions import PausedBy
from subscriptions.names import OWN_EVENTS

_OF_THESE: Final = """s.id = ANY(%(subscriptions)s) AND s.kind <> 'SYNC' AND s.paused_by = ANY(%(paused_by)s)
   ORDER BY s.id FOR NO KEY UPDATE OF s),"""
_SUSPENDED_SINCE: Final = """s.paused_by = 'POLICY' AND (s.id, s.paused_since) IN (
         SELECT * FROM unnest(%(subscriptions)s::bigint[], %(since)s::timestamptz[]))
   ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED),"""

_GOES_ON: Final = """
changed AS (
  UPDATE subscriptions_subscription s
     SET paused_since = NULL, paused_by = '', paused_reason = '', half_open = false, probe_due_at = NULL
    FROM asked a WHERE s.id = a.id"""

ENDED_BY_HAND: Final = (PausedBy.HAND, PausedBy.POLICY)
"""The pauses that whoever says so ends."""

_TOLD: Final = f"""
  RETURNING s.id, s.subscriber_id, s.kind, a.turns, a.paused_by),
noted AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, reason)
  SELECT l.id, clock_timestamp(), %(event)s, concat_ws(': ', 'subscription ' || c.id, NULLIF(%(why)s, ''))
    FROM changed c JOIN delivery_line l ON l.subscriber_id = c.subscriber_id AND l.lane = 'main'
   WHERE c.kind = 'TOPIC'),
announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, details)
  SELECT '{OWN_EVENTS}Line.' || initcap(%(event)s), l.id, c.id,
         jsonb_build_object('pause', CASE c.paused_by WHEN 'POLICY' THEN 'SUSPENDED' ELSE 'BY_HAND' END,
                            'reason', %(why)s::text)
    FROM changed c LEFT JOIN delivery_line l
      ON l.subscriber_id = c.subscriber_id AND l.lane = 'main' AND c.kind = 'TOPIC'
   WHERE c.turns)
SELECT c.id, l.queue, l.id
  FROM changed c LEFT JOIN delivery_line l ON l.subscriber_id = c.subscriber_id AND c.kind = 'TOPIC'
"""
"""History and announcement, in the same transaction; what is for the broker's own events makes none (5.7).

Nor does the end of a backfill, whose beginning was not announced, nor a person's taking over of a suspension.
"""

_ASKED: Final = f"""
WITH asked AS MATERIALIZED (
  SELECT s.id, s.paused_by, NOT starts_with(COALESCE(e.name, s.event_pattern), '{OWN_EVENTS}')
               AND (s.paused_since IS NULL) = (%(event)s = 'PAUSED') AND s.paused_by <> 'BACKFILL' AS turns
    FROM subscriptions_subscription s LEFT JOIN subscriptions_eventtype e ON e.id = s.event_type_id
   WHERE """


PAUSE: Final = f"""{_ASKED}{_OF_THESE}
changed AS (
  UPDATE subscriptions_subscription s
     SET paused_since = COALESCE(s.paused_since, clock_timestamp()), paused_by = 'HAND', paused_reason = %(why)s,
         half_open = false, probe_due_at = NULL
    FROM asked a WHERE s.id = a.id{_TOLD}"""
"""A pause of its retry policy becomes one by hand: nothing tries it any more. Lines are not locked: as inactivating."""

RESUME: Final = f"{_ASKED}{_OF_THESE}{_GOES_ON}{_TOLD}"

END_SUSPENSIONS: Final = f"{_ASKED}{_SUSPENDED_SINCE}{_GOES_ON}{_TOLD}"
"""Of those suspended since then: another suspension of the same is not ended. Nobody is waited for."""


class NotPausable(Exception):
    """It is not sent anything that could wait."""


class Backfilling(Exception):
    """It is paused until it has all older messages."""


def pause(subscription_ids: Sequence[int], *, reason: str) -> list[int]:
    """Pause those that nobody has paused by hand, and that are not getting older messages; return which."""
    return _turned(PAUSE, "PAUSED", reason, subscription_ids, paused_by=["", str(PausedBy.POLICY)])


def resume(
    subscription_ids: Sequence[int], *, reason: str = "", paused_by: Collection[PausedBy] = ENDED_BY_HAND
) -> list[int]:
    """Let those go on, in order, that were paused so; return which."""
    return _turned(RESUME, "RESUMED", reason, subscription_ids, paused_by=[str(one) for one in paused_by])


def end_suspensions(since: Mapping[int, datetime], *, reason: str) -> list[int]:
    """Let those go on that have been suspended since then; return which.

    Whoever has one of them locked is not waited for: it is left as it is.
    """
    return _turned(END_SUSPENSIONS, "RESUMED", reason, [*since], since=[*since.values()])


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
    statement: LiteralString, event: str, reason: str, subscription_ids: Sequence[int], **which: Any
) -> list[int]:
    arguments = {"subscriptions": [*subscription_ids], "event": event, "why": reason, **which}
    with transaction.atomic():
        found = rows(statement, arguments)
        by_queue: dict[str, set[int]] = defaultdict(set)
        for _, queue, line_id in found:
            if line_id:
                by_queue[queue].add(line_id)
        for queue, lines in by_queue.items():
            transaction.on_commit(partial(notify.wake, queue, sorted(lines)), robust=True)
    return sorted({subscription_id for subscription_id, *_ in found})


def _refuse(subscription_id: int) -> None:
    """Raise where it is not as was asked for: it had not to be changed, or cannot be."""
    kind, paused_by = Subscription.objects.values_list("kind", "paused_by").get(pk=subscription_id)
    if kind == EventKind.SYNC:
        raise NotPausable("A SYNC subscription is asked while the publisher waits; inactivate it instead.")
    if paused_by == PausedBy.BACKFILL or (not paused_by and _is_to_be_backfilled(subscription_id)):
        raise Backfilling("It is getting older messages and goes on by itself after them; cancel that, or wait.")


def _is_to_be_backfilled(subscription_id: int) -> bool:
    """Tell whether a backfill of it is still counting: the pause begins once its place is reserved."""
    its = Replay.objects.filter(subscription=subscription_id, kind=ReplayKind.BACKFILL)
    return its.filter(state=ReplayState.COUNTING).exists()
