"""Backfills: what was published before a subscription, lined up before what is published now (behaviour 5.8).

Whoever began to publish before the subscription was ACTIVE made no delivery for it, whoever began after that did. So a
backfill waits until none of the former is left, and then goes through all there is: each message has its delivery by
the one or the other. Its ids are lower than any of those made meanwhile, and the subscription is paused until it is
done: the order of ids is the order of sending.
"""

import datetime as dt
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.db import transaction
from django.utils.dateparse import parse_datetime

from delivery.again.missed import next_of
from delivery.again.reserving import end
from delivery.models import ReplayState
from delivery.rules.due_times import DUE_LATER, RELEASED
from delivery.waking import wakeups
from subscriptions.database import rows
from subscriptions.models import Subscription

SLICE: Final = 1000
FILTERED_SLICE: Final = 50
"""Messages whose bodies are read: each may have a megabyte."""

OUT_OF_IDS: Final = "more was published while it began than ids were kept for; try again when less is published"

TAKE: Final = """
SELECT id, state, subscription_id, selection, cursor_id, newest_before, newest_filed FROM delivery_replay
 WHERE finished_at IS NULL AND kind = 'BACKFILL'
   AND (state <> 'WAITING' OR NOT EXISTS (
     SELECT FROM pg_stat_activity a
      WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
        AND a.xact_start < sliced_at))
 ORDER BY sliced_at NULLS FIRST, id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
"""One that waits is taken once nobody is left who may have published without seeing its subscription."""

WAIT: Final = "UPDATE delivery_replay SET state = 'WAITING', sliced_at = clock_timestamp() WHERE id = %s"
"""In a transaction that began after the subscription was activated: so does everybody who begins later."""
FILE: Final = """
UPDATE delivery_replay SET state = 'FILING', sliced_at = clock_timestamp(), updated_at = clock_timestamp(),
                           newest_filed = (SELECT last_value FROM delivery_message_id_seq)
 WHERE id = %s
"""

LINE_UP: Final = f"""
WITH job AS MATERIALIZED (SELECT id, ids, COALESCE(last_given, 0) AS last_given FROM delivery_replay WHERE id = %(id)s),
wanted AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY w.message_id) AS place, w.*
    FROM unnest(%(messages)s::bigint[], %(failures)s::text[]) AS w (message_id, failure)
   WHERE w.message_id <= %(newest_before)s OR NOT EXISTS (
     SELECT FROM delivery_delivery d WHERE d.message_id = w.message_id AND d.subscription_id = %(subscription)s)),
given AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY g.id) AS place, g.id FROM (
    SELECT i.id FROM job CROSS JOIN LATERAL unnest(job.ids) AS r (span)
     CROSS JOIN LATERAL (SELECT GREATEST(lower(r.span), job.last_given + 1)) AS f (first)
     CROSS JOIN LATERAL generate_series(f.first, LEAST(upper(r.span) - 1, f.first + {SLICE})) AS i (id)
     ORDER BY i.id LIMIT (SELECT count(*) FROM wanted)) g),
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
"""Where both could have made it, whoever published has: a message and its deliveries are seen together."""

MOVE: Final = """
UPDATE delivery_replay
   SET cursor_id = %(cursor)s, filed = filed + %(filed)s, last_given = COALESCE(%(last_given)s, last_given),
       sliced_at = clock_timestamp(), updated_at = clock_timestamp()
 WHERE id = %(id)s
"""
DONE: Final = """
WITH done AS (
  UPDATE delivery_replay SET state = 'DONE', updated_at = clock_timestamp(), finished_at = clock_timestamp()
   WHERE id = %s RETURNING subscription_id)
UPDATE subscriptions_subscription s
   SET paused_since = NULL, paused_by = '', paused_reason = '', on_trial = false, probe_due_at = NULL,
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
    newest_before: int
    newest: int | None


def go_on() -> int:
    """Take a backfill under way that nobody else is at one step further; return how much that was, 0 for nothing."""
    with transaction.atomic():
        found = rows(TAKE)
        if not found:
            return 0
        ((replay_id, state, subscription_id, selection, *rest),) = found
        since = selection["since"] and parse_datetime(selection["since"])
        job = _Job(replay_id, state, subscription_id, since, *rest)
        if job.state != "FILING":
            rows(WAIT if job.state == "RESERVED" else FILE, [job.id])
            return 1
        return _slice(job)


def _slice(job: _Job) -> int:
    """File what comes next, and say so, in the one transaction; or let the subscription go, once nothing does."""
    subscription = Subscription.objects.get(pk=job.subscription_id)
    limit = FILTERED_SLICE if subscription.filter else SLICE
    stretch = next_of(subscription, cursor=job.cursor, newest=job.newest or 0, since=job.since, limit=limit)
    if stretch.last_id is None:
        for (line_id,) in rows(DONE, [job.id]):
            transaction.on_commit(partial(wakeups.wake, wakeups.TOPIC, [line_id]), robust=True)
        return 0
    arguments: dict[str, Any] = {
        "id": job.id,
        "subscription": job.subscription_id,
        "newest_before": job.newest_before,
        "messages": [one.message_id for one in stretch.missed],
        "failures": [one.failure for one in stretch.missed],
    }
    ((wanted, filed, last_given),) = rows(LINE_UP, arguments)
    rows(MOVE, {"id": job.id, "cursor": stretch.last_id, "filed": filed, "last_given": last_given})
    if filed < wanted:
        end(job.id, ReplayState.FAILED, reason=OUT_OF_IDS)
    return 1
