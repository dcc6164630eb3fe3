"""Backfills: give a new subscription the retained messages in order (contract 5.8)."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from django.db import transaction
from django.db.models import Q

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.due_times import DUE_LATER, RELEASED
from delivery.models import Delivery, Replay, ReplayKind, ReplayState
from delivery.operations import BETWEEN_SECONDS
from delivery.replay.eligibility import NotBackfilled, NotBegun, NotInactive, NotNew, StillPaused
from delivery.replay.job_steps import DUE, end, go_on_ending, step
from delivery.replay.missed import Missed, MissedCount, counted, event_types_of, newest, next_of, published_before
from subscriptions.models import EventKind, PausedBy, Status, Subscription

COUNT_SLICE: Final = 10_000
"""Messages that one statement counts, and ids that one draws, at most; what is done by the clock waits for it."""
MAX_COUNTED: Final = 500_000
"""Messages that are looked at for whoever waits for the count."""
UNDER_WAY: Final = 100_000
"""Ids beyond those counted: for what is being published while they are drawn."""

SLICE: Final = 1000
"""Messages that one transaction looks at, and deliveries that it makes, at most."""

OUT_OF_IDS: Final = "more was published while it began than ids were kept for; try again when less is published"


WAIT: Final = "UPDATE delivery_replay SET sliced_at = clock_timestamp(), updated_at = clock_timestamp() WHERE id = %s"
"""In a transaction that began after the subscription was changed: so does everybody who begins later."""

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
    stretch = MissedCount(0, published_before(since), is_end=False)
    for _ in range(MAX_COUNTED // COUNT_SLICE):
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


LINE_UP: Final = f"""
WITH job AS MATERIALIZED (SELECT ids, COALESCE(last_given, 0) AS last_given FROM delivery_replay WHERE id = %(id)s),
wanted AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY w.message_id) AS place, w.*
    FROM unnest(%(messages)s::bigint[], %(failures)s::text[]) AS w (message_id, failure)
   WHERE NOT EXISTS (
     SELECT FROM delivery_delivery d
      WHERE d.message_id = w.message_id AND d.subscription_id = %(subscription)s AND d.closed_on >= %(first_day)s::date
        AND (d.closed_on = '9999-12-31' OR d.id >= (SELECT lower(ids) FROM job)))),
free AS MATERIALIZED (
  SELECT unnest(ids * int8multirange(int8range(last_given + 1, NULL))) AS span FROM job
   LIMIT (SELECT count(*) FROM wanted)),
given AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY g.id) AS place, g.id
    FROM (SELECT span, sum(upper(span) - lower(span)) OVER (ORDER BY span) AS upto FROM free) f
   CROSS JOIN LATERAL (SELECT (SELECT count(*) FROM wanted) - upto + upper(span) - lower(span) AS most) n
   CROSS JOIN LATERAL generate_series(lower(span), LEAST(upper(span), lower(span) + most) - 1) AS g (id)),
lined_up AS (
  INSERT INTO delivery_open (id, message_id, line_id, subscription_id, status, size, reason, due_at, expires_at,
                             not_before, replay_id)
  SELECT g.id, m.id, l.id, s.id, CASE w.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END, m.size, w.failure,
         CASE WHEN w.failure <> '' THEN {RELEASED} WHEN m.not_before > clock_timestamp() THEN {DUE_LATER} END,
         m.expires_at, m.not_before, %(id)s
    FROM wanted w JOIN given g USING (place) JOIN delivery_message m ON m.id = w.message_id
    JOIN subscriptions_subscription s ON s.id = %(subscription)s
    JOIN delivery_line l ON l.subscriber_id = s.subscriber_id AND l.lane = 'main'
   ORDER BY g.id
  RETURNING id)
SELECT (SELECT count(*) FROM wanted), (SELECT count(*) FROM lined_up), (SELECT max(id) FROM lined_up)
"""
"""Where both could have made it, whoever published has: a message and its deliveries are seen together.

What an earlier backfill had that was cancelled has lower ids, and is made again. Ids are given lowest first, from as
few of the ranges as that takes.
"""


class PlacedDelivery(NamedTuple):
    """What has come of some of the messages."""

    wanted: int
    """How many are without a delivery."""
    filed: int
    """How many have one now; fewer, where there are no ids left."""
    last_id: int | None
    """The last one's."""


def place(missed: Sequence[Missed], *, replay_id: int, subscription_id: int, first_day: dt.date) -> PlacedDelivery:
    """Store a delivery of each message that has none, in their order, within the transaction that is open.

    `first_day`: what was published to the subscription for itself has ended then or later, if it has.
    """
    arguments = {
        "id": replay_id,
        "subscription": subscription_id,
        "first_day": first_day,
        "messages": [one.message_id for one in missed],
        "failures": [one.failure for one in missed],
    }
    ((wanted, filed, last_id),) = rows(LINE_UP, arguments)
    return PlacedDelivery(wanted, filed, last_id)


