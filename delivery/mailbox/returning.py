"""Hand-outs that have timed out, and whose messages nobody may fetch again (behaviour 9.2, 9.7, 9.8).

All others stay as they are: what has timed out is available, without anybody having seen to it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.mailbox.available import BACK, OVERDUE, ends, walk

SLICE: Final = 1_000
"""Deliveries ended or returned in one statement."""
REACH: Final = 200
"""Of each subscription's hand-outs that have timed out, how many of the oldest and of the newest are looked at."""
STRETCH: Final = 500
"""Of all hand-outs, how many are looked at besides, one after the other, to come to those between."""


class Place(NamedTuple):
    """A place in the order of all hand-outs."""

    subscription_id: int = 0
    until: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    delivery_id: int = 0


START: Final = Place()


@dataclass
class Walk:
    """Along all hand-outs, and from the beginning again."""

    after: Place = START


walk_of_this_process: Final = Walk()


def _end_of_the_overdue(direction: str) -> str:
    return f"""
    (SELECT d.id, d.subscription_id, d.fetches, d.cancel_requested FROM delivery_open d
      WHERE d.subscription_id = o.id AND d.{OVERDUE}
      ORDER BY d.fetched_until {direction}, d.id {direction} LIMIT {REACH})"""


RETURN: Final = f"""
WITH RECURSIVE {walk("boxes", "fetched_until IS NOT NULL")},
along AS MATERIALIZED (
  SELECT d.id, d.subscription_id, d.fetched_until, d.fetches, d.cancel_requested FROM delivery_open d
   WHERE d.fetched_until IS NOT NULL
     AND (d.subscription_id, d.fetched_until, d.id) > (%(box)s::bigint, %(until)s::timestamptz, %(id)s::bigint)
   ORDER BY d.subscription_id, d.fetched_until, d.id LIMIT {STRETCH}),
owned AS MATERIALIZED (
  SELECT s.id, s.delivery_mode, u.max_redeliveries
    FROM boxes b
    JOIN subscriptions_subscription s ON s.id = b.id
    JOIN subscriptions_subscriber u ON u.id = s.subscriber_id),
overdue AS MATERIALIZED (
  SELECT DISTINCT d.id, o.delivery_mode, o.max_redeliveries
    FROM (SELECT d.* FROM owned o CROSS JOIN LATERAL ({_end_of_the_overdue("ASC")}
            UNION ALL {_end_of_the_overdue("DESC")}) d
           UNION ALL
          SELECT d.id, d.subscription_id, d.fetches, d.cancel_requested FROM along d WHERE d.{OVERDUE}) d
    JOIN owned o ON o.id = d.subscription_id
   WHERE o.delivery_mode = 'PUSH' OR {ends("d", "o.max_redeliveries")}
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
SELECT (SELECT count(*) FROM back), ARRAY(SELECT DISTINCT line_id FROM returned ORDER BY line_id), p.*
  FROM (SELECT) x LEFT JOIN LATERAL (
    SELECT subscription_id, fetched_until, id FROM along
     ORDER BY subscription_id, fetched_until, id OFFSET {STRETCH} - 1) p ON true
"""
"""What is cancelled or has used up its redeliveries ends; what is pushed by now goes back to its line.

Those that may be fetched, and that nobody fetches, stay where they are: the newest are looked at besides the oldest,
and a stretch of all, so that in time the walk comes to each of those between. Returns the last of that stretch, nulls
where it was the end of the walk.
"""


def return_overdue() -> int:
    """End or return, of what has timed out, a slice of what nobody may fetch; return how much."""
    box, until, delivery_id = walk_of_this_process.after
    arguments = {"uncertain": True, "box": box, "until": until, "id": delivery_id}
    ((number, line_ids, *last),) = rows(RETURN, arguments)
    walk_of_this_process.after = START if None in last else Place(*last)
    notify.wake(notify.TOPIC, line_ids)
    return int(number)
