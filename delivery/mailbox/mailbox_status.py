"""The status of mailboxes (contract 9.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broker_project.core.db import rows
from delivery.mailbox.available import TIMED_OUT, available

MAX_COUNTED: Final = 10_000
"""Largest count: a million messages must cost no more."""


@dataclass(frozen=True, slots=True)
class MailboxStatus:
    """The status of a mailbox, each number counted to `MAX_COUNTED`."""

    available: int
    """Never fetched, returned, timed out, or deferred by an earlier push."""
    in_flight: int
    waiting: int
    """HELD, delayed, or of subscriptions that are paused or INACTIVE."""
    redelivered: int
    """Unfinished, and fetched more than once, or returned."""
    expired: int
    """EXPIRED deliveries that are still stored."""
    oldest_published_at: datetime | None
    """When the oldest available message was published."""
    oldest_age_seconds: float | None
    subscriptions: int
    """Its PULL subscriptions."""
    fetchable_subscriptions: int
    """Those whose messages can be fetched: ACTIVE, as their subscriber is, and not paused."""


def _counted(which: str) -> str:
    return f"(SELECT count(*) FROM (SELECT FROM own s CROSS JOIN LATERAL ({which}) d LIMIT {MAX_COUNTED}) d)"


def _open(condition: str, order: str) -> str:
    """Return SQL of a subscription's open deliveries that meet `condition`, along an index in that order."""
    return f"""
      SELECT d.fetches FROM delivery_open d
       WHERE d.subscription_id = s.id AND {condition} ORDER BY {order} LIMIT {MAX_COUNTED}"""


def _available(fetchable: str) -> str:
    """Return SQL of the available ids of subscriptions that are fetchable, or of the others."""
    return f"""
    SELECT d.id FROM (SELECT * FROM own WHERE delivery_mode = 'PULL' AND {fetchable}) b
     CROSS JOIN LATERAL ({available(str(MAX_COUNTED))}) d LIMIT {MAX_COUNTED}"""


IN_FLIGHT: Final = _open("d.fetched_until > (SELECT clock_timestamp())", "d.fetched_until, d.id")
LATE: Final = _open("d.fetched_until <= (SELECT clock_timestamp())", "d.fetched_until, d.id")
BACK: Final = _open("d.fetches > 0 AND d.waits_for = 'TURN'", "d.id")
LATER: Final = _open("d.waits_for IN ('RELEASE', 'START') AND s.delivery_mode = 'PULL'", "d.waits_for, d.id")
EXPIRED: Final = """
      SELECT FROM delivery_delivery d
       WHERE d.subscription_id = s.id AND d.status = 'EXPIRED' AND d.closed_on < '9999-12-31'
         AND s.delivery_mode = 'PULL'"""
REDELIVERED: Final = f"""
      SELECT FROM ({IN_FLIGHT}) d WHERE d.fetches > 1 UNION ALL SELECT FROM ({LATE}) d UNION ALL
      SELECT FROM ({BACK}) d WHERE s.delivery_mode = 'PULL'"""

OLDEST: Final = f"""
    SELECT min(d.id) FROM (SELECT * FROM own WHERE delivery_mode = 'PULL' AND is_fetchable) b CROSS JOIN LATERAL (
      {available("1", timed_out_limit=str(MAX_COUNTED))}
      UNION ALL
      (SELECT d.id FROM (
         SELECT d.* FROM delivery_open d
          WHERE d.subscription_id = b.id AND d.waits_for = 'RETURN' ORDER BY d.id LIMIT {MAX_COUNTED}) d
        WHERE {TIMED_OUT} ORDER BY d.id LIMIT 1)) d"""
"""The first of each kind; of timed-out ones the oldest among the first to time out and the first fetched.

A younger one may be taken for it only if more have timed out than are counted, behind more that have not.
"""

MAILBOX_STATUS: Final = f"""
SELECT w.id, m.available, m.in_flight, LEAST(m.later + m.elsewhere, {MAX_COUNTED}), m.redelivered, m.expired,
       o.published_at, extract(epoch FROM clock_timestamp() - o.published_at)::float8,
       m.subscriptions, m.fetchable_subscriptions
  FROM unnest(%s::bigint[]) AS w (id)
 CROSS JOIN LATERAL (
  WITH own AS MATERIALIZED (
    SELECT s.id, s.subscriber_id, s.delivery_mode, s.is_fetchable AND u.status = 'ACTIVE' AS is_fetchable,
           u.max_redeliveries
      FROM subscriptions_subscriber u JOIN subscriptions_subscription s ON s.subscriber_id = u.id
     WHERE u.id = w.id),
  there AS MATERIALIZED ({_available("is_fetchable")})
  SELECT (SELECT count(*) FROM there) AS available, ({OLDEST}) AS oldest_id,
         {_counted(IN_FLIGHT)} AS in_flight, {_counted(LATER)} AS later,
         (SELECT count(*) FROM ({_available("NOT is_fetchable")}) d) AS elsewhere,
         {_counted(REDELIVERED)} AS redelivered, {_counted(EXPIRED)} AS expired,
         (SELECT count(*) FROM own WHERE delivery_mode = 'PULL') AS subscriptions,
         (SELECT count(*) FROM own WHERE is_fetchable) AS fetchable_subscriptions) m
  LEFT JOIN LATERAL (
    SELECT COALESCE((SELECT published_at FROM delivery_message WHERE id = d.message_id LIMIT 1), d.created_at)
             AS published_at
      FROM delivery_open d WHERE d.id = m.oldest_id AND d.closed_on = '9999-12-31' LIMIT 1) o ON true
"""
"""Messages in flight count even if their subscription is PUSH by now: they are acknowledged here."""


def mailboxes_of(subscriber_ids: Sequence[int]) -> dict[int, MailboxStatus]:
    """Return the status of each subscriber's mailbox; it is empty without PULL subscriptions."""
    return {
        subscriber_id: MailboxStatus(*columns) for subscriber_id, *columns in rows(MAILBOX_STATUS, [subscriber_ids])
    }
