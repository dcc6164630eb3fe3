"""What a mailbox may hand out now: whoever takes it and whoever only looks for it say it in the same words."""

from delivery.lines.page_statements import LIVES
from delivery.rules.due_times import FIRST_SENTINEL


def available(limit: str) -> str:
    """Return SQL of the ids available of one fetchable subscription, at most `limit` of each sort.

    The sorts: never handed out or returned; handed out and timed out, without any job having seen to it; set aside by
    an earlier push, in either line, due or not: to wait before the next request is a rule of sending. Of each sort the
    oldest, but of what timed out whatever did so first. None is past its publisher's time to live. The subscription is
    `b`, with its `id` and its subscriber's `max_redeliveries`. Each sort follows an index of its own, however much
    there is.
    """
    return f"""
    (SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = b.id AND d.due_at IS NULL AND d.status = 'PENDING' AND {LIVES}
      ORDER BY d.id LIMIT {limit})
    UNION ALL
    (SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = b.id AND d.fetched_until <= (SELECT clock_timestamp()) AND NOT d.cancel_requested
        AND (b.max_redeliveries IS NULL OR d.fetches <= b.max_redeliveries) AND {LIVES}
      ORDER BY d.fetched_until, d.id LIMIT {limit})
    UNION ALL
    (SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = b.id AND d.due_at < {FIRST_SENTINEL} AND d.status = 'PENDING' AND {LIVES}
      ORDER BY d.id LIMIT {limit})"""


def in_flight(subscriber: str) -> str:
    """Return SQL that is true while a client holds any of the subscriber's messages, whatever their subscription."""
    return f"""EXISTS (
      SELECT FROM subscriptions_subscription o
       CROSS JOIN LATERAL (
         SELECT FROM delivery_open f
          WHERE f.subscription_id = o.id AND f.fetched_until > (SELECT clock_timestamp()) LIMIT 1) f
       WHERE o.subscriber_id = {subscriber})"""
