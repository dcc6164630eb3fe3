"""The statement that reads pages: what lines may send next, oldest first (behaviour 4.2, 4.6, 5.3)."""

from functools import cache
from typing import Final, LiteralString

ROW: Final = "d.id, d.message_id, d.subscription_id, d.attempts, d.sequence, d.uncertain, d.times_set_aside, d.size"
LIVES: Final = "(d.expires_at IS NULL OR d.expires_at > (SELECT clock_timestamp()))"

LEFT_OUT: Final = """
         AND NOT EXISTS (SELECT FROM unnest(%(of_line)s::bigint[], %(left_out)s::bigint[]) AS x (line_id, id)
                          WHERE x.line_id = w.line_id AND x.id = s.id)"""

ACTIVE: Final = """
WITH wanted AS (
  SELECT * FROM unnest(%(line_id)s::bigint[], %(epoch)s::bigint[], %(head_id)s::bigint[], %(capacity)s::int[])
           AS w (line_id, epoch, head_id, capacity)),
active AS MATERIALIZED (
  SELECT w.line_id, w.epoch, w.capacity, l.lane = 'main' AS has_fresh, array_agg(s.id ORDER BY s.id) AS subscription_ids
    FROM wanted w JOIN delivery_line l ON l.id = w.line_id
    JOIN subscriptions_subscriber u ON u.id = l.subscriber_id AND u.status = 'ACTIVE'
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.is_sending AND s.kind = 'TOPIC'
         AND (l.lane = 'main' OR NOT s.half_open)"""

PAGE: Final = f"""
   GROUP BY 1, 2, 3, 4),
page AS MATERIALIZED (
  SELECT w.line_id, 0 AS part, {ROW}
    FROM wanted w JOIN delivery_open d ON d.id = w.head_id AND d.closed_on = '9999-12-31' AND d.status = 'PENDING'
    LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
    LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   WHERE d.line_id = w.line_id AND (d.subscription_id IS NULL OR s.is_sending AND u.status = 'ACTIVE') AND {LIVES}
  UNION ALL
  SELECT a.line_id, 1, d.* FROM active a CROSS JOIN LATERAL (
    SELECT f.* FROM unnest(a.subscription_ids) AS s (id) CROSS JOIN LATERAL (
      SELECT {ROW} FROM delivery_open d
       WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.due_at IS NULL AND d.status = 'PENDING'
         AND {LIVES}
       ORDER BY d.id LIMIT a.capacity) f
     ORDER BY f.id LIMIT a.capacity) d
   WHERE a.has_fresh
  UNION ALL
  SELECT a.line_id, 2, {ROW} FROM active a CROSS JOIN LATERAL (
    SELECT f.* FROM (
      SELECT f.*, CASE WHEN NOT a.has_fresh THEN dense_rank() OVER (ORDER BY f.subscription_id) END AS number
        FROM unnest(a.subscription_ids) AS s (id) CROSS JOIN LATERAL (
          SELECT {ROW}, d.due_at,
                 CASE WHEN NOT a.has_fresh THEN row_number() OVER (ORDER BY d.due_at, d.id) END AS round
            FROM delivery_open d
           WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.due_at <= (SELECT clock_timestamp())
             AND d.status = 'PENDING' AND {LIVES}
           ORDER BY d.due_at, d.id LIMIT a.capacity) f) f
     ORDER BY f.round, mod(f.number + a.epoch, max(f.number) OVER ()), f.due_at, f.id LIMIT a.capacity) d),
"""

NOTED: Final = """
noted AS (
  INSERT INTO delivery_pageread (line_id, delivery_ids)
  SELECT line_id, array_agg(id) FROM page GROUP BY line_id
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL)
SELECT * FROM page
"""
NOTED_ANEW: Final = """
crowds AS MATERIALIZED (
  SELECT l.id FROM wanted w JOIN delivery_line l ON l.id = w.line_id AND l.epoch = w.epoch
   WHERE l.id = ANY (%(crowds)s::bigint[]) AND l.id IN (SELECT line_id FROM page) FOR KEY SHARE OF l),
forgotten AS (
  DELETE FROM delivery_pageread p USING crowds c WHERE p.line_id = c.id),
noted AS (
  INSERT INTO delivery_pageread (line_id, delivery_ids)
  SELECT line_id, array_agg(id) FROM (
    SELECT line_id, id FROM page
    UNION ALL
    SELECT b.line_id, b.id FROM unnest(%(of_busy)s::bigint[], %(busy)s::bigint[]) AS b (line_id, id)
      JOIN crowds c ON c.id = b.line_id) i
   GROUP BY line_id
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL)
SELECT * FROM page
"""
"""Where lines send several at a time, of which one may always wait: their turn need not end, their notes must not grow.

What has been taken already is noted again, and whoever has lost a line forgets nothing: its new driver's notes stay.
"""


@cache
def pages_statement(*, leaves_out: bool, has_crowds: bool) -> LiteralString:
    """Return what reads the pages, and notes for mending what is in them; without some subscriptions if it says so.

    A retry line has nothing that was never tried, and nothing of a subscription on trial, which is the main line's
    alone. Those of its subscriptions of which something is due take turns, and another of them begins whenever it is
    claimed: one that hangs, and whose turn goes with that, does not keep the others from theirs.

    The note need not be on disk yet: the settle that marks one of these as under way is written behind it, and waits.
    """
    return ACTIVE + (LEFT_OUT if leaves_out else "") + PAGE + (NOTED_ANEW if has_crowds else NOTED)
