"""Which deliveries a replay is of: counted before it begins, and met one after the other (behaviour 5.8)."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from django.utils.dateparse import parse_datetime

from delivery.again.lining_up import Old
from subscriptions.database import rows

WANTED: Final = """
       d.finished_at <= %(until)s::timestamptz AND d.created_at >= %(begin)s::timestamptz
       AND d.created_at < %(end)s::timestamptz
       AND (%(event_type)s::bigint IS NULL
            OR EXISTS (SELECT FROM subscriptions_subscription o
                        WHERE o.id = d.subscription_id AND o.event_type_id = %(event_type)s)
            OR EXISTS (SELECT FROM delivery_message m
                        WHERE m.id = d.message_id AND m.event_type_id = %(event_type)s))"""
"""Of a subscription to a pattern, the message says of which event type it is."""

PART: Final = """
(SELECT d.* FROM delivery_delivery d
  WHERE d.subscription_id >= s.id AND d.subscription_id <= s.id AND d.status = t.status AND {only}
    AND d.closed_on < '9999-12-31' AND d.id > %(cursor)s
  ORDER BY d.subscription_id, d.status, d.id LIMIT %(limit)s)"""
"""In the order of an index that begins with the subscription: as lists of deliveries find them."""

DELIVERED: Final = "t.status = 'DELIVERED' AND d.status = 'DELIVERED'"
OTHERWISE: Final = "t.status <> 'DELIVERED' AND d.status <> 'DELIVERED'"

NEXT: Final = f"""
SELECT d.id, d.message_id, d.subscription_id, d.group_id, {WANTED},
       d.group_id IS NOT NULL AND (
         EXISTS (SELECT FROM delivery_queuegroup g WHERE g.id = d.group_id)
         OR d.status <> 'DELIVERED' AND EXISTS (
           SELECT FROM delivery_delivery o
            WHERE o.message_id = d.message_id AND o.group_id = d.group_id
              AND (o.status = 'DELIVERED' OR o.id < d.id AND o.status = ANY(%(statuses)s::text[])
                                             AND o.subscription_id = ANY(%(subscriptions)s::bigint[]))))
  FROM (SELECT x.* FROM unnest(%(subscriptions)s::bigint[]) AS s (id)
         CROSS JOIN unnest(%(statuses)s::text[]) AS t (status)
         CROSS JOIN LATERAL ({PART.format(only=OTHERWISE)} UNION ALL {PART.format(only=DELIVERED)}) x
         ORDER BY x.id LIMIT %(limit)s) d
 ORDER BY d.id
"""
"""Along all that have the status, wanted or not: so a slice never reads more, however rare they are."""

DAYS: Final = "SELECT day FROM delivery_storageday WHERE dropped_at IS NULL ORDER BY day"
COUNT: Final = f"""
SELECT d.status, count(*) FROM delivery_delivery d
 WHERE d.closed_on = %(day)s::date AND d.subscription_id = ANY(%(subscriptions)s::bigint[])
   AND d.status = ANY(%(statuses)s::text[]) AND {WANTED}
 GROUP BY d.status
"""
"""A day at a time: no statement takes longer than that."""

EVER: Final = (dt.datetime(1, 1, 2, tzinfo=dt.UTC), dt.datetime(9999, 12, 30, tzinfo=dt.UTC))


@dataclass(frozen=True, slots=True)
class Selection:
    """What a replay is of, resolved to ids."""

    subscriber_id: int
    subscription_ids: Sequence[int]
    statuses: Sequence[str]
    event_type_id: int | None = None
    begin: dt.datetime | None = None
    """Made then or later."""
    end: dt.datetime | None = None
    """Made before."""

    def kept(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {
            "subscriber": self.subscriber_id,
            "subscriptions": [*self.subscription_ids],
            "statuses": [*self.statuses],
            "event_type": self.event_type_id,
            "from": self.begin and self.begin.isoformat(),
            "to": self.end and self.end.isoformat(),
        }

    @classmethod
    def of(cls, kept: dict[str, Any]) -> Self:
        """Return what was stored."""
        begin, end = (parse_datetime(kept[name]) if kept[name] else None for name in ("from", "to"))
        return cls(kept["subscriber"], kept["subscriptions"], kept["statuses"], kept["event_type"], begin, end)

    def arguments(self, until: dt.datetime) -> dict[str, Any]:
        """Return what the statements ask by."""
        return {
            "subscriptions": [*self.subscription_ids],
            "statuses": [*self.statuses],
            "event_type": self.event_type_id,
            "begin": self.begin or EVER[0],
            "end": self.end or EVER[1],
            "until": until,
        }


class Met(NamedTuple):
    """One delivery on the way of a replay."""

    old: Old
    is_wanted: bool
    is_anothers: bool
    """Whether its QUEUE group is still open, another of it has taken the message, or is made again in its place."""


def counted(selection: Selection, until: dt.datetime) -> dict[str, int]:
    """Return how many of each status there are that had ended by then; of a status without any, nothing."""
    found: Counter[str] = Counter()
    for (day,) in rows(DAYS):
        found.update(dict(rows(COUNT, {**selection.arguments(until), "day": day})))
    return dict(found)


def next_of(selection: Selection, until: dt.datetime, *, cursor: int, limit: int) -> list[Met]:
    """Return the next deliveries after `cursor`, by id, wanted or not; fewer than `limit`: there are no more."""
    found = rows(NEXT, {**selection.arguments(until), "cursor": cursor, "limit": limit})
    return [Met(Old(*old), is_wanted, is_anothers) for *old, is_wanted, is_anothers in found]
