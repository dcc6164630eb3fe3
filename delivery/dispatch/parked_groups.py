"""QUEUE groups that no endpoint can take now: end them, park them where no page meets them, or let them wait (1.7)."""

from collections.abc import Mapping, Sequence
from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.filing import LIVES, subscriptions_with
from delivery.limits import EXPIRED_SECONDS, SWEEP_SLICE

LOCK: Final = """
SELECT g.id FROM delivery_queuegroup g JOIN delivery_line l ON l.id = g.line_id
 WHERE g.id = ANY (%s) ORDER BY g.id FOR NO KEY UPDATE OF l SKIP LOCKED FOR UPDATE OF g SKIP LOCKED
"""
"""Who releases, cancels or settles has locked the line. The next statement sees what came of it before."""

PUT_AWAY: Final = f"""
WITH idle AS MATERIALIZED (
  SELECT g.id, g.delivery_ids FROM delivery_queuegroup g WHERE g.id = ANY (%s)),
free AS MATERIALIZED (
  SELECT id FROM delivery_open
   WHERE id = ANY (ARRAY(SELECT unnest(delivery_ids) FROM idle)) AND closed_on = '9999-12-31'
     FOR NO KEY UPDATE SKIP LOCKED),
open AS MATERIALIZED (
  SELECT i.id AS group_id, d.id, d.id = ANY (ARRAY(SELECT id FROM free)) AS is_free, d.status <> 'HELD' AS waits,
         d.status <> 'HELD' AND s.is_sending AND u.status = 'ACTIVE' AS goes, {LIVES} AS lives
    FROM idle i CROSS JOIN LATERAL unnest(i.delivery_ids) AS n (id)
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open o WHERE o.id = n.id AND o.closed_on = '9999-12-31' LIMIT 1) d
    JOIN subscriptions_subscription s ON s.id = d.subscription_id
    JOIN subscriptions_subscriber u ON u.id = s.subscriber_id),
standing AS MATERIALIZED (
  SELECT group_id, bool_or(waits) AS waits, bool_or(goes) AS expires FROM open
   GROUP BY group_id HAVING NOT bool_or(goes AND lives) AND bool_and(is_free)),
over AS (
  DELETE FROM delivery_queuegroup g USING idle i
   WHERE g.id = ANY (ARRAY[i.id]) AND i.id NOT IN (SELECT group_id FROM open)),
parked AS (
  UPDATE delivery_open d SET waits_for = 'SUBSCRIPTION' FROM open o JOIN standing USING (group_id)
   WHERE d.id = ANY (ARRAY[o.id]) AND o.waits AND NOT standing.expires)
UPDATE delivery_queuegroup g
   SET waits_for = CASE WHEN s.expires THEN 'RETRY' WHEN s.waits THEN 'SUBSCRIPTION' ELSE 'RELEASE' END,
       due_at = CASE WHEN s.expires THEN clock_timestamp() + make_interval(secs => {EXPIRED_SECONDS}) END
  FROM standing s WHERE g.id = ANY (ARRAY[s.group_id])
"""
"""A group of which all that could be sent has expired waits for its end, which may be minutes away (contract 11.7).

It is not parked: if the clock is set back, it is sent. One with a delivery that somebody has locked stays as it is: the
event loop waits for nobody.
"""

PUT_OFF: Final = """
WITH off AS MATERIALIZED (
  SELECT g.id, o.seconds
    FROM unnest(%s::bigint[], %s::float8[]) AS o (id, seconds) JOIN delivery_queuegroup g ON g.id = ANY (ARRAY[o.id])
   WHERE g.waits_for = 'TURN' OR g.due_at <= clock_timestamp() ORDER BY g.id FOR UPDATE OF g SKIP LOCKED)
UPDATE delivery_queuegroup g
   SET waits_for = 'RETRY', due_at = clock_timestamp() + make_interval(secs => off.seconds)
  FROM off WHERE g.id = ANY (ARRAY[off.id])
"""

UNPARK: Final = f"""
WITH RECURSIVE {subscriptions_with("parked", "waits_for = 'SUBSCRIPTION'")},
back AS MATERIALIZED (
  SELECT d.group_id
    FROM parked p
    JOIN subscriptions_subscription s ON s.id = p.id AND s.is_sending
    JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
   CROSS JOIN LATERAL (
     SELECT o.group_id FROM delivery_open o
      WHERE o.subscription_id = s.id AND o.waits_for = 'SUBSCRIPTION' ORDER BY o.id LIMIT {SWEEP_SLICE}) d
   LIMIT {SWEEP_SLICE}),
groups AS MATERIALIZED (
  SELECT g.id, g.delivery_ids FROM delivery_queuegroup g
   WHERE g.id = ANY (ARRAY(SELECT group_id FROM back)) ORDER BY g.id FOR UPDATE SKIP LOCKED),
free AS MATERIALIZED (
  SELECT id FROM delivery_open
   WHERE id = ANY (ARRAY(SELECT unnest(delivery_ids) FROM groups)) AND closed_on = '9999-12-31'
     FOR NO KEY UPDATE SKIP LOCKED),
deliveries AS (
  UPDATE delivery_open d SET waits_for = 'TURN'
   WHERE d.id = ANY (ARRAY(SELECT id FROM free))
     AND d.closed_on = '9999-12-31' AND d.waits_for IS NOT DISTINCT FROM 'SUBSCRIPTION')
UPDATE delivery_queuegroup g SET waits_for = 'TURN'
 WHERE g.id = ANY (ARRAY(SELECT id FROM groups)) AND g.waits_for IS NOT DISTINCT FROM 'SUBSCRIPTION'
"""
"""Lets groups be sent again, in their places, of which a subscription is active again: a slice of them.

Walks from subscription to subscription that has something parked.

A delivery that somebody has locked is found again by the next sweep; its group goes on.

What it changes is found by id, and said so that no other index will do: else all that is parked would be looked through
at every sweep.
"""


def park(group_ids: Sequence[int]) -> None:
    """Let groups that nobody can take now wait until somebody can: active again, or released; end empty ones.

    Looks again: what somebody can take meanwhile stays as it is.
    """
    if group_ids:
        with transaction.atomic():
            idle = [group_id for (group_id,) in rows(LOCK, [[*group_ids]])]
            rows(PUT_AWAY, [idle])


def postpone(seconds: Mapping[int, float]) -> None:
    """Let groups that are due wait for `seconds`, by their ids; this is not an attempt."""
    if seconds:
        rows(PUT_OFF, [[*seconds.keys()], [*seconds.values()]])
