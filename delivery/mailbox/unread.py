"""Return hand-outs that timed out, expire messages that nobody reads, and purge a mailbox (contract 9.2, 9.6, 9.7)."""

from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Final, NamedTuple

from django.conf import settings

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.due_times import FIRST_SENTINEL, RETURNED
from delivery.mailbox.available import BACK, OVERDUE, ends, gone, walk
from delivery.operations import cancel_until

SLICE: Final = 1_000
"""Deliveries ended in one statement."""
OF_EACH: Final = 100
"""Of each subscription, how many of the oldest of each sort are looked at, once the very oldest has its days behind it.
"""
REACH: Final = 10_000
"""How many are passed over for them that were published long ago, and could not be read for so long, or are in flight.
"""

NOW: Final = "(SELECT clock_timestamp())"
CUTOFF: Final = "(SELECT clock_timestamp() - make_interval(days => %(days)s::int))"
FRESH: Final = "due_at IS NULL"
ASIDE: Final = f"due_at < {FIRST_SENTINEL}"

RETURN_SLICE: Final = 1_000
"""Deliveries ended or returned in one statement."""
RETURN_REACH: Final = 200
"""Of each subscription's hand-outs that have timed out, how many of the oldest and of the newest are looked at."""
STRETCH: Final = 500
"""Of all hand-outs, how many are looked at besides, one after the other, to come to those between."""

PULLED: Final = """
SELECT id FROM subscriptions_subscription WHERE subscriber_id = %s AND delivery_mode = 'PULL' ORDER BY id
"""


PURGE_SECONDS: Final = 5.0
"""As long as somebody waits for an answer or a page; there may be more then, and it is asked for again."""

READABLE: Final = f"""
readable AS MATERIALIZED (
  SELECT s.id, l.id AS line_id
    FROM (SELECT id FROM fresh UNION SELECT id FROM aside UNION SELECT id FROM fetched) w
    JOIN subscriptions_subscription s ON s.id = w.id AND s.is_fetchable
    JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
    JOIN delivery_line l ON l.subscriber_id = u.id AND l.lane = 'main'
   WHERE COALESCE({CUTOFF} >= GREATEST(
     (SELECT max(at) FROM subscriptions_statuschange WHERE subscriber_id = u.id AND subscription_id = s.id),
     (SELECT max(at) FROM subscriptions_statuschange WHERE subscriber_id = u.id AND subscription_id IS NULL)), true))"""
"""The subscriptions that could be read all the days, since they were made or last changed."""


def _oldest(condition: str, *, passed_over: str = "false") -> str:
    """Return SQL of the ids of one sort that nobody has read, along an index of that sort in order of id.

    What is created later has a greater id: those that are too young end the search, unlike what is passed over.
    """
    return f"""
  SELECT d.id
    FROM readable b
   CROSS JOIN LATERAL (
     SELECT d.id, d.created_at FROM delivery_open d
      WHERE d.subscription_id = b.id AND {condition} ORDER BY d.id LIMIT 1) f
   CROSS JOIN LATERAL (
     SELECT d.id, d.created_at FROM (
       SELECT d.id, d.created_at, d.not_before, d.fetched_until FROM delivery_open d
        WHERE d.subscription_id = b.id AND {condition} ORDER BY d.id LIMIT {REACH}) d
      WHERE d.created_at > {CUTOFF} OR NOT (COALESCE(d.not_before > {CUTOFF}, false) OR {passed_over})
      ORDER BY d.id LIMIT {OF_EACH}) d
   WHERE f.created_at <= {CUTOFF} AND d.created_at <= {CUTOFF}"""


EXPIRE: Final = f"""
WITH RECURSIVE {walk("fresh", FRESH)},{walk("aside", ASIDE)},{walk("fetched", "fetched_until IS NOT NULL")},
{READABLE},
unread AS MATERIALIZED (
{_oldest(f"d.{FRESH} AND d.status = 'PENDING'")}
   UNION ALL{_oldest(f"d.{ASIDE} AND d.status = 'PENDING'")}
   UNION ALL{_oldest(f"d.line_id = b.line_id AND d.due_at = {RETURNED}", passed_over=f"d.fetched_until > {NOW}")}
   LIMIT {SLICE}),
ended AS MATERIALIZED (
  SELECT d.id FROM (SELECT id FROM unread ORDER BY id) u CROSS JOIN LATERAL (
    SELECT o.id FROM delivery_open o
     WHERE o.id = u.id AND o.closed_on = '9999-12-31'
       AND (o.status = 'PENDING' OR o.fetched_until <= clock_timestamp())
     LIMIT 1 FOR UPDATE SKIP LOCKED) d),
{
    gone(
        "SELECT id FROM ended",
        status="'EXPIRED'",
        reason="'unread for ' || %(days)s::int || CASE %(days)s::int WHEN 1 THEN ' day' ELSE ' days' END",
    )
}
SELECT count(*) FROM gone
"""
"""Only the days count in which it could be read.

They begin when the delivery was made, became due or was released, and anew whenever its subscription or subscriber was
switched, paused, resumed or made ACTIVE; nothing ends while it could not be fetched, which is kept (contract 1.7).
What is sent again has as long as before. Nothing says beforehand when that will be, so the setting counts at once.
"""


def expire_unread() -> int:
    """End as EXPIRED a slice of what has waited in mailboxes for too long, never what is in flight; return how much."""
    ((ended,),) = rows(EXPIRE, {"days": settings.MAILBOX_DAYS})
    return int(ended)


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
      ORDER BY d.fetched_until {direction}, d.id {direction} LIMIT {RETURN_REACH})"""


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
   ORDER BY d.id LIMIT {RETURN_SLICE}),
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


class Purged(NamedTuple):
    """What purging did."""

    cancelled: int
    """Ended as CANCELLED."""
    in_flight: int
    """In flight, and newly asked to end so unless they are acknowledged."""
    is_complete: bool
    """Whether nothing that was there when it began is available any more; else it is to be asked for again."""


def purge(subscriber_id: int, *, seconds: float) -> Purged:
    """End as CANCELLED what the subscriber's mailbox has now, as much of it as `seconds` allow."""
    until = monotonic() + seconds
    cancelled = in_flight = 0
    for (subscription_id,) in rows(PULLED, [subscriber_id]):
        one = cancel_until(lambda: monotonic() >= until, subscription_id, reason="purged")
        cancelled, in_flight = cancelled + one.ended, in_flight + one.in_flight
        if not one.is_complete:
            return Purged(cancelled, in_flight, is_complete=False)
    return Purged(cancelled, in_flight, is_complete=True)
