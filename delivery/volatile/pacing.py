"""Rate limits of subscriptions hold for volatile messages too, which do not wait for their turn (behaviour 1.4)."""

from collections.abc import Iterable
from typing import Final

from delivery.webhooks.parts import Destination
from subscriptions.database import rows

TAKE: Final = """
WITH free AS MATERIALIZED (
  SELECT p.subscription_id
    FROM unnest(%s::bigint[], %s::float8[]) AS w (subscription_id, spacing) JOIN delivery_pace p USING (subscription_id)
   WHERE p.last_at IS NULL OR p.last_at + make_interval(secs => w.spacing) <= clock_timestamp()
   ORDER BY p.subscription_id FOR NO KEY UPDATE OF p SKIP LOCKED)
UPDATE delivery_pace p SET last_at = clock_timestamp()
  FROM free f WHERE p.subscription_id = f.subscription_id RETURNING p.subscription_id
"""
"""The pace is the lines' as well: whoever has it locked is sending something."""


def out_of_turn(destinations: Iterable[Destination]) -> set[int]:
    """Return those that may not be sent now, by subscription; the others have taken their turn, where there is one."""
    spacings = {one.subscription_id: one.spacing for one in destinations if one.spacing is not None}
    if not spacings:
        return set()
    return spacings.keys() - {taken for (taken,) in rows(TAKE, [[*spacings], [*spacings.values()]])}
