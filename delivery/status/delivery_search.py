"""Find deliveries by subscription, status or line, a page at a time, and count dead letters (contract 5.3, 9.2)."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, LiteralString, TypeVar

from django.db.models import Q, QuerySet

from broker_project.core.db import rows
from delivery.filing import subscriptions_with
from delivery.models import OPEN_SHELF, Delivery, standing
from delivery.status.line_status import MAX_COUNTED
from delivery.statuses import DEAD, FINAL, UNFINISHED, DeliveryStatus, WaitsFor

Row = TypeVar("Row", bound=Delivery)
Finder = Callable[..., list[int]]
"""Finds ids along an index: those beyond `key`, None: from the end; `downwards` or not; at most `limit`."""

FEW: Final = 1_000
"""Up to this many of a subscription are sorted for a page; more are found often enough by walking all fetched ones."""
LARGEST_ID: Final = 2**63 - 1

REASONS: Final = tuple(sorted(map(str, DEAD)))
"""How deliveries end as dead letters; messages with an unknown destination are `DEAD_LETTERED`."""


def in_status(rows: QuerySet[Row], *statuses: str) -> QuerySet[Row]:
    """Return the rows that have one of these statuses now, from the partitions that can have any."""
    wanted = Q()
    for status in statuses:
        shelf = {"closed_on": OPEN_SHELF} if status in UNFINISHED else {"closed_on__lt": OPEN_SHELF}
        held = {"waits_for": WaitsFor.RELEASE} if status == DeliveryStatus.HELD else {}
        wanted |= standing(status) & Q(**shelf, **held)
    return rows.filter(wanted)


FETCHED_BY_CLIENTS: Final = """
SELECT d.id FROM subscriptions_subscription s CROSS JOIN LATERAL (
  SELECT d.id, d.fetched_until FROM delivery_open d
   WHERE d.subscription_id = s.id AND d.fetched_until > (SELECT clock_timestamp())
   ORDER BY d.fetched_until, d.id LIMIT %(limit)s) d
 WHERE s.subscriber_id = %(subscriber)s
 ORDER BY d.fetched_until, d.id LIMIT %(limit)s
