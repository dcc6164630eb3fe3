"""Messages that nobody has read for days (behaviour 9.6)."""

from typing import Final

from django.conf import settings

from broker_project.core.db import rows
from delivery.due_times_ import FIRST_SENTINEL, RETURNED
from delivery.mailbox.available import gone, walk

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
switched, paused, resumed or made ACTIVE; nothing ends while it could not be fetched, which is kept (behaviour 1.7).
What is sent again has as long as before. Nothing says beforehand when that will be, so the setting counts at once.
"""


def expire_unread() -> int:
    """End as EXPIRED a slice of what has waited in mailboxes for too long, never what is in flight; return how much."""
    ((ended,),) = rows(EXPIRE, {"days": settings.MAILBOX_DAYS})
    return int(ended)
