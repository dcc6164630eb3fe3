"""Hand-outs that have timed out, and whose messages nobody may fetch again (behaviour 9.2, 9.7, 9.8).

All others stay as they are: what has timed out is available, without anybody having seen to it.
"""

from typing import Final

from delivery.mailboxes.endings import BACK, OVERDUE, ends, walk
from delivery.waking import wakeups
from subscriptions.database import rows

SLICE: Final = 1_000
"""Deliveries ended or returned in one statement."""
REACH: Final = 200
"""Of each subscription's hand-outs that have timed out, how many of the oldest and of the newest are looked at."""


def _end_of_the_overdue(direction: str) -> str:
    return f"""
    (SELECT d.id, d.fetches, d.cancel_requested FROM delivery_open d
      WHERE d.subscription_id = s.id AND d.{OVERDUE}
      ORDER BY d.fetched_until {direction}, d.id {direction} LIMIT {REACH})"""


RETURN: Final = f"""
WITH RECURSIVE {walk("boxes", "fetched_until IS NOT NULL")},
overdue AS MATERIALIZED (
  SELECT DISTINCT d.id, s.delivery_mode, u.max_redeliveries
    FROM boxes b
    JOIN subscriptions_subscription s ON s.id = b.id
    JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   CROSS JOIN LATERAL ({_end_of_the_overdue("ASC")}
    UNION ALL {_end_of_the_overdue("DESC")}) d
   WHERE s.delivery_mode = 'PUSH' OR {ends("d", "u.max_redeliveries")}
   ORDER BY d.id LIMIT {SLICE}),
back AS MATERIALIZED (
  SELECT d.id, {ends("d", "o.max_redeliveries")} AS ends
    FROM (SELECT * FROM overdue ORDER BY id) o
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open d
      WHERE d.id = o.id AND d.closed_on = '9999-12-31' AND d.fetched_until <= clock_timestamp()
      LIMIT 1 FOR UPDATE SKIP LOCKED) d
   WHERE o.delivery_mode = 'PUSH' OR {ends("d", "o.max_redeliveries")}),
{BACK}
SELECT (SELECT count(*) FROM back), ARRAY(SELECT DISTINCT line_id FROM returned ORDER BY line_id)
"""
"""What is cancelled or has used up its redeliveries ends; what is pushed by now goes back to its line.

The newest are looked at besides, since those that may be fetched, and that nobody fetches, stay at the front.
"""


def return_overdue() -> int:
    """End or return, of what has timed out, a slice of what nobody may fetch; return how much."""
    ((number, line_ids),) = rows(RETURN, {"uncertain": True})
    wakeups.wake(wakeups.TOPIC, line_ids)
    return int(number)
