"""Give diverted subscriptions their next probe, or let their diversion end (contract 5.10).

While the endpoint of a subscription hangs, the subscriber's retry line tries it with what waits there, and the rest
waits where it is. If the retry line has nothing of the subscription any more, because it has ended without an answer,
or nothing that is due soon, the oldest of the rest goes there. It is due at once and gets its number here, where no
worker gives any.
"""

from collections.abc import Sequence
from typing import Final

from broker_project.core.db import rows
from delivery.dispatch.turn_floors import WAITS
from delivery.filing import LIVES, SHORT_LOCK_WAIT

IS_DIVERTED: Final = """
  (l.lane = 'main' AND EXISTS (
     SELECT FROM subscriptions_subscription v
      WHERE v.subscriber_id = l.subscriber_id AND v.diverted_since IS NOT NULL))"""
"""Whether a line `l` is one that a subscription is diverted from."""

RETRIED: Final = f"""
  SELECT min(d.due_at) AS due_at FROM delivery_line r CROSS JOIN LATERAL (
    SELECT d.due_at FROM delivery_open d
     WHERE d.subscription_id = s.id AND d.line_id = r.id AND d.due_at IS NOT NULL AND {LIVES}
     ORDER BY d.due_at, d.id LIMIT 1) d
   WHERE r.subscriber_id = s.subscriber_id AND r.lane = 'retry'"""
"""The due time of the next delivery of a subscription `s` in the retry line, null if it has none there that lives."""

FIRST_PAUSE: Final = """
  make_interval(secs => (SELECT COALESCE(p.schedule[1], p.initial_delay_seconds)
                           FROM subscriptions_retrypolicy p WHERE p.id = s.retry_policy_id))"""
"""Of the policy of a subscription `s`."""

WITHOUT_PROBE: Final = f"""
  s.diverted_since IS NOT NULL AND s.is_sending AND CASE
    WHEN (SELECT due_at FROM ({RETRIED}) t) <= clock_timestamp() + {FIRST_PAUSE} THEN false
    WHEN (SELECT due_at FROM ({RETRIED}) t) IS NULL THEN true
    ELSE (SELECT d.id FROM delivery_open d
           WHERE {WAITS.format("s.id")} AND {LIVES} ORDER BY d.subscription_id, d.id LIMIT 1) IS NOT NULL END"""
"""Whether a subscription `s` is diverted and not tried within the first pause of its policy.

One of which nothing waits, but for what is tried later, is not tried sooner.
"""

GIVE_PROBES: Final = f"""
WITH without AS MATERIALIZED (
  SELECT s.id, (SELECT due_at FROM ({RETRIED}) t) IS NULL AS is_idle,
         l.id AS line_id, l.last_sequence, r.id AS retry_line_id,
         u.processing <> 'CONCURRENT' OR u.concurrency = 1 AS has_numbers
    FROM delivery_line l JOIN delivery_line r ON r.subscriber_id = l.subscriber_id AND r.lane = 'retry'
    JOIN subscriptions_subscriber u ON u.id = l.subscriber_id
    JOIN subscriptions_subscription s ON s.subscriber_id = l.subscriber_id AND {WITHOUT_PROBE}
   WHERE {SHORT_LOCK_WAIT} AND l.id = ANY(%s) AND l.lane = 'main'
   ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED),
oldest AS MATERIALIZED (
  SELECT w.*, d.id AS delivery_id,
         w.last_sequence + count(*) FILTER (WHERE w.has_numbers AND d.sequence IS NULL)
                             OVER (PARTITION BY w.line_id ORDER BY d.id) AS next_sequence
    FROM without w CROSS JOIN LATERAL (
      SELECT d.id, d.sequence FROM delivery_open d
       WHERE {WAITS.format("w.id")} AND d.line_id = w.line_id AND d.status = 'PENDING' AND {LIVES}
       ORDER BY d.subscription_id, d.id LIMIT 1 FOR UPDATE) d),
moved AS (
  UPDATE delivery_open d
     SET line_id = o.retry_line_id, waits_for = 'RETRY', due_at = clock_timestamp(),
         sequence = COALESCE(d.sequence, CASE WHEN o.has_numbers THEN o.next_sequence END),
         unreceived = d.unreceived OR d.attempts = 0
    FROM oldest o WHERE d.id = ANY (ARRAY[o.delivery_id]) AND d.line_id = o.line_id),
ended AS (
  UPDATE subscriptions_subscription SET diverted_since = NULL
   WHERE id = ANY (ARRAY(SELECT id FROM without WHERE is_idle EXCEPT SELECT id FROM oldest)))
UPDATE delivery_line l SET last_sequence = n.last_sequence
  FROM (SELECT line_id, max(next_sequence) AS last_sequence FROM oldest GROUP BY 1) n WHERE l.id = n.line_id
RETURNING l.id, l.last_sequence
"""
"""For lines that this transaction has claimed: so nobody else changes their last number, or what waits for its turn.

Where nothing is left to be tried with, the main line goes on.
"""


def give_probes(line_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Give the diverted subscriptions of lines just claimed their probes; return the last numbers that changed."""
    return list(rows(GIVE_PROBES, [[*line_ids]]))