TAKE: Final = f"""
SELECT id, state, subscription_id, (selection ->> 'since')::timestamptz, cursor_id, reason, sliced_at, event_types,
       newest_filed, (created_at AT TIME ZONE 'UTC')::date - 1
  FROM delivery_replay
 WHERE finished_at IS NULL AND kind = 'BACKFILL' AND {DUE}
   AND (state <> ALL (ARRAY['CANCELLING', 'FAILING'])
        OR updated_at < clock_timestamp() - make_interval(secs => {BETWEEN_SECONDS}))
   AND (state <> ALL (ARRAY['WAITING', 'CANCELLING', 'FAILING']) OR sliced_at IS NULL OR NOT EXISTS (
     SELECT FROM pg_stat_activity a
      WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
        AND a.xact_start < sliced_at))
 ORDER BY updated_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
"""One that waits is taken once nobody is left who may have published seeing its subscription as it was.

Of one that is being cancelled, the next slice is taken a little later: what is sent meanwhile is settled in between.
"""


FILE: Final = """
UPDATE delivery_replay
   SET state = 'FILING', event_types = %(event_types)s::bigint[], cursor_id = %(cursor)s, newest_filed = %(newest)s,
       updated_at = clock_timestamp()
 WHERE id = %(id)s
"""

MOVE: Final = """
UPDATE delivery_replay
   SET cursor_id = %(cursor)s, filed = filed + %(filed)s, last_given = COALESCE(%(last_given)s, last_given),
       failures = 0, reason = '', updated_at = clock_timestamp()
 WHERE id = %(id)s
"""
DONE: Final = """
WITH done AS (
  UPDATE delivery_replay SET state = 'DONE', updated_at = clock_timestamp(), finished_at = clock_timestamp()
   WHERE id = %s RETURNING subscription_id)
UPDATE subscriptions_subscription s
   SET paused_since = NULL, paused_by = '', paused_reason = '', half_open = false, probe_due_at = NULL,
       updated_at = clock_timestamp()
  FROM done WHERE s.id = done.subscription_id AND s.paused_by = 'BACKFILL'
RETURNING (SELECT l.id FROM delivery_line l WHERE l.subscriber_id = s.subscriber_id AND l.lane = 'main')
"""


@dataclass(frozen=True, slots=True)
class _Job:
    id: int
    state: str
    subscription_id: int
    since: dt.datetime | None
    cursor: int
    reason: str
    sliced_at: dt.datetime | None
    event_types: list[int] | None
    newest: int | None
    first_day: dt.date
    """Nothing that it had ended before that day."""


def go_on() -> int:
    """Take a backfill under way that nobody else is at one step further; return 0 where there is none."""
    return step(TAKE, lambda *columns: _go_on(_Job(*columns)))


def _go_on(job: _Job) -> None:
    if job.state == ReplayState.COUNTING:
        reserve(job.id, job.subscription_id, cursor=job.cursor, since=job.since)
    elif job.state == ReplayState.FILING:
        _slice(job)
    elif job.sliced_at is None:
        rows(WAIT, [job.id])
    elif job.state == ReplayState.WAITING:
        _begin_filing(job)
    else:
        go_on_ending(job.id, job.subscription_id, cursor=job.cursor, reason=job.reason)


def _begin_filing(job: _Job) -> None:
    """Look at all there is by now: what comes later, and what is of later event types, its publishers have seen."""
    last = newest()
    event_types = event_types_of(Subscription.objects.get(pk=job.subscription_id))
    before = published_before(job.since)
    rows(FILE, {"id": job.id, "newest": last, "event_types": event_types, "cursor": before})


def _slice(job: _Job) -> None:
    """File what comes next, and say so, in the one transaction; or let the subscription go, once nothing does."""
    subscription = Subscription.objects.get(pk=job.subscription_id)
    stretch = next_of(
        subscription,
        job.event_types or [],
        cursor=job.cursor,
        newest=job.newest or 0,
        since=job.since,
        limit=SLICE,
    )
    if stretch.last_id is None:
        for (line_id,) in rows(DONE, [job.id]):
            transaction.on_commit(partial(notify.wake, notify.TOPIC, [line_id]), robust=True)
        return
    placed = place(stretch.missed, replay_id=job.id, subscription_id=job.subscription_id, first_day=job.first_day)
    rows(MOVE, {"id": job.id, "cursor": stretch.last_id, "filed": placed.filed, "last_given": placed.last_id})
    if placed.filed < placed.wanted:
        end(job.id, ReplayState.FAILED, reason=OUT_OF_IDS)