"""
"""Of all subscriptions: one that was switched to PUSH may still have some."""

PUSHED: Final = """
SELECT DISTINCT d.id
  FROM delivery_line l JOIN delivery_pageread p ON p.line_id = ANY (ARRAY[l.id])
 CROSS JOIN LATERAL unnest(p.delivery_ids) AS r (id)
 CROSS JOIN LATERAL (SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
 WHERE l.lease_until IS NOT NULL AND d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AND d.id {before} %(key)s
   AND (%(subscriptions)s::bigint[] IS NULL OR d.subscription_id = ANY (%(subscriptions)s::bigint[]))"""
"""A delivery being sent is in a page of a line that is running, or in several: a turn may read it again."""


def _part(source: LiteralString, which: LiteralString) -> LiteralString:
    """Return SQL of the ids of a subscription `s` in one range of an index.

    In the order of an index that begins with the subscription, so that no other is used: otherwise the planner may walk
    along all ids until it has found enough of this subscription.
    """
    return f"""
(SELECT d.id FROM {source} d
  WHERE d.subscription_id >= s.id AND d.subscription_id <= s.id AND {which} AND d.id {{before}} %(key)s
  ORDER BY d.subscription_id {{direction}}, d.id {{direction}} LIMIT %(limit)s)"""


def _by_time(compared: LiteralString, never: LiteralString) -> LiteralString:
    """Return SQL of a subscription's fetched ones by their time: few by the index of times, many by the index of ids.

    So a page of timed-out ones is found even behind many that are not, and the other way round.

    The search by id compares COALESCE(time, `never`), with the same meaning, for the planner only: the plain comparison
    would match the index of times too, which looks as good while the queue was last seen empty, and sorts all it finds.
    """
    near: LiteralString = f"FROM delivery_open d WHERE d.subscription_id = s.id AND d.fetched_until {compared}"
    return f"""
(SELECT h.id FROM (SELECT count(*) > {FEW} AS are_many FROM (SELECT {near} LIMIT {FEW} + 1) f) c
  CROSS JOIN LATERAL (
   (SELECT f.id FROM (SELECT d.id {near} ORDER BY d.fetched_until, d.id LIMIT {FEW}) f
     WHERE NOT c.are_many AND f.id {{before}} %(key)s ORDER BY f.id {{direction}} LIMIT %(limit)s)
   UNION ALL{
        _part(
            "delivery_open",
            f"d.waits_for = 'RETURN' AND c.are_many AND COALESCE(d.fetched_until, '{never}') {compared}",
        )
    }) h)"""


TIMED_OUT: Final = _by_time("<= (SELECT clock_timestamp())", never="infinity")

ALL_IN_FLIGHT: Final = f"""
WITH RECURSIVE {subscriptions_with("boxes", "fetched_until IS NOT NULL")},
asked AS MATERIALIZED (
  SELECT unnest AS id FROM unnest(%(subscriptions)s::bigint[])
   UNION ALL
  SELECT id FROM boxes WHERE %(subscriptions)s::bigint[] IS NULL AND id IS NOT NULL)
SELECT id FROM (
  SELECT d.id FROM asked s CROSS JOIN LATERAL {_by_time("> (SELECT clock_timestamp())", never="-infinity")} d
  UNION ALL{PUSHED}) d
 ORDER BY id {{direction}} LIMIT %(limit)s
"""
"""The recursion does not start if subscriptions are given."""


def _open(waits_for: LiteralString) -> LiteralString:
    return _part("delivery_open", f"d.waits_for = '{waits_for}' AND d.closed_on = '9999-12-31' AND {{wanted}}")


HELD: Final = _open("RELEASE")
WAITING: Final = (_open("TURN"), _open("RETRY"), _open("START"), _open("SUBSCRIPTION"))
"""What is unfinished, not HELD and not fetched from a mailbox: one index range each. `{wanted}`: further conditions."""
FILED: Final = _part("delivery_delivery", "d.closed_on < '9999-12-31' AND {wanted}")
UNDELIVERED: Final = (
    _part("delivery_delivery", "d.closed_on < '9999-12-31' AND d.status <> 'DELIVERED' AND {wanted}"),
)
"""Finished otherwise than DELIVERED, in the words of the partial index."""

PARTS: Final[dict[str | None, Sequence[LiteralString]]] = {
    None: (*WAITING, HELD, FILED, _open("RETURN")),
    DeliveryStatus.PENDING: (*WAITING, TIMED_OUT),
    DeliveryStatus.HELD: (HELD,),
    DeliveryStatus.DELIVERED: (FILED,),
}
"""What covers a status, None for all; the others are `UNDELIVERED`, except IN_FLIGHT."""

OF_SUBSCRIPTIONS: Final = """
SELECT d.id FROM unnest(%(subscriptions)s::bigint[]) AS s (id) CROSS JOIN LATERAL (
  {parts}) d
 ORDER BY d.id {direction} LIMIT %(limit)s
"""
OF_EVENT_TYPE: Final = """
    (EXISTS (SELECT FROM subscriptions_subscription o WHERE o.id = s.id AND o.event_type_id = %(event_type)s)
     OR EXISTS (SELECT FROM delivery_message m WHERE m.id = d.message_id AND m.event_type_id = %(event_type)s))"""
"""A message names the event type of a pattern subscription's delivery."""

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


def fetched_by_clients(subscriber_id: int, *, limit: int) -> list[int]:
    """Return the ids of at most `limit` deliveries that a subscriber's clients have, the next to time out first."""
    found = rows(FETCHED_BY_CLIENTS, {"subscriber": subscriber_id, "limit": limit})
    return [delivery_id for (delivery_id,) in found]


def in_group(deliveries: QuerySet[Delivery], group_id: int) -> QuerySet[Delivery]:
    """Filter by QUEUE group: its id is that of its first delivery, whose message has them all."""
    for (message_id,) in Delivery.objects.filter(pk=group_id).values_list("message_id"):
        return deliveries.filter(message=message_id, group=group_id)
    return deliveries.none()


def in_flight(subscription_ids: Sequence[int] | None, *, key: int | None, downwards: bool, limit: int) -> list[int]:
    """Return the ids of deliveries in flight of these subscriptions, None for all, at most `limit`.

    Downwards the newest before `key`, upwards the oldest after it; without a key from the end.
    """
    asked = None if subscription_ids is None else [*subscription_ids]
    return _page(ALL_IN_FLIGHT, key, downwards, subscriptions=asked, limit=limit)


def in_retry_line(
    line_id: int, subscription_ids: Sequence[int], *, key: int | None, downwards: bool, limit: int
) -> list[int]:
    """Return the ids of the unfinished deliveries of these subscriptions in a retry line; paged as `in_flight`."""
    parts = " UNION ALL ".join((_open("RETRY"), HELD)).replace("{wanted}", "d.line_id = %(line)s")
    statement = OF_SUBSCRIPTIONS.replace("{parts}", parts)
    return _page(statement, key, downwards, subscriptions=[*subscription_ids], line=line_id, limit=limit)


def deliveries_of(
    subscription_ids: Sequence[int],
    status: str | None,
    *,
    key: int | None,
    downwards: bool,
    limit: int,
    event_type_id: int | None = None,
) -> list[int]:
    """Return the ids of deliveries of these subscriptions, of a status or event type if given; paged as `in_flight`."""
    if status == DeliveryStatus.IN_FLIGHT:
        return in_flight(subscription_ids, key=key, downwards=downwards, limit=limit)
    wanted = " AND ".join(
        [*(["d.status = %(status)s"] if status else ()), *([OF_EVENT_TYPE] if event_type_id else ()), "true"]
    )
    parts = " UNION ALL ".join(PARTS.get(status, UNDELIVERED))
    return _page(
        OF_SUBSCRIPTIONS.replace("{parts}", parts).replace("{wanted}", wanted),
        key,
        downwards,
        subscriptions=[*subscription_ids],
        status=status,
        event_type=event_type_id,
        limit=limit,
    )


def dead_letters(
    statuses: Sequence[str],
    subscription_ids: Sequence[int] | None,
    *,
    key: int | None,
    downwards: bool,
    limit: int,
    event_type_id: int | None = None,
) -> list[int]:
    """Return the ids of deliveries that ended so, of these subscriptions, None for all; paged as `in_flight`."""
    if subscription_ids is None:
        return _page(ALL_WITH_STATUS, key, downwards, statuses=[*statuses], limit=limit)
    find = partial(of_any_status, subscription_ids, statuses)
    return find(key=key, downwards=downwards, limit=limit, event_type_id=event_type_id)


def of_any_status(
    subscription_ids: Sequence[int], statuses: Sequence[str], *, downwards: bool, limit: int, **page: Any
) -> list[int]:
    """Return the ids of deliveries of these subscriptions in one of these statuses, paged as `deliveries_of`."""
    asked: Sequence[str | None] = _unfinished_first(statuses) or [None]
    pages = (deliveries_of(subscription_ids, one, downwards=downwards, limit=limit, **page) for one in asked)
    return _united(pages, downwards, limit)


def of_all(statuses: Sequence[str], *, key: int | None, downwards: bool, limit: int) -> list[int]:
    """Return the ids of all deliveries in one of these statuses, paged as `in_flight`: each status along an index."""
    by_index = [one for one in statuses if one in FINAL - {DeliveryStatus.DELIVERED}]

    def ids_in(status: str) -> Sequence[int]:
        if status == DeliveryStatus.IN_FLIGHT:
            return in_flight(None, key=key, downwards=downwards, limit=limit)
        beyond = {} if key is None else {"pk__lt" if downwards else "pk__gt": key}
        found = in_status(Delivery.objects.filter(**beyond), status).order_by("-pk" if downwards else "pk")
        return [*found.values_list("pk", flat=True)[:limit]]

    pages = [ids_in(one) for one in _unfinished_first(statuses) if one not in by_index]
    if by_index:
        pages.append(dead_letters(by_index, None, key=key, downwards=downwards, limit=limit))
    return _united(pages, downwards, limit)


def _unfinished_first(statuses: Sequence[str]) -> list[str]:
    """Sort statuses so that what ends between two statements is found by the later one."""
    return sorted(statuses, key=FINAL.__contains__)


def _united(pages: Iterable[Sequence[int]], downwards: bool, limit: int) -> list[int]:
    """Return the first ids of these pages, each once: what changed between two statements may be in both."""
    return sorted({*chain.from_iterable(pages)}, reverse=downwards)[:limit]


def finder_of(subscription_ids: Sequence[int] | None, statuses: Sequence[str]) -> Finder | None:
    """Return what finds deliveries of these subscriptions, None for all, in one of these statuses, if any are given.

    None: neither is given.
    """
    if subscription_ids is not None:
        return partial(of_any_status, subscription_ids, statuses)
    return partial(of_all, statuses) if statuses else None


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


def _page(statement: LiteralString, key: int | None, downwards: bool, **arguments: Any) -> list[int]:
    order: dict[str, LiteralString] = {"before": "<", "direction": "DESC"}
    if not downwards:
        order = {"before": ">", "direction": "ASC"}
    end = LARGEST_ID if downwards else 0
    found = rows(statement.format(**order), {**arguments, "key": end if key is None else key})
    return [delivery_id for (delivery_id,) in found]
