"""What a mailbox may hand out now: whoever takes it and whoever only looks for it say it in the same words."""

from typing import Final

from delivery.due_times_ import FIRST_SENTINEL
from delivery.worker.page_statements import LIVES

TIMED_OUT: Final = f"""d.fetched_until <= (SELECT clock_timestamp()) AND NOT d.cancel_requested
        AND (b.max_redeliveries IS NULL OR d.fetches <= b.max_redeliveries) AND {LIVES}"""


def available(limit: str, *, late: str | None = None) -> str:
    """Return SQL of the ids available of one fetchable subscription, at most `limit` of each sort.

    The sorts: never handed out or returned; handed out and timed out, without any job having seen to it, `late` of
    them if that is given; set aside by an earlier push, in either line, due or not: to wait before the next request is
    a rule of sending. Of each sort the oldest, but of what timed out whatever did so first. None is past its
    publisher's time to live. The subscription is `b`, with its `id` and its subscriber's `max_redeliveries`. Each sort
    follows an index of its own, however much there is.
    """
    return f"""
    (SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = b.id AND d.due_at IS NULL AND d.status = 'PENDING' AND {LIVES}
      ORDER BY d.id LIMIT {limit})
    UNION ALL
    (SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = b.id AND {TIMED_OUT}
      ORDER BY d.fetched_until, d.id LIMIT {late or limit})
    UNION ALL
    (SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = b.id AND d.due_at < {FIRST_SENTINEL} AND d.status = 'PENDING' AND {LIVES}
      ORDER BY d.id LIMIT {limit})"""


def in_flight(subscriber: str) -> str:
    """Return SQL that is true while anybody holds a message which an ordered mailbox has to wait for.

    A client, whatever the message's subscription is by now; or an endpoint that was sent it before its subscription
    was switched to PULL: it is in a page of a line that somebody drives, or that nobody has mended yet. Said so that
    it is asked for one subscriber at a time: of `EXISTS` the planner may make a look at all there are.
    """
    return f"""((
      SELECT f.id FROM subscriptions_subscription o
       CROSS JOIN LATERAL (
         SELECT f.id FROM delivery_open f
          WHERE f.subscription_id = o.id AND f.fetched_until > (SELECT clock_timestamp()) LIMIT 1) f
       WHERE o.subscriber_id = {subscriber} LIMIT 1) IS NOT NULL
    OR (
      SELECT d.id FROM delivery_line l
        JOIN delivery_pageread p ON p.line_id = l.id
       CROSS JOIN LATERAL unnest(p.delivery_ids) AS r (id)
       CROSS JOIN LATERAL (
         SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
       WHERE l.subscriber_id = {subscriber} AND l.lease_until IS NOT NULL
         AND d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL
         AND (SELECT delivery_mode FROM subscriptions_subscription WHERE id = d.subscription_id) = 'PULL'
       LIMIT 1) IS NOT NULL)"""
