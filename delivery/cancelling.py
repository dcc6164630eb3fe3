"""Cancelling what a subscription has unfinished: an action of its own (behaviour 1.8)."""

from typing import Final

from django.db import transaction

from delivery.filing import FILE_GONE
from subscriptions.database import rows

LOCK_LINES: Final = """
SELECT l.id FROM delivery_line l JOIN subscriptions_subscription s ON s.subscriber_id = l.subscriber_id
 WHERE s.id = %s ORDER BY l.id FOR NO KEY UPDATE OF l
"""
"""First the line, then its deliveries: a settle waits here, and sees what was cancelled."""

CANCEL: Final = f"""
WITH gone AS (
  DELETE FROM delivery_open d WHERE d.subscription_id = %(subscription)s AND d.status IN ('PENDING', 'HELD')
  RETURNING d.id, d.message_id, d.line_id, d.subscription_id, 'CANCELLED' AS status, d.size, d.attempts,
            d.times_set_aside, d.due_at, d.sequence, d.uncertain, true AS cancel_requested, %(reason)s::text AS reason,
            d.created_at),
asked AS (
  UPDATE delivery_open d SET cancel_requested = true
   WHERE d.subscription_id = %(subscription)s AND d.status = 'IN_FLIGHT' RETURNING d.id),
filed AS ({FILE_GONE}),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT line_id, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'cancelled; it may never have been sent'
    FROM gone WHERE uncertain AND sequence IS NOT NULL)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM asked)
"""


def cancel_deliveries_of(subscription_id: int, *, reason: str) -> tuple[int, int]:
    """End every unfinished delivery of the subscription as CANCELLED.

    Returns how many ended at once, and how many are under way and end so unless their answer ends them otherwise.
    """
    with transaction.atomic():
        rows(LOCK_LINES, [subscription_id])
        ((ended, asked),) = rows(CANCEL, {"subscription": subscription_id, "reason": reason})
        return ended, asked
