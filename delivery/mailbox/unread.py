"""Return fetched messages that timed out, expire unread messages, and purge a mailbox (contract 9.2, 9.6, 9.7)."""

from datetime import UTC, datetime
from time import monotonic
from typing import Final

from django.conf import settings

from broker_project.core.db import rows
from delivery.believed_clock import BELIEVED_CLOCK
from delivery.dispatch import notify
from delivery.dispatch.turn_floors import FLOOR
from delivery.filing import subscriptions_with
from delivery.mailbox.available import END_OR_RETURN, close, is_exhausted
from delivery.operations import Cancelled, cancel_deliveries_of
from subscriptions.models import DeliveryMode, Subscription

EXPIRE_BATCH: Final = 1_000
"""Deliveries ended in one statement."""
EXPIRE_PER_KIND: Final = 100
"""Oldest deliveries of each kind and subscription that are looked at, if the very oldest is old enough."""
MAX_SKIPPED: Final = 10_000
"""Old deliveries skipped to find them, which are in flight or could not be read for long enough."""

OVERDUE: Final = "d.fetched_until <= (SELECT clock_timestamp())"

RETURN_BATCH: Final = 1_000
"""Deliveries ended or returned in one statement."""
RETURN_PER_END: Final = 200
"""Timed-out deliveries of each subscription that are looked at, from the oldest and from the newest on."""
WALK_STEP: Final = 500
"""Further fetched deliveries that each run looks at, one run after the other, to reach those in between."""

MAILBOXES: Final = """
boxes AS MATERIALIZED (
  SELECT s.id, n.days, %(now)s::timestamptz - make_interval(days => n.days) AS cutoff
    FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   CROSS JOIN LATERAL (SELECT COALESCE(u.mailbox_days, %(days)s::int) AS days) n
   WHERE s.delivery_mode = 'PULL')"""
"""The subscriptions whose messages are fetched, with what is too old for them."""


def _oldest(condition: str, *, skipped: str = "false") -> str:
    """Return SQL of the unread ids of one kind, along an index of that kind in order of id.

    Later deliveries have greater ids: the first that is too young ends the search, while `skipped` ones do not.
    """
    return f"""
  SELECT d.id
    FROM boxes b
   CROSS JOIN LATERAL (
     SELECT d.id, d.created_at FROM delivery_open d
      WHERE d.subscription_id = b.id AND {condition} ORDER BY d.id LIMIT 1) f
   CROSS JOIN LATERAL (
     SELECT d.id, d.created_at FROM (
       SELECT d.id, d.created_at, d.not_before, d.fetched_until FROM delivery_open d
        WHERE d.subscription_id = b.id AND {condition} ORDER BY d.id LIMIT {MAX_SKIPPED}) d
      WHERE d.created_at > b.cutoff OR NOT (COALESCE(d.not_before > b.cutoff, false) OR {skipped})
      ORDER BY d.id LIMIT {EXPIRE_PER_KIND}) d
   WHERE f.created_at <= b.cutoff AND d.created_at <= b.cutoff"""


EXPIRE: Final = f"""
WITH {MAILBOXES},
unread AS MATERIALIZED (
{_oldest(f"d.waits_for = 'TURN' AND d.status = 'PENDING' AND d.id >= {FLOOR.format('b.id')}")}
   UNION ALL{_oldest("d.waits_for = 'RETRY' AND d.status = 'PENDING'")}
   UNION ALL{_oldest("d.waits_for = 'RETURN'", skipped="d.fetched_until > (SELECT clock_timestamp())")}
   LIMIT {EXPIRE_BATCH}),
ended AS MATERIALIZED (
  SELECT d.id FROM (SELECT id FROM unread ORDER BY id) u CROSS JOIN LATERAL (
    SELECT o.id FROM delivery_open o
     WHERE o.id = u.id AND o.closed_on = '9999-12-31'
       AND (o.status = 'PENDING' OR o.fetched_until <= clock_timestamp())
     LIMIT 1 FOR UPDATE SKIP LOCKED) d),
{
    close(
        "SELECT id FROM ended",
        status="'EXPIRED'",
        reason="(SELECT 'unread for ' || days || CASE days WHEN 1 THEN ' day' ELSE ' days' END FROM boxes"
        " WHERE id = d.subscription_id)",
    )
}
SELECT count(*) FROM gone
"""
"""The days begin when a delivery was created, became due or was released, and go on while it cannot be fetched.

The expiry is not stored, so changed days count at once, of the setting and of a subscriber.
"""


def expire_unread() -> int:
    """End a batch of deliveries that waited in mailboxes too long as EXPIRED, none in flight; return their number."""
    ((ended,),) = rows(EXPIRE, {"days": settings.MAILBOX_DAYS, "now": BELIEVED_CLOCK.now()})
    return int(ended)


ARE_FETCHED: Final = """
  (SELECT subscription_id FROM delivery_open WHERE fetched_until IS NOT NULL ORDER BY subscription_id LIMIT 1)
    IS NOT NULL"""

