"""Deliveries that were not to be sent before their time (behaviour 2.13)."""

from typing import Final

from delivery.rules.due_times import DUE_LATER
from delivery.waking import wakeups
from subscriptions.database import rows

SLICE: Final = 2_000

BEGIN: Final = f"""
WITH begun AS (
  UPDATE delivery_open SET due_at = NULL
   WHERE closed_on = '9999-12-31' AND status = 'PENDING' AND id = ANY (ARRAY(
     SELECT id FROM delivery_open
      WHERE due_at = {DUE_LATER} AND not_before <= (SELECT clock_timestamp())
      ORDER BY not_before, id LIMIT {SLICE} FOR UPDATE SKIP LOCKED))
  RETURNING line_id)
SELECT line_id, count(*) FROM begun GROUP BY line_id
"""
"""From then on they are as if published just now, but for their ids: these say their places."""


def begin_delayed() -> int:
    """Let those whose time has come, a slice of them, take their places, and wake their lines; return how many."""
    begun = dict(rows(BEGIN))
    wakeups.wake(wakeups.TOPIC, sorted(begun))
    return sum(begun.values())
