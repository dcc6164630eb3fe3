"""The parts of a round in which a subscription is paused or goes on, or something is announced (behaviour 5.6, 5.7)."""

from typing import Final

_OF_GONE: Final = """
  SELECT subscription_id, id, line_id, reason, false AS suspends, NULL::float8 AS probe,
         (further->>'announces')::bool AS announces
    FROM gone WHERE (further->>'resumes')::bool"""
_OF_STAYED: Final = """
   UNION ALL
  SELECT subscription_id, id, line_id, reason, (further->>'suspends')::bool, (further->>'probe')::float8,
         (further->>'announces')::bool
    FROM stayed WHERE (further->>'suspends')::bool OR (further->>'resumes')::bool"""

_TURNED: Final = """
turned AS MATERIALIZED (
  SELECT t.*, p.paused_since IS NULL AS is_new
    FROM (SELECT DISTINCT ON (subscription_id) * FROM told_of ORDER BY subscription_id, suspends DESC, id) t
    JOIN subscriptions_subscription p ON p.id = t.subscription_id
   WHERE CASE WHEN t.suspends THEN p.paused_by IN ('', 'POLICY') ELSE p.on_trial END
   ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED),
changed AS (
  UPDATE subscriptions_subscription p
     SET paused_since = CASE WHEN t.suspends THEN COALESCE(p.paused_since, clock_timestamp()) END,
         paused_by = CASE WHEN t.suspends THEN 'POLICY' ELSE '' END,
         paused_reason = CASE WHEN t.suspends THEN t.reason ELSE '' END, on_trial = false,
         probe_due_at = CASE WHEN t.suspends THEN clock_timestamp() + make_interval(secs => t.probe) END
    FROM turned t WHERE p.id = t.subscription_id),
told_of_pauses AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, delivery_id, reason)
  SELECT line_id, clock_timestamp(), CASE WHEN suspends THEN 'PAUSED' ELSE 'RESUMED' END, id,
         CASE WHEN suspends THEN reason ELSE '' END
    FROM turned WHERE is_new OR NOT suspends),
announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, delivery_id, details)
  SELECT CASE status WHEN 'FAILED' THEN 'Broker.Delivery.Failed' ELSE 'Broker.Delivery.Rejected' END, line_id,
         subscription_id, id, jsonb_build_object('status', status, 'reason', reason, 'attempts', attempts)
    FROM gone WHERE (further->>'announces')::bool AND status IN ('REJECTED', 'FAILED')
   UNION ALL
  SELECT CASE WHEN suspends THEN 'Broker.Line.Paused' ELSE 'Broker.Line.Resumed' END, line_id, subscription_id, id,
         jsonb_build_object('reason', CASE WHEN suspends THEN reason ELSE '' END)
    FROM turned WHERE announces AND (is_new OR NOT suspends))"""

PAUSED_BY_GONE: Final = f"\ntold_of AS ({_OF_GONE}),{_TURNED}"
PAUSED: Final = f"\ntold_of AS ({_OF_GONE}{_OF_STAYED}),{_TURNED}"
"""Whoever holds a subscription locked, such as an open form, is not waited for: the next outcome decides.

A policy turns no pause by hand, nor that of a backfill, into its own.
"""
