"""Beginning a backfill: its deliveries get their ids before anything that is published from then on (behaviour 5.8)."""

import datetime as dt
from typing import Final, NamedTuple

from django.db import transaction
from django.db.models import Q

from broker_project.core.db import rows
from delivery.models import Delivery, Replay, ReplayKind, ReplayState
from delivery.replay.eligibility import NotBackfilled, NotBegun, NotInactive, NotNew, StillPaused
from delivery.replay.job_steps import end
from delivery.replay.locating import published_before
from delivery.replay.missed import Counted, counted, event_types_of
from subscriptions.models import EventKind, PausedBy, Status, Subscription

COUNT_SLICE: Final = 10_000
"""Messages that one statement counts, and ids that one draws, at most; what is done by the clock waits for it."""
MOST_COUNTED: Final = 500_000
"""Messages that are looked at for whoever waits for the count."""
UNDER_WAY: Final = 100_000
"""Ids beyond those counted: for what is being published while they are drawn."""

DRAW: Final = """
WITH drawn AS MATERIALIZED (
  SELECT range_agg(int8range(id, id, '[]')) AS ids
    FROM (SELECT nextval('delivery_delivery_id_seq') AS id FROM generate_series(1, %(ids)s::bigint)) AS n)
UPDATE delivery_replay
   SET ids = COALESCE(ids, '{}') + COALESCE((SELECT ids FROM drawn), '{}'), total = total + %(messages)s,
       cursor_id = %(last_id)s, failures = 0, reason = '', updated_at = clock_timestamp()
 WHERE id = %(id)s
"""
"""One after the other, as publishers draw theirs: where those are in between, theirs are left out."""

OPEN: Final = """
WITH reserved AS (UPDATE delivery_replay SET state = 'WAITING' WHERE id = %s RETURNING subscription_id)
UPDATE subscriptions_subscription s
   SET status = 'ACTIVE', paused_since = clock_timestamp(), paused_by = 'BACKFILL',
       paused_reason = 'what was published before it is lined up first', updated_at = clock_timestamp()
  FROM reserved WHERE s.id = reserved.subscription_id
"""


class Found(NamedTuple):
    """What a backfill would look at."""

    messages: int
    complete: bool
    """Whether that is all: where there is very much, only the oldest is counted."""


def count(subscription: Subscription, since: dt.datetime | None) -> Found:
    """Count the messages that a backfill would look at.

    Raises:
        NotBegun: it would not be begun.

    """
    _check_new(subscription)
    event_types, found = event_types_of(subscription), 0
    stretch = Counted(0, published_before(since), is_end=False)
    for _ in range(MOST_COUNTED // COUNT_SLICE):
        stretch = counted(event_types, cursor=stretch.last_id, since=since, limit=COUNT_SLICE)
        found += stretch.messages
        if stretch.is_end:
            break
    return Found(found, stretch.is_end)


def begin(subscription_id: int, *, since: dt.datetime | None, created_by: str) -> Replay:
    """Store the job, which the workers do: they activate a new subscription, and line up what is kept of before it.

    Raises:
        NotBegun: it is not; each of its kinds says why.

    """
    with transaction.atomic():
        subscription = _locked(subscription_id)
        _check_new(subscription)
        return Replay.objects.create(
            kind=ReplayKind.BACKFILL,
            subscription=subscription,
            selection={
                "subscriber": subscription.subscriber_id,
                "subscriptions": [subscription.pk],
                "since": since and since.isoformat(),
            },
            cursor_id=published_before(since),
            created_by=created_by,
        )


def reserve(replay_id: int, subscription_id: int, *, cursor: int, since: dt.datetime | None) -> None:
    """Draw ids for the next of what there is; for the last of it too, then activate the subscription, but paused.

    What is published from then on has higher ids, waits, and is behind all that was published before. Where the
    subscription cannot be backfilled any more, the job has failed.
    """
    subscription = _locked(subscription_id)
    stretch = counted(event_types_of(subscription), cursor=cursor, since=since, limit=COUNT_SLICE)
    ids = stretch.messages + (UNDER_WAY if stretch.is_end else 0)
    rows(DRAW, {**stretch._asdict(), "id": replay_id, "ids": ids})
    if not stretch.is_end:
        return
    try:
        _check(subscription)
    except NotBegun as refused:
        end(replay_id, ReplayState.FAILED, reason=str(refused))
    else:
        rows(OPEN, [replay_id])


def _locked(subscription_id: int) -> Subscription:
    its = Subscription.objects.select_for_update(of=("self",), no_key=True).select_related("event_type", "subscriber")
    return its.get(pk=subscription_id)


def _check_new(subscription: Subscription) -> None:
    _check(subscription)
    if Replay.objects.filter(subscription=subscription, kind=ReplayKind.BACKFILL, finished_at=None).exists():
        raise NotInactive("It is being backfilled.")


def _check(subscription: Subscription) -> None:
    event_type = subscription.event_type
    if event_type is not None and event_type.kind != EventKind.TOPIC:
        raise NotBackfilled(
            f"Its event type is of kind {event_type.kind}; only TOPIC is kept for those who come later."
        )
    if subscription.status == Status.ACTIVE or subscription.subscriber.status != Status.ACTIVE:
        raise NotInactive("A backfill is for an INACTIVE subscription of an ACTIVE subscriber: it activates it.")
    if subscription.paused_by == PausedBy.HAND:
        raise StillPaused("Somebody has paused it, which nobody else ends: resume it first.")
    if _was_sent_any(subscription):
        raise NotNew("It has been sent something, or will be; a backfill is for one that never was. Make another.")


def _was_sent_any(subscription: Subscription) -> bool:
    """Tell whether it ever was sent a delivery, or has one, along the indexes that begin with the subscription.

    What was cancelled before it was sent, as with a backfill, counts for nothing.
    """
    its = Delivery.objects.filter(subscription=subscription)
    fresh, later = (its.open().filter(due_at__isnull=is_fresh) for is_fresh in (True, False))
    sent = its.final().filter(Q(attempts__gt=0) | Q(sequence__isnull=False) | Q(fetches__gt=0))
    return any(some.exists() for some in (fresh, later, sent))
