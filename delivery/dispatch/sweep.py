"""Find lines with due work and no worker (contract 11.3): a lost wake-up cannot hide them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.dispatch.claim import LINE_IS_DUE
from delivery.dispatch.parked_groups import unpark
from delivery.due_times import DUE_LATER
from delivery.limits import MAX_LINES_PER_SWEEP, SWEEP_SLICE

LIVES: Final = "(d.expires_at IS NULL OR d.expires_at > (SELECT clock_timestamp()))"
"""Expired deliveries are ended by a periodic job; until then they must not wake their line."""

HAS_REPLY: Final = "l.lane = 'callback' AND l.head_id IS NOT NULL"
"""As the index says it, in which they stand by when they are due."""

HAS_DUE_GROUPS: Final = """
  ((SELECT g.id FROM delivery_queuegroup g
     WHERE g.line_id >= l.id AND g.line_id <= l.id AND g.due_at IS NULL ORDER BY g.line_id, g.id LIMIT 1) IS NOT NULL
   OR (SELECT g.id FROM delivery_queuegroup g
        WHERE g.line_id = l.id AND g.due_at <= (SELECT clock_timestamp())
        ORDER BY g.due_at, g.id LIMIT 1) IS NOT NULL)
"""
"""In the order of an index that begins with the line, and said so that no other will do.

`EXISTS` would forget the order, and by id alone the planner would look through whatever waits for another reason.
"""


DUE: Final = f"""
WITH RECURSIVE fresh AS (
  (SELECT subscription_id FROM delivery_open WHERE due_at IS NULL ORDER BY subscription_id LIMIT 1)
  UNION ALL
  SELECT (SELECT d.subscription_id FROM delivery_open d
           WHERE d.due_at IS NULL AND d.subscription_id > f.subscription_id ORDER BY d.subscription_id LIMIT 1)
    FROM fresh f WHERE f.subscription_id IS NOT NULL),
aside AS (
  (SELECT subscription_id, line_id FROM delivery_open
    WHERE due_at IS NOT NULL ORDER BY subscription_id, line_id LIMIT 1)
  UNION ALL
  SELECT n.* FROM aside a CROSS JOIN LATERAL (
    SELECT d.subscription_id, d.line_id FROM delivery_open d
     WHERE d.due_at IS NOT NULL AND (d.subscription_id, d.line_id) > (a.subscription_id, a.line_id)
     ORDER BY d.subscription_id, d.line_id LIMIT 1) n),
waiting AS (
  SELECT subscription_id, NULL::bigint AS line_id FROM fresh
   UNION ALL
  SELECT a.subscription_id, a.line_id FROM aside a
   WHERE EXISTS (SELECT FROM delivery_open d
                  WHERE d.subscription_id = a.subscription_id AND d.line_id = a.line_id
                    AND d.due_at <= (SELECT clock_timestamp())
                  ORDER BY d.due_at, d.id LIMIT 1))
SELECT l.id, l.queue
  FROM waiting w
  JOIN subscriptions_subscription s ON s.id = w.subscription_id AND s.is_sending AND s.kind = 'TOPIC'
  JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
  JOIN delivery_line l ON l.subscriber_id = u.id AND (l.id = w.line_id OR w.line_id IS NULL AND l.lane = 'main')
                       AND (l.lane = 'main' OR NOT s.half_open)
 WHERE l.lease_until IS NULL AND {LINE_IS_DUE}
 UNION
SELECT l.id, l.queue FROM delivery_line l WHERE l.sender IS NOT NULL AND l.lease_until IS NULL AND {HAS_DUE_GROUPS}
 UNION
SELECT l.id, l.queue FROM delivery_line l WHERE {HAS_REPLY} AND l.due_at IS NULL AND l.lease_until IS NULL
 UNION
SELECT l.id, l.queue FROM delivery_line l
 WHERE {HAS_REPLY} AND l.due_at <= (SELECT clock_timestamp()) AND l.lease_until IS NULL
 UNION
SELECT l.id, l.queue FROM delivery_line l WHERE l.lease_until < clock_timestamp()
 LIMIT {MAX_LINES_PER_SWEEP}
"""
"""Walks from subscription to subscription, and from line to line, along the index: its cost follows them, not rows."""

STILL_DUE: Final = f"""
SELECT l.id
  FROM delivery_line l
  JOIN subscriptions_subscriber u ON u.id = l.subscriber_id AND u.status = 'ACTIVE'
 WHERE l.id = ANY(%(lines)s) AND l.lease_until IS NULL AND {LINE_IS_DUE}
   AND EXISTS (
     SELECT FROM subscriptions_subscription s CROSS JOIN LATERAL (
       (SELECT 1 FROM delivery_open d
         WHERE l.lane = 'main' AND d.subscription_id = s.id AND d.due_at IS NULL AND d.status = 'PENDING'
           AND {LIVES}
         ORDER BY d.id LIMIT 1)
       UNION ALL
       (SELECT 1 FROM delivery_open d
         WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at <= (SELECT clock_timestamp())
           AND d.status = 'PENDING' AND {LIVES}
         ORDER BY d.due_at, d.id LIMIT 1)) w
      WHERE s.subscriber_id = u.id AND s.is_sending AND s.kind = 'TOPIC' AND (l.lane = 'main' OR NOT s.half_open))
 UNION ALL
SELECT l.id FROM delivery_line l
 WHERE l.id = ANY(%(lines)s) AND l.lease_until IS NULL
   AND (l.sender IS NOT NULL AND {HAS_DUE_GROUPS} OR {HAS_REPLY} AND {LINE_IS_DUE})
"""
"""Sorted, although any row will do: else the planner may look for the first one from the table's beginning on."""


def due_by_queue() -> dict[str, list[int]]:
    """Return the lines without a worker that have due work, or that have to be recovered, by Celery queue.

    What has become due because a subscription is active again is among it.
    """
    unpark()
    due: dict[str, list[int]] = defaultdict(list)
    for line_id, queue in rows(DUE):
        due[queue].append(line_id)
    return due


def lines_with_due_work() -> list[int]:
    """Return the same of all queues."""
    return [line_id for of_one in due_by_queue().values() for line_id in of_one]


def still_due(line_ids: Sequence[int]) -> list[int]:
    """Return those of the lines just let go for which work has come meanwhile."""
    return [line_id for (line_id,) in rows(STILL_DUE, {"lines": sorted(line_ids)})] if line_ids else []


BEGIN: Final = f"""
WITH begun AS (
  UPDATE delivery_open SET due_at = NULL
   WHERE closed_on = '9999-12-31' AND status = 'PENDING' AND id = ANY (ARRAY(
     SELECT id FROM delivery_open
      WHERE due_at = {DUE_LATER} AND not_before <= (SELECT clock_timestamp())
      ORDER BY not_before, id LIMIT {SWEEP_SLICE} FOR UPDATE SKIP LOCKED))
  RETURNING line_id, subscription_id)
SELECT b.line_id, s.delivery_mode = 'PUSH', count(*)
  FROM begun b JOIN subscriptions_subscription s ON s.id = b.subscription_id GROUP BY 1, 2
"""
"""From then on they are as if published just now, but for their ids: these say their places."""


def begin_delayed() -> int:
    """Let those whose time has come, a slice of them, take their places, and wake their lines; return how many.

    What is fetched from a mailbox is there for the next who asks.
    """
    begun = rows(BEGIN)
    notify.wake(notify.TOPIC, sorted(line_id for line_id, is_pushed, _ in begun if is_pushed))
    return sum(number for *_, number in begun)
