"""The parts of a round's statement for what is sent next: marked as under way, each by its line alone."""

from typing import Final

from delivery.worker.settle_sql import OPEN

STARTED: Final = f"""
started AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT', sequence = COALESCE(d.sequence, m.sequence)
    FROM next m, owned o, subscriptions_subscription s, subscriptions_subscriber u
   WHERE o.id = m.line_id AND {OPEN} AND d.id = m.delivery_id AND d.line_id = m.line_id
     AND s.id = d.subscription_id AND u.id = s.subscriber_id AND s.is_sending AND u.status = 'ACTIVE'
     AND s.version + u.version = m.stamp AND (d.due_at IS NULL OR d.due_at <= clock_timestamp())
     AND (d.expires_at IS NULL OR d.expires_at > clock_timestamp())
     AND d.status IN ('PENDING', 'IN_FLIGHT')"""
MARKED: Final = """
  RETURNING d.id, COALESCE(d.sequence, 0) AS sequence)"""
"""What is sent next: as it was read, or marked already by this statement, its commit not heard of."""

REPLIES: Final = f"""
started_replies AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT'
    FROM next m, owned o
   WHERE o.id = m.line_id AND {OPEN} AND d.id = m.delivery_id AND d.line_id = m.line_id
     AND d.subscription_id IS NULL AND d.status IN ('PENDING', 'IN_FLIGHT')
  RETURNING d.id)"""
"""The same for the replies to callbacks: no subscription may have changed, and they have no number."""
