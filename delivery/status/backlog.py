"""The backlog of each subscriber: how much waits for it, and since when."""

from datetime import datetime
from typing import Final, NamedTuple

from broker_project.core.db import rows
from delivery.status.line_status import MAX_COUNTED

MAX_COUNTED_IN_ALL: Final = 100_000
"""Deliveries counted for one page, divided among the subscriptions for which something waits."""

ASIDE: Final = "d.waits_for IN ('RETRY', 'RELEASE', 'RETURN', 'SUBSCRIPTION')"

BACKLOGS: Final = f"""
WITH waiting AS MATERIALIZED (
  SELECT s.id, s.subscriber_id, o.oldest
    FROM subscriptions_subscription s
   CROSS JOIN LATERAL (
     SELECT min(id) AS oldest FROM (
       (SELECT d.id FROM delivery_open d WHERE d.subscription_id = s.id AND d.waits_for = 'TURN' ORDER BY d.id LIMIT 1)
       UNION ALL
       SELECT (SELECT d.id FROM delivery_open d
                WHERE d.waits_for = w.it AND d.waits_for <> 'TURN' AND d.subscription_id = s.id ORDER BY d.id LIMIT 1)
         FROM unnest('{{RETRY,RELEASE,RETURN,SUBSCRIPTION}}'::text[]) AS w (it)) d) o
   WHERE o.oldest IS NOT NULL AND (%(subscriber_id)s::bigint IS NULL OR s.subscriber_id = %(subscriber_id)s::bigint)),
fair AS MATERIALIZED (
  SELECT LEAST({MAX_COUNTED}, {MAX_COUNTED_IN_ALL} / GREATEST(count(*), 1)) + 1 AS share FROM waiting)
SELECT w.subscriber_id, sum(LEAST(c.number, fair.share - 1))::int, bool_or(c.number = fair.share), min(d.created_at)
  FROM waiting w CROSS JOIN fair
 CROSS JOIN LATERAL (
   SELECT count(*) AS number FROM (
     (SELECT FROM delivery_open d WHERE d.subscription_id = w.id AND d.waits_for = 'TURN' ORDER BY d.id
       LIMIT (SELECT share FROM fair))
     UNION ALL
     (SELECT FROM delivery_open d WHERE d.subscription_id = w.id AND {ASIDE} ORDER BY d.waits_for, d.id
       LIMIT (SELECT share FROM fair))
      LIMIT (SELECT share FROM fair)) d) c
 CROSS JOIN LATERAL (
   SELECT d.created_at FROM delivery_open d WHERE d.id = w.oldest AND d.closed_on = '9999-12-31' LIMIT 1) d
 GROUP BY w.subscriber_id
"""
"""By index, from subscription to subscription. Delayed deliveries do not count: nobody waits for them yet."""


class Backlog(NamedTuple):
    """What waits for one subscriber, in its lines and in its mailbox."""

    waiting: int
    is_cut: bool
    """Whether there is more than was counted."""
    oldest_since: datetime


def backlogs(subscriber_id: int | None = None) -> dict[int, Backlog]:
    """Return the backlog of each subscriber that has one, or of a single one."""
    return {key: Backlog(*columns) for key, *columns in rows(BACKLOGS, {"subscriber_id": subscriber_id})}
