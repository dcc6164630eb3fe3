"""Find deliveries by subscription and status, and dead letters by how they ended (contract 5.3)."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from django.db.models import QuerySet

from broker_project.core.db import rows
from delivery.due_times import ACTIVE, DUE_LATER, FIRST_SENTINEL, RELEASED
from delivery.models import Delivery
from delivery.status.in_flight import HANDED_OUT, LARGEST_ID, TIMED_OUT, in_flight
from delivery.status.line_status import MAX_COUNTED
from delivery.statuses import DEAD, UNFINISHED, DeliveryStatus

OF_SUBSCRIPTIONS: Final = """
SELECT d.id FROM unnest(%(subscriptions)s::bigint[]) AS s (id) CROSS JOIN LATERAL (
  {parts}) d
 ORDER BY d.id {direction} LIMIT %(limit)s
"""


WITH_STATUS: Final = "d.status = %(status)s"
OF_EVENT_TYPE: Final = """
    (EXISTS (SELECT FROM subscriptions_subscription o WHERE o.id = s.id AND o.event_type_id = %(event_type)s)
     OR EXISTS (SELECT FROM delivery_message m WHERE m.id = d.message_id AND m.event_type_id = %(event_type)s))"""
"""A message names the event type of a pattern subscription's delivery."""
FRESH: Final = ("delivery_open", "d.due_at IS NULL AND d.closed_on = '9999-12-31'")
ASIDE: Final = ("delivery_open", f"d.due_at < {FIRST_SENTINEL} AND d.closed_on = '9999-12-31'")
DELAYED: Final = ("delivery_open", f"d.due_at = {DUE_LATER} AND d.closed_on = '9999-12-31'")
PARKED: Final = ("delivery_open", f"d.due_at = {ACTIVE} AND d.closed_on = '9999-12-31'")
HELD: Final = ("delivery_open", f"d.due_at = {RELEASED} AND d.closed_on = '9999-12-31'")
WAITING: Final = [FRESH, ASIDE, DELAYED, PARKED]
"""What is unfinished, not HELD and not handed out: one index range each."""
FILED: Final = ("delivery_delivery", "d.closed_on < '9999-12-31'")
FILED_OTHERWISE: Final = ("delivery_delivery", "d.closed_on < '9999-12-31' AND d.status <> 'DELIVERED'")
"""In the words of the partial index."""

REASONS: Final = tuple(sorted(map(str, DEAD)))
"""How deliveries end as dead letters; messages with an unknown destination are `DEAD_LETTERED`."""

PART: Final = """
(SELECT d.id FROM {source} d
  WHERE d.subscription_id >= s.id AND d.subscription_id <= s.id AND {shelf}
    AND d.id {before} %(key)s
  ORDER BY d.subscription_id {direction}, d.id {direction} LIMIT %(limit)s)
"""
"""In the order of an index that begins with the subscription, so that no other is used.

Otherwise the planner may walk along all ids until it has found enough of this subscription.
"""


APART: Final = """
SELECT d.id FROM unnest(%(subscriptions)s::bigint[]) AS s (id) CROSS JOIN LATERAL (
  SELECT d.id, d.due_at FROM delivery_open d
   WHERE d.subscription_id = s.id AND d.line_id = %(line)s AND d.due_at IS NOT NULL
   ORDER BY d.due_at, d.id LIMIT %(limit)s) d
 ORDER BY d.due_at, d.id LIMIT %(limit)s
"""


def in_group(deliveries: QuerySet[Delivery], group_id: int) -> QuerySet[Delivery]:
    """Filter by QUEUE group: its id is that of its first delivery, whose message has them all."""
    for (message_id,) in Delivery.objects.filter(pk=group_id).values_list("message_id"):
        return deliveries.filter(message=message_id, group=group_id)
    return deliveries.none()


def waiting_in_retry_line(line_id: int, subscription_ids: Sequence[int], *, limit: int) -> list[int]:
    """Return the ids of at most `limit` deliveries that wait in a retry line, the next due first."""
    arguments = {"line": line_id, "subscriptions": [*subscription_ids], "limit": limit}
    return [delivery_id for (delivery_id,) in rows(APART, arguments)]


def deliveries_of(
    subscription_ids: Sequence[int],
    status: str | None,
    *,
    key: int | None,
    downwards: bool,
    limit: int,
    event_type_id: int | None = None,
) -> list[int]:
    """Return the ids of deliveries of these subscriptions, at most `limit`, of a status or event type if given.

    Downwards the newest before `key`, upwards the oldest after it; without a key from the end.
    """
    if status == DeliveryStatus.IN_FLIGHT:
        return in_flight(subscription_ids, key=key, downwards=downwards, limit=limit)
    order = {"before": "<", "direction": "DESC"} if downwards else {"before": ">", "direction": "ASC"}
    end = LARGEST_ID if downwards else 0
    parts = _parts(status, order, OF_EVENT_TYPE if event_type_id else "true")
    arguments = {
        "subscriptions": [*subscription_ids],
        "status": status,
        "event_type": event_type_id,
        "key": end if key is None else key,
        "limit": limit,
    }
    statement = OF_SUBSCRIPTIONS.format(parts=" UNION ALL ".join(parts), **order)
    return [delivery_id for (delivery_id,) in rows(statement, arguments)]


def _parts(status: str | None, order: dict[str, str], wanted: str) -> list[str]:
    """Return the SQL parts, each along an index of its own, that cover that status."""
    wanted = f"{WITH_STATUS} AND {wanted}" if status else wanted
    parts = [PART.format(source=source, shelf=f"{shelf} AND {wanted}", **order) for source, shelf in _shelves(status)]
    if status is None:
        parts.append(HANDED_OUT.format(**order))
    if status == DeliveryStatus.PENDING:
        parts.append(TIMED_OUT.format(**order))
    return parts


def _shelves(status: str | None) -> list[tuple[str, str]]:
    if status is None:
        return [*WAITING, HELD, FILED]
    if status == DeliveryStatus.HELD:
        return [HELD]
    if status in UNFINISHED:
        return WAITING
    return [FILED if status == DeliveryStatus.DELIVERED else FILED_OTHERWISE]


ALL_WITH_STATUS: Final = """
SELECT d.id FROM unnest(%(statuses)s::text[]) AS s (status) CROSS JOIN LATERAL (
  SELECT d.id FROM delivery_delivery d
   WHERE d.status >= s.status AND d.status <= s.status AND d.status <> 'DELIVERED' AND d.closed_on < '9999-12-31'
     AND d.id {before} %(key)s
   ORDER BY d.status {direction}, d.id {direction} LIMIT %(limit)s) d
 ORDER BY d.id {direction} LIMIT %(limit)s
"""
"""Along the index of what is not DELIVERED, each status by itself, so that no other index is used."""
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
    """Return the ids of deliveries that ended so, of these subscriptions, None for all; at most `limit`.

    Downwards the newest before `key`, upwards the oldest after it; without a key from the end.
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
    return [delivery_id for (delivery_id,) in rows(ALL_WITH_STATUS.format(**order), arguments)]


def counts_of(subscription_ids: Sequence[int] | None) -> dict[str, int]:
    """Return the number by how they ended, counted to `MAX_COUNTED`, of these subscriptions, None for all.

    For all, messages with an unknown destination are counted too.
    """
    if subscription_ids is None:
        return dict(rows(COUNTS, {"statuses": [*REASONS], "most": MAX_COUNTED}))
    return {
        status: len(deliveries_of(subscription_ids, status, key=None, downwards=True, limit=MAX_COUNTED))
        for status in REASONS
    }
