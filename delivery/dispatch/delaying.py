"""Deliveries that were not to be sent before their time (behaviour 2.13)."""

from typing import Final

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.due_times_ import DUE_LATER

SLICE: Final = 2_000

BEGIN: Final = f"""
WITH begun AS (
  UPDATE delivery_open SET due_at = NULL
   WHERE closed_on = '9999-12-31' AND status = 'PENDING' AND id = ANY (ARRAY(
     SELECT id FROM delivery_open
      WHERE due_at = {DUE_LATER} AND not_before <= (SELECT clock_timestamp())
      ORDER BY not_before, id LIMIT {SLICE} FOR UPDATE SKIP LOCKED))
  RETURNING line_id, subscription_id)
SELECT b.line_id, s.delivery_mode = 'PUSH', count(*)
  FROM begun b JOIN subscriptions_subscription s ON s.id = b.subscription_id GROUP BY 1, 2
"""
"""From then on they are as if published just now, but for their ids: these say their places."""


def begin_delayed() -> int:
    """Let those whose time has come, a slice of them, take their places, and wake their lines; return how many.

    What is fetched from a mailbox is there for the next who asks.
    """
    begun = rows(BEGIN)
    notify.wake(notify.TOPIC, sorted(line_id for line_id, is_pushed, _ in begun if is_pushed))
    return sum(number for *_, number in begun)
