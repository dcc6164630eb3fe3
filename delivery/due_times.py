"""How a finished delivery leaves the open shelf: the one piece of SQL that settling, mending and cancelling share."""

from typing import Final

TOLD: Final = "d.expires_at, d.not_before, d.resubmit_of, d.replay_id, d.fetches"
"""What a delivery was told when it was made, and how often it was handed out: no request changes it."""
CARRIED: Final = f"{TOLD}, d.unreceived"
"""What every `gone` takes over as it is, from a row `d` of `delivery_open`."""

IN_DOUBT: Final = "sequence IS NOT NULL AND (unreceived OR uncertain AND (attempts = 0 OR fetches = 0))"
"""Whether a row's number may never have been received: no request has been answered, or the last one may not have been.

A mailbox's hand-out that timed out makes a delivery uncertain too, and says nothing of a number once answered.
"""

TOLD_BY: Final = """COALESCE((SELECT m.id FROM delivery_line l JOIN delivery_line m USING (subscriber_id)
                    WHERE l.id = line_id AND m.lane = 'main'), line_id)"""
"""The line whose history tells of a row's `line_id`: of what is retried apart the main line, which gave its number."""

FILE_GONE: Final = """
  INSERT INTO delivery_delivery (id, message_id, line_id, subscription_id, group_id, status, size, attempts,
                                 times_set_aside, due_at, sequence, uncertain, cancel_requested, reason, created_at,
                                 expires_at, not_before, resubmit_of, replay_id, fetches, unreceived, finished_at,
                                 closed_on)
  SELECT id, message_id, line_id, subscription_id, group_id, status, size, attempts, times_set_aside, due_at,
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
