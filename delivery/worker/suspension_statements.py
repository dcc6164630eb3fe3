"""The parts of a round in which a policy suspends a subscription, or a trial lets it go on (behaviour 5.6, 5.7)."""

from typing import Final

from delivery.due_times import TOLD_BY

_OF_GONE: Final = """
      SELECT subscription_id, id, line_id, reason, further FROM gone WHERE (further->>'resumes')::bool"""
_OF_STAYED: Final = """
       UNION ALL
      SELECT subscription_id, id, line_id, reason, further FROM stayed
       WHERE (further->>'suspends')::bool OR (further->>'resumes')::bool"""

_TURNED: Final = f""") w
   CROSS JOIN LATERAL json_to_record(w.further) AS f (suspends bool, stamp bigint, probe float8, announces bool)),
turned AS MATERIALIZED (
  SELECT w.*, p.paused_since IS NULL AS is_new
    FROM (SELECT DISTINCT ON (subscription_id) * FROM wishes ORDER BY subscription_id, suspends, stamp DESC, id) w
    JOIN subscriptions_subscription p ON p.id = w.subscription_id
    JOIN subscriptions_subscriber u ON u.id = p.subscriber_id
   WHERE CASE WHEN w.suspends THEN p.paused_by = 'POLICY' OR p.paused_by = '' AND p.version + u.version = w.stamp
              ELSE p.half_open END
   ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED),
changed AS (
  UPDATE subscriptions_subscription p
     SET paused_since = CASE WHEN t.suspends THEN COALESCE(p.paused_since, clock_timestamp()) END,
         paused_by = CASE WHEN t.suspends THEN 'POLICY' ELSE '' END,
         paused_reason = CASE WHEN t.suspends THEN t.reason ELSE '' END, half_open = false,
         probe_due_at = CASE WHEN t.suspends THEN clock_timestamp() + make_interval(secs => t.probe) END
    FROM turned t WHERE p.id = t.subscription_id),
pause_noted AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, delivery_id, reason)
  SELECT {TOLD_BY}, clock_timestamp(), CASE WHEN suspends THEN 'PAUSED' ELSE 'RESUMED' END, id,
         concat_ws(': ', 'subscription ' || subscription_id, CASE WHEN suspends THEN reason END)
    FROM turned WHERE is_new OR NOT suspends),
pause_announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, delivery_id, details)
  SELECT CASE WHEN suspends THEN 'Broker.Line.Paused' ELSE 'Broker.Line.Resumed' END, line_id, subscription_id, id,
         jsonb_build_object('pause', 'SUSPENDED', 'reason', CASE WHEN suspends THEN reason ELSE '' END)
    FROM turned WHERE announces AND (is_new OR NOT suspends))"""

RESUMED: Final = f"""
wishes AS (
  SELECT w.subscription_id, w.id, w.line_id, w.reason, f.*
    FROM ({_OF_GONE}{_TURNED}"""
"""Where nothing stays."""

SUSPENDED: Final = f"""
wishes AS (
  SELECT w.subscription_id, w.id, w.line_id, w.reason, f.*
    FROM ({_OF_GONE}{_OF_STAYED}{_TURNED}"""
"""What was sent under another configuration suspends nothing: it is tried once under the one in force (4.15).

A policy turns no pause by hand, nor that of a backfill, into its own. Whoever holds a subscription locked, such as an
open form, is not waited for: its delivery stops the line for a pause and is tried again, and a trial that worked is
seen by the next probe to have nothing left to try.
"""

UNLESS_SUSPENDED: Final = """
     AND s.id <> ALL (ARRAY(SELECT subscription_id FROM wishes WHERE suspends))"""
"""Of what other lines have in hand: their subscription is paused by this very statement."""
