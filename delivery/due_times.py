"""SQL that open deliveries share: due times that never come, and how a finished delivery leaves the open partition."""

import datetime as dt
from typing import Final

UNTIL_RELEASED: Final = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
"""Of what is HELD (contract 3.6): behind all that is ever due."""
UNTIL_ACTIVE: Final = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)
"""Of a QUEUE group, and its deliveries, none of whose subscriptions is active (contract 1.7): until one is."""
UNTIL_DUE: Final = dt.datetime(9999, 12, 29, tzinfo=dt.UTC)
"""Of what is delayed (contract 2.13): until its own `not_before`, and then it is as if published just now."""
UNTIL_RETURNED: Final = dt.datetime(9999, 12, 28, tzinfo=dt.UTC)
"""Of what a mailbox has handed out (contract 9.1): no line marks, reads or sweeps it, whatever its time-out."""

RELEASED: Final = f"'{UNTIL_RELEASED}'::timestamptz"
ACTIVE: Final = f"'{UNTIL_ACTIVE}'::timestamptz"
DUE_LATER: Final = f"'{UNTIL_DUE}'::timestamptz"
RETURNED: Final = f"'{UNTIL_RETURNED}'::timestamptz"
"""The same in SQL, as a constant: so the planner knows how many wait."""

FIRST_SENTINEL: Final = RETURNED
"""What is due before it is due at a moment."""

TOLD: Final = "d.expires_at, d.not_before, d.resubmit_of, d.replay_id, d.fetches"
"""What a delivery was told when it was made, and how often it was handed out: no request changes it."""
CARRIED: Final = f"{TOLD}, d.unreceived"
"""What every `gone` takes over as it is, from a row `d` of `delivery_open`."""

IN_DOUBT: Final = "sequence IS NOT NULL AND (unreceived OR uncertain AND (attempts = 0 OR fetches = 0))"
"""Whether a row's number may never have been received: no request has been answered, or the last one may not have been.

A mailbox's hand-out that timed out makes a delivery uncertain too, and says nothing of a number once answered.
"""

HISTORY_LINE: Final = """COALESCE((SELECT m.id FROM delivery_line l JOIN delivery_line m USING (subscriber_id)
                    WHERE l.id = line_id AND m.lane = 'main'), line_id)"""
"""The line whose history tells of a row's `line_id`: of what is retried apart the main line, which gave its number."""

FILE_GONE: Final = """
  INSERT INTO delivery_delivery (id, message_id, line_id, subscription_id, group_id, status, size, attempts,
                                 times_deferred, due_at, sequence, uncertain, cancel_requested, reason, created_at,
                                 expires_at, not_before, resubmit_of, replay_id, fetches, unreceived, finished_at,
                                 closed_on)
  SELECT id, message_id, line_id, subscription_id, group_id, status, size, attempts, times_deferred, due_at,
         sequence, uncertain, cancel_requested, reason, created_at, expires_at, not_before, resubmit_of, replay_id,
         fetches, unreceived, clock_timestamp(),
         (SELECT day
            FROM delivery_storageday CROSS JOIN (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date) AS n (now)
           WHERE dropped_at IS NULL ORDER BY day > now, abs(day - now) LIMIT 1)
    FROM gone"""
"""Files the rows of a CTE `gone`, deleted from `delivery_open`, under today.

DELETE and INSERT, not an UPDATE that moves the row: whoever waits for the row then finds it gone, and gets no error.
The day is the newest that has a partition, so a late maintenance job stops nothing; or the first one that has, so
neither does a clock set back.
"""
