"""Rate limits of subscriptions hold for volatile messages too, which do not wait for their turn (behaviour 1.4)."""

from collections.abc import Iterable
from typing import Final

from broker_project.core.db import rows
from delivery.webhook.parts import Destination
from delivery.worker.pace_statements import AT, LATE

LINES_WAIT: Final = """
         ((SELECT o.id FROM delivery_open o
            WHERE o.subscription_id = p.subscription_id AND o.due_at IS NULL ORDER BY o.id LIMIT 1) IS NOT NULL
          OR EXISTS (
            SELECT FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id
             CROSS JOIN LATERAL (
               SELECT o.id FROM delivery_open o
                WHERE o.subscription_id = s.id AND o.line_id = l.id AND o.due_at <= (SELECT clock_timestamp())
                ORDER BY o.due_at, o.id LIMIT 1) d
             WHERE s.id = p.subscription_id))"""
"""Whether something stored waits to be sent to the subscription of the pace `p`."""

TAKE: Final = f"""
WITH free AS MATERIALIZED (
  SELECT p.subscription_id, {AT}
    FROM (SELECT subscription_id, make_interval(secs => spacing) AS spacing
            FROM unnest(%s::bigint[], %s::float8[]) AS w (subscription_id, spacing)) m
    JOIN delivery_pace p ON p.subscription_id = m.subscription_id
   WHERE p.last_at IS NULL OR p.last_at + m.spacing + {LATE} <= clock_timestamp()
      OR p.last_at + m.spacing <= clock_timestamp() AND NOT {LINES_WAIT}
   ORDER BY p.subscription_id FOR NO KEY UPDATE OF p SKIP LOCKED)
UPDATE delivery_pace p SET last_at = f.at
  FROM free f WHERE p.subscription_id = f.subscription_id RETURNING p.subscription_id
"""
"""The pace is the lines' as well: whoever has it locked is sending something.

A line that waits for its slot comes a moment after it. What is stored is not to wait for what may be lost, however much
there is of that: a slot is the lines' for as long as it can be taken, where they have something to send.
"""


def out_of_turn(destinations: Iterable[Destination]) -> set[int]:
    """Return those that may not be sent now, by subscription; the others have taken their turn, where there is one.

    One on trial is not sent this, and takes none: it would be its trial's.
    """
    spacings = {
        one.subscription_id: one.spacing for one in destinations if one.spacing is not None and not one.half_open
    }
    if not spacings:
        return set()
    return spacings.keys() - {taken for (taken,) in rows(TAKE, [[*spacings], [*spacings.values()]])}
