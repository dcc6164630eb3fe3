"""What came to nothing, by how it ended, however much there is that came to something (behaviour 5.3)."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from broker_project.core.db import rows
from delivery.status.dead_letters import deliveries_of
from delivery.status.in_flight import LARGEST_ID
from delivery.status.line_status import COUNTED_AT_MOST
from delivery.statuses import DEAD

REASONS: Final = tuple(sorted(map(str, DEAD)))
"""How a delivery may have ended; beside these there are messages to nobody, whose outcome is `DEAD_LETTERED`."""

WITH_STATUS: Final = """
SELECT d.id FROM unnest(%(statuses)s::text[]) AS s (status) CROSS JOIN LATERAL (
  SELECT d.id FROM delivery_delivery d
   WHERE d.status >= s.status AND d.status <= s.status AND d.status <> 'DELIVERED' AND d.closed_on < '9999-12-31'
     AND d.id {before} %(key)s
   ORDER BY d.status {direction}, d.id {direction} LIMIT %(limit)s) d
 ORDER BY d.id {direction} LIMIT %(limit)s
"""
"""Along the index of what did not end as DELIVERED, said so that no other will do, each status for itself."""
COUNTS: Final = """
SELECT s.status, (SELECT count(*) FROM (
         SELECT FROM delivery_delivery d
          WHERE d.status = s.status AND d.status <> 'DELIVERED' AND d.closed_on < '9999-12-31' LIMIT %(most)s) c)
  FROM unnest(%(statuses)s::text[]) AS s (status)
UNION ALL
SELECT 'DEAD_LETTERED', (SELECT count(*) FROM (
         SELECT FROM delivery_message m WHERE m.outcome = 'DEAD_LETTERED' LIMIT %(most)s) c)
"""


def dead_letters(
    statuses: Sequence[str],
    subscription_ids: Sequence[int] | None,
    *,
    key: int | None,
    downwards: bool,
    limit: int,
    event_type_id: int | None = None,
) -> list[int]:
    """Return the ids of deliveries that ended so, of these subscriptions, or of all; or of theirs of one event type.

    As many as `limit`, the newest before `key` first; or, upwards, the oldest after it. None: from the end.
    """
    if subscription_ids is None:
        return _of_all(statuses, key=key, downwards=downwards, limit=limit)
    find = partial(
        deliveries_of, subscription_ids, key=key, downwards=downwards, limit=limit, event_type_id=event_type_id
    )
    found = [delivery_id for status in statuses for delivery_id in find(status)]
    return sorted(found, reverse=downwards)[:limit]


def _of_all(statuses: Sequence[str], *, key: int | None, downwards: bool, limit: int) -> list[int]:
    order = {"before": "<", "direction": "DESC"} if downwards else {"before": ">", "direction": "ASC"}
    end = LARGEST_ID if downwards else 0
    arguments = {"statuses": [*statuses], "key": end if key is None else key, "limit": limit}
    return [delivery_id for (delivery_id,) in rows(WITH_STATUS.format(**order), arguments)]


def counts_of(subscription_ids: Sequence[int] | None) -> dict[str, int]:
    """Return how many there are by how they ended, counted to `COUNTED_AT_MOST`: of these subscriptions, or of all.

    Of all, messages to a destination that nobody is are counted too.
    """
    if subscription_ids is None:
        return dict(rows(COUNTS, {"statuses": [*REASONS], "most": COUNTED_AT_MOST}))
    return {
        status: len(deliveries_of(subscription_ids, status, key=None, downwards=True, limit=COUNTED_AT_MOST))
        for status in REASONS
    }
