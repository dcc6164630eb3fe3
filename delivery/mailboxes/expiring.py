"""Messages that nobody has read for days (behaviour 9.6)."""

from typing import Final

from django.conf import settings

from delivery.mailboxes.endings import OVERDUE, gone, walk
from delivery.rules.due_times import FIRST_SENTINEL
from subscriptions.database import rows

SLICE: Final = 1_000
"""Deliveries ended in one statement."""
OF_EACH: Final = 100
"""Of each subscription, how many of the oldest are looked at: they are looked at every second, whoever is young."""

FRESH: Final = "due_at IS NULL"
ASIDE: Final = f"due_at < {FIRST_SENTINEL}"
IS_OLD: Final = """GREATEST(d.created_at, d.not_before)
         <= (SELECT clock_timestamp() - make_interval(days => %(days)s::int))"""


def _oldest(subscriptions: str, condition: str, order: str) -> str:
    return f"""
  SELECT d.id FROM {subscriptions} b
    JOIN subscriptions_subscription s ON s.id = b.id AND s.delivery_mode = 'PULL'
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open d
      WHERE d.subscription_id = s.id AND d.{condition} ORDER BY {order} LIMIT {OF_EACH}) d
   WHERE {IS_OLD}"""


EXPIRE: Final = f"""
WITH RECURSIVE {walk("fresh", FRESH)},{walk("aside", ASIDE)},{walk("fetched", "fetched_until IS NOT NULL")},
unread AS MATERIALIZED (
{_oldest("fresh", f"{FRESH} AND d.status = 'PENDING'", "d.id")}
   UNION ALL{_oldest("aside", f"{ASIDE} AND d.status = 'PENDING'", "d.id")}
   UNION ALL{_oldest("fetched", OVERDUE, "d.fetched_until, d.id")}
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
"""The days are counted from when the delivery was made, or became due: what is sent again has as long as before.

Nothing says beforehand when that will be, so the setting counts at once, and a switch changes nothing. What is HELD, or
not due yet, was never there to be read. Subscriptions that are paused or INACTIVE are no exception.
"""


def expire_unread() -> int:
    """End as EXPIRED a slice of what has waited in mailboxes for too long, never what is in flight; return how much."""
    ((ended,),) = rows(EXPIRE, {"days": settings.MAILBOX_DAYS})
    return int(ended)