WALK_START: Final = (0, datetime(1970, 1, 1, tzinfo=UTC), 0)
walk_positions: Final = {"next": WALK_START}
"""Where the next walk of this process continues, in the order of all fetched deliveries: subscription, time-out, id."""


BELIEVED_LIMIT: Final = "CASE WHEN d.fetched_until <= %(now)s::timestamptz THEN {}.max_redeliveries END"
"""No limit for what has timed out only by a clock that is not believed: its client may still acknowledge it."""


def _overdue_from(direction: str) -> str:
    return f"""
    (SELECT d.id, d.fetched_until, d.fetches, d.cancel_requested FROM delivery_open d
      WHERE d.subscription_id = o.id AND {OVERDUE}
      ORDER BY d.fetched_until {direction}, d.id {direction} LIMIT {RETURN_PER_END})"""


RETURN: Final = f"""
WITH RECURSIVE {subscriptions_with("boxes", "fetched_until IS NOT NULL")},
along AS MATERIALIZED (
  SELECT d.id, d.subscription_id, d.fetched_until, d.fetches, d.cancel_requested FROM delivery_open d
   WHERE d.fetched_until IS NOT NULL
     AND (d.subscription_id, d.fetched_until, d.id) > (%(box)s::bigint, %(until)s::timestamptz, %(id)s::bigint)
   ORDER BY d.subscription_id, d.fetched_until, d.id LIMIT {WALK_STEP}),
owned AS MATERIALIZED (
  SELECT s.id, s.delivery_mode, u.max_redeliveries
    FROM boxes b
    JOIN subscriptions_subscription s ON s.id = b.id
    JOIN subscriptions_subscriber u ON u.id = s.subscriber_id),
overdue AS MATERIALIZED (
  SELECT DISTINCT d.id, d.delivery_mode, d.max_redeliveries
    FROM (SELECT d.*, o.delivery_mode, o.max_redeliveries FROM owned o CROSS JOIN LATERAL ({_overdue_from("ASC")}
            UNION ALL {_overdue_from("DESC")}) d
           UNION ALL
          SELECT d.id, d.fetched_until, d.fetches, d.cancel_requested, o.delivery_mode, o.max_redeliveries
            FROM along d JOIN owned o ON o.id = d.subscription_id WHERE {OVERDUE}) d
   WHERE d.delivery_mode = 'PUSH' OR {is_exhausted("d", BELIEVED_LIMIT.format("d"))}
   ORDER BY d.id LIMIT {RETURN_BATCH}),
back AS MATERIALIZED (
  SELECT d.id, {is_exhausted("d", BELIEVED_LIMIT.format("o"))} AS ends
    FROM (SELECT * FROM overdue ORDER BY id) o
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open d
      WHERE d.id = o.id AND d.closed_on = '9999-12-31' AND d.fetched_until <= clock_timestamp()
      LIMIT 1 FOR UPDATE SKIP LOCKED) d
   WHERE o.delivery_mode = 'PUSH' OR {is_exhausted("d", BELIEVED_LIMIT.format("o"))}),
{END_OR_RETURN}
SELECT (SELECT count(*) FROM back), ARRAY(SELECT DISTINCT line_id FROM returned ORDER BY line_id), p.*
  FROM (SELECT) x LEFT JOIN LATERAL (
    SELECT subscription_id, fetched_until, id FROM along
     ORDER BY subscription_id, fetched_until, id OFFSET {WALK_STEP} - 1) p ON true
"""
"""Ends deliveries that are cancelled or have used up their redeliveries; returns those of PUSH subscriptions to lines.

The others stay available, so there may be any number: it looks at the oldest and the newest of each subscription, and
walks along all in steps, so in time it reaches each of those in between. Returns the last position of that step, nulls
at the end of the walk.
"""


def return_overdue() -> int:
    """End or return a batch of timed-out deliveries that no client may fetch; return their number."""
    box, until, delivery_id = walk_positions["next"]
    arguments = {"uncertain": True, "box": box, "until": until, "id": delivery_id, "now": BELIEVED_CLOCK.now()}
    ((number, line_ids, *last),) = rows(RETURN, arguments)
    walk_positions["next"] = WALK_START if None in last else (*last,)
    notify.wake(notify.TOPIC, line_ids)
    return int(number)


def purge(subscriber_id: int, *, seconds: float) -> Cancelled:
    """End the deliveries in the subscriber's mailbox as CANCELLED, as many as `seconds` allow."""
    until = monotonic() + seconds
    ended = in_flight = 0
    its = Subscription.objects.filter(subscriber=subscriber_id, delivery_mode=DeliveryMode.PULL).order_by("pk")
    for subscription_id in its.values_list("pk", flat=True):
        done = cancel_deliveries_of(subscription_id, reason="purged", seconds=until - monotonic())
        ended, in_flight = ended + done.ended, in_flight + done.in_flight
        if not done.is_complete:
            return Cancelled(ended, in_flight, is_complete=False)
    return Cancelled(ended, in_flight, is_complete=True)
