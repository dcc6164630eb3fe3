"""Backfills: what was published before a subscription, lined up before what is published now (behaviour 5.8).

Whoever began to publish before the subscription was ACTIVE made no delivery for it, whoever began after that did. So a
backfill waits until none of the former is left, and then goes through all there is: each message has its delivery by
the one or the other. Its ids are lower than any of those made meanwhile, and the subscription is paused until it is
done: the order of ids is the order of sending.
"""

import datetime as dt
from dataclasses import dataclass
from functools import partial
from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.cancelling import BETWEEN_SECONDS
from delivery.dispatch import notify
from delivery.models import ReplayState
from delivery.replay.backfill_job import reserve
from delivery.replay.job_steps import end, go_on_ending
from delivery.replay.locating import newest, published_before
from delivery.replay.missed import event_types_of, next_of
from delivery.replay.placing import place
from delivery.replay.stepping import DUE, step
from subscriptions.models import Subscription

SLICE: Final = 1000
"""Messages that one transaction looks at, and deliveries that it makes, at most."""

OUT_OF_IDS: Final = "more was published while it began than ids were kept for; try again when less is published"

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

WAIT: Final = "UPDATE delivery_replay SET sliced_at = clock_timestamp(), updated_at = clock_timestamp() WHERE id = %s"
"""In a transaction that began after the subscription was changed: so does everybody who begins later."""
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
