"""The statements that pause subscriptions, and let them go on, from outside their lines (behaviour 1.6, 5.7)."""

from typing import Final

from subscriptions.names import OWN_EVENTS

_TOLD: Final = f"""
  RETURNING s.id, s.subscriber_id, s.kind, a.turns, a.paused_by),
noted AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, reason)
  SELECT l.id, clock_timestamp(), %(event)s, concat_ws(': ', 'subscription ' || c.id, NULLIF(%(why)s, ''))
    FROM changed c JOIN delivery_line l ON l.subscriber_id = c.subscriber_id AND l.lane = 'main'
   WHERE c.kind = 'TOPIC'),
announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, details)
  SELECT '{OWN_EVENTS}Line.' || initcap(%(event)s), l.id, c.id,
         jsonb_build_object('pause', CASE c.paused_by WHEN 'POLICY' THEN 'SUSPENDED' ELSE 'BY_HAND' END,
                            'reason', %(why)s::text)
    FROM changed c LEFT JOIN delivery_line l
      ON l.subscriber_id = c.subscriber_id AND l.lane = 'main' AND c.kind = 'TOPIC'
   WHERE c.turns)
SELECT c.id, l.queue, l.id
  FROM changed c LEFT JOIN delivery_line l ON l.subscriber_id = c.subscriber_id AND c.kind = 'TOPIC'
"""
"""History and announcement, in the same transaction; what is for the broker's own events makes none (5.7).

Nor does the end of a backfill, whose beginning was not announced, nor a person's taking over of a suspension.
"""

_ASKED: Final = f"""
WITH asked AS MATERIALIZED (
  SELECT s.id, s.paused_by, NOT starts_with(COALESCE(e.name, s.event_pattern), '{OWN_EVENTS}')
               AND (s.paused_since IS NULL) = (%(event)s = 'PAUSED') AND s.paused_by <> 'BACKFILL' AS turns
    FROM subscriptions_subscription s LEFT JOIN subscriptions_eventtype e ON e.id = s.event_type_id
   WHERE """
_OF_THESE: Final = """s.id = ANY(%(subscriptions)s) AND s.kind <> 'SYNC' AND s.paused_by = ANY(%(paused_by)s)
   ORDER BY s.id FOR NO KEY UPDATE OF s),"""
_SUSPENDED_SINCE: Final = """s.paused_by = 'POLICY' AND (s.id, s.paused_since) IN (
         SELECT * FROM unnest(%(subscriptions)s::bigint[], %(since)s::timestamptz[]))
   ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED),"""

_GOES_ON: Final = """
changed AS (
  UPDATE subscriptions_subscription s
     SET paused_since = NULL, paused_by = '', paused_reason = '', half_open = false, probe_due_at = NULL
    FROM asked a WHERE s.id = a.id"""

PAUSE: Final = f"""{_ASKED}{_OF_THESE}
changed AS (
  UPDATE subscriptions_subscription s
     SET paused_since = COALESCE(s.paused_since, clock_timestamp()), paused_by = 'HAND', paused_reason = %(why)s,
         half_open = false, probe_due_at = NULL
    FROM asked a WHERE s.id = a.id{_TOLD}"""
"""A pause of its retry policy becomes one by hand: nothing tries it any more. Lines are not locked: as inactivating."""

RESUME: Final = f"{_ASKED}{_OF_THESE}{_GOES_ON}{_TOLD}"

END_SUSPENSIONS: Final = f"{_ASKED}{_SUSPENDED_SINCE}{_GOES_ON}{_TOLD}"
"""Of those suspended since then: another suspension of the same is not ended. Nobody is waited for."""
