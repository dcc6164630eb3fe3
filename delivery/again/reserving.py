"""Beginning a backfill: its deliveries get their ids before anything that is published from then on (behaviour 5.8)."""

import datetime as dt
from typing import Any, Final

import orjson
from django.db import transaction

from delivery.again.missed import number_of
from delivery.models import Delivery, Replay, ReplayState
from delivery.settling.cancelling import cancel_deliveries_of
from subscriptions.database import rows
from subscriptions.models import EventKind, Status, Subscription

UNDER_WAY: Final = 100_000
"""Ids beyond those counted: for what is being published while they are drawn."""

NEWEST: Final = "SELECT last_value FROM delivery_message_id_seq"
RESERVE: Final = """
WITH drawn AS MATERIALIZED (
  SELECT range_agg(int8range(id, id, '[]')) AS ids
    FROM (SELECT nextval('delivery_delivery_id_seq') AS id FROM generate_series(1, %(ids)s::bigint)) AS n),
opened AS (
  UPDATE subscriptions_subscription
     SET status = 'ACTIVE', paused_since = clock_timestamp(), paused_by = 'BACKFILL',
         paused_reason = 'what was published before it is lined up first', updated_at = clock_timestamp()
   WHERE id = %(subscription)s)
INSERT INTO delivery_replay (kind, state, subscription_id, selection, total, newest_before, ids, created_by)
SELECT 'BACKFILL', 'RESERVED', %(subscription)s, %(selection)s::jsonb, %(total)s, %(newest)s, ids, %(created_by)s
  FROM drawn
RETURNING id
"""
"""One after the other, as publishers draw theirs: where those are in between, theirs are left out."""

END: Final = """
WITH ended AS (
  UPDATE delivery_replay SET state = %(state)s, reason = %(reason)s, updated_at = clock_timestamp(),
                             finished_at = clock_timestamp()
   WHERE id = %(id)s AND kind = 'BACKFILL' AND finished_at IS NULL RETURNING subscription_id)
UPDATE subscriptions_subscription s
   SET status = 'INACTIVE', paused_since = NULL, paused_by = '', paused_reason = '', updated_at = clock_timestamp()
  FROM ended WHERE s.id = ended.subscription_id AND s.paused_by = 'BACKFILL'
RETURNING s.id
"""


class NotNew(Exception):
    """The subscription has had deliveries: what it has missed since is not before it."""


class NotInactive(Exception):
    """The subscription gets what is published already, or its subscriber gets nothing."""


class NotBackfilled(Exception):
    """Only subscriptions to TOPIC event types have something to be filled with."""


def count(subscription: Subscription, since: dt.datetime | None) -> int:
    """Count the messages that a backfill would look at.

    Raises:
        NotBackfilled, NotInactive, NotNew: it would not be begun.

    """
    _check(subscription)
    return number_of(subscription, newest=_newest(), since=since)


def begin(subscription_id: int, *, since: dt.datetime | None, created_by: str) -> Replay:
    """Activate a new subscription, paused until the workers have lined up what is kept of before, and behind nobody.

    Raises:
        NotBackfilled, NotInactive, NotNew: see there.

    """
    with transaction.atomic():
        subscription = (
            Subscription.objects.select_for_update(of=("self",), no_key=True)
            .select_related("event_type", "subscriber")
            .get(pk=subscription_id)
        )
        _check(subscription)
        newest = _newest()
        total = number_of(subscription, newest=newest, since=since)
        arguments: dict[str, Any] = {
            "subscription": subscription.pk,
            "selection": _selection(subscription, since),
            "total": total,
            "ids": total + UNDER_WAY,
            "newest": newest,
            "created_by": created_by,
        }
        ((replay_id,),) = rows(RESERVE, arguments)
        return Replay.objects.get(pk=replay_id)


def end(replay_id: int, state: ReplayState, *, reason: str) -> bool:
    """End a backfill under way: its subscription is INACTIVE again, and what it has is cancelled; tell whether it was.

    What was published meanwhile is cancelled with the rest.
    """
    ended = rows(END, {"id": replay_id, "state": str(state), "reason": reason})
    for (subscription_id,) in ended:
        cancel_deliveries_of(subscription_id, reason=reason)
    return bool(ended)


def _check(subscription: Subscription) -> None:
    event_type = subscription.event_type
    if event_type is not None and event_type.kind != EventKind.TOPIC:
        raise NotBackfilled(
            f"Its event type is of kind {event_type.kind}; only TOPIC is kept for those who come later."
        )
    if subscription.status == Status.ACTIVE or subscription.subscriber.status != Status.ACTIVE:
        raise NotInactive("A backfill is for an INACTIVE subscription of an ACTIVE subscriber: it activates it.")
    if _had_any(subscription):
        raise NotNew("It has had deliveries; a backfill is for one that never has. Make another, or use a replay.")


def _had_any(subscription: Subscription) -> bool:
    """Tell whether it ever had a delivery, along the indexes that begin with the subscription."""
    its = Delivery.objects.filter(subscription=subscription)
    fresh, later = (its.open().filter(due_at__isnull=is_fresh) for is_fresh in (True, False))
    return any(some.exists() for some in (fresh, later, its.final()))


def _newest() -> int:
    ((newest,),) = rows(NEWEST)
    return int(newest)


def _selection(subscription: Subscription, since: dt.datetime | None) -> str:
    kept = {
        "subscriber": subscription.subscriber_id,
        "subscriptions": [subscription.pk],
        "since": since and since.isoformat(),
    }
    return orjson.dumps(kept).decode()
