"""The statements that tell how lines stand, none of which reads further than it counts."""

from typing import Final

COUNTED_AT_MOST: Final = 1000
"""Deliveries are counted no further: a backlog of a million must cost no more to look at."""

HOLD_COUNTS: Final = """
  (l.held_since IS NOT NULL AND l.due_at IS NOT NULL AND EXISTS (
     SELECT FROM delivery_open h JOIN subscriptions_subscription s ON s.id = h.subscription_id AND s.status = 'ACTIVE'
       JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
      WHERE h.id = l.head_id AND h.closed_on = '9999-12-31' AND h.status IN ('PENDING', 'IN_FLIGHT')))
"""
"""A line is held only for a head that can be sent: one cancelled or inactivated meanwhile holds nothing up."""

UNTIL_RELEASED: Final = "'9999-12-31 00:00:00+00'::timestamptz"

HELD: Final = f"SELECT l.id FROM delivery_line l WHERE {HOLD_COUNTS}"

STANDINGS: Final = f"""
WITH asked AS (
  SELECT l.*, u.status = 'ACTIVE' AS is_active
    FROM delivery_line l JOIN subscriptions_subscriber u ON u.id = l.subscriber_id WHERE l.id = ANY(%s))
SELECT l.id, {HOLD_COUNTS}, COALESCE(l.lease_until > clock_timestamp(), false),
       l.is_active AND (fresh.sendable OR COALESCE(next.due_at <= clock_timestamp(), false)),
       fresh.number, aside.number, held.number, next.due_at, l.held_since, l.held_reason, l.due_at
  FROM asked l
 CROSS JOIN LATERAL (
   SELECT count(*) AS number, COALESCE(bool_or(f.is_active), false) AS sendable FROM (
     SELECT s.status = 'ACTIVE' AS is_active FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at IS NULL
        ORDER BY d.id LIMIT {COUNTED_AT_MOST}) d
      WHERE s.subscriber_id = l.subscriber_id AND s.kind = 'TOPIC' ORDER BY s.status LIMIT {COUNTED_AT_MOST}) f) fresh
 CROSS JOIN LATERAL (
   SELECT count(*) AS number FROM (
     SELECT FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at < {UNTIL_RELEASED}
        ORDER BY d.due_at, d.id LIMIT {COUNTED_AT_MOST}) d
      WHERE s.subscriber_id = l.subscriber_id AND s.kind = 'TOPIC' LIMIT {COUNTED_AT_MOST}) a) aside
 CROSS JOIN LATERAL (
   SELECT count(*) AS number FROM (
     SELECT FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at = {UNTIL_RELEASED}
        ORDER BY d.id LIMIT {COUNTED_AT_MOST}) d
      WHERE s.subscriber_id = l.subscriber_id AND s.kind = 'TOPIC' LIMIT {COUNTED_AT_MOST}) h) held
 CROSS JOIN LATERAL (
   SELECT min(d.due_at) AS due_at FROM subscriptions_subscription s CROSS JOIN LATERAL (
     SELECT d.due_at FROM delivery_open d
      WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at < {UNTIL_RELEASED} ORDER BY d.due_at LIMIT 1) d
    WHERE s.subscriber_id = l.subscriber_id AND s.kind = 'TOPIC' AND s.status = 'ACTIVE' AND l.is_active) next
"""
"""Active subscriptions sort first, so that what can be sent is seen however much waits that cannot.

Deliveries are sorted, although any will do: else the planner may look for them from the table's beginning on.
"""

UNFINISHED: Final = f"""
SELECT count(*) FROM (
  SELECT FROM unnest(%s::bigint[]) AS s (id) CROSS JOIN LATERAL (
    (SELECT FROM delivery_open WHERE subscription_id = s.id AND due_at IS NULL ORDER BY id LIMIT {COUNTED_AT_MOST})
    UNION ALL
    (SELECT FROM delivery_open WHERE subscription_id = s.id AND due_at IS NOT NULL
      ORDER BY due_at, id LIMIT {COUNTED_AT_MOST})) d
   LIMIT {COUNTED_AT_MOST}) one
"""
