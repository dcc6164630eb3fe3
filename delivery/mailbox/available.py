"""SQL that the mailbox's statements share: what is available, and how fetched deliveries end or return."""

from typing import Final

from delivery.dispatch.turn_floors import WAITS
from delivery.filing import LIVES, end_deliveries
from delivery.statuses import DeliveryStatus
from delivery.worker.settle_sql import ENDS_ANNOUNCED, OF_MAILBOXES

TIMED_OUT: Final = f"""d.fetched_until <= (SELECT clock_timestamp()) AND NOT d.cancel_requested
        AND (b.max_redeliveries IS NULL OR d.fetches <= b.max_redeliveries) AND {LIVES}"""


def available(limit: str, *, timed_out_limit: str | None = None) -> str:
    """Return SQL of the ids available in a fetchable subscription `b`, at most `limit` of each kind.

    The kinds: never fetched, or returned; timed out (the first to time out, `timed_out_limit` of them if given);
    deferred by an earlier push, in either line, due or not, since due times are a rule of sending. Of the first and the
    last kind the oldest. None has expired. `b` has `id` and its subscriber's `max_redeliveries`. Each kind follows an
    index of its own, so the cost does not depend on how much waits.
    """
    return f"""
    (SELECT d.id FROM delivery_open d
      WHERE {WAITS.format("b.id")} AND d.status = 'PENDING' AND {LIVES}
      ORDER BY d.subscription_id, d.id LIMIT {limit})
    UNION ALL
    (SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = b.id AND {TIMED_OUT}
      ORDER BY d.fetched_until, d.id LIMIT {timed_out_limit or limit})
    UNION ALL
    (SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = b.id AND d.waits_for = 'RETRY' AND d.status = 'PENDING' AND {LIVES}
      ORDER BY d.id LIMIT {limit})"""


def in_flight(subscriber: str) -> str:
    """Return SQL that is true while an ordered mailbox has a message in flight.

    A client has it, even if its subscription is PUSH by now; or an endpoint, to which it was sent before its
    subscription was switched to PULL: then it is in a page of a line that is running or waits for recovery. Written as
    scalar subqueries so that one subscriber is read at a time: the planner may turn `EXISTS` into a scan of everything.
    """
    return f"""((
      SELECT f.id FROM subscriptions_subscription o
       CROSS JOIN LATERAL (
         SELECT f.id FROM delivery_open f
          WHERE f.subscription_id = o.id AND f.fetched_until > (SELECT clock_timestamp()) LIMIT 1) f
       WHERE o.subscriber_id = {subscriber} LIMIT 1) IS NOT NULL
    OR (
      SELECT d.id FROM delivery_line l
        JOIN delivery_pageread p ON p.line_id = ANY (ARRAY[l.id]) AND p.epoch = l.epoch
       CROSS JOIN LATERAL unnest(p.delivery_ids) AS r (id)
       CROSS JOIN LATERAL (
         SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
       WHERE l.subscriber_id = {subscriber} AND l.lease_until IS NOT NULL
         AND d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL
         AND (SELECT delivery_mode FROM subscriptions_subscription WHERE id = d.subscription_id) = 'PULL'
       LIMIT 1) IS NOT NULL)"""


def close(which: str, *, status: str, reason: str) -> str:
    """Return the CTEs that end the deliveries `which`, and note in the line's history that a number is uncertain."""
    note = "lower(status) || ' from the mailbox; its number may never have been received'"
    return end_deliveries(which, note=note, status=status, reason=reason)


def is_exhausted(row: str, limit: str) -> str:
    """Return SQL that is true if a fetch that was not acknowledged ends its delivery (contract 9.7)."""
    return f"({row}.cancel_requested OR COALESCE({row}.fetches > {limit}, false))"


def status_if_returned(*, cancel_requested: bool, fetches: int, max_redeliveries: int | None) -> DeliveryStatus | None:
    """Return the status in which a return would end a delivery, by the rule of `is_exhausted`; None if it would not."""
    if cancel_requested:
        return DeliveryStatus.CANCELLED
    return DeliveryStatus.FAILED if max_redeliveries is not None and fetches > max_redeliveries else None


END_OR_RETURN: Final = f"""{
    close(
        "SELECT id FROM back WHERE ends",
        status="CASE WHEN d.cancel_requested THEN 'CANCELLED' ELSE 'FAILED' END",
        reason='''CASE WHEN d.cancel_requested THEN 'cancelled while in flight'
                 ELSE 'redeliveries used up: not acknowledged ' || d.fetches
                      || CASE d.fetches WHEN 1 THEN ' time' ELSE ' times' END END''',
    )
},
{ENDS_ANNOUNCED}{OF_MAILBOXES},
returned AS (
  UPDATE delivery_open d
     SET status = 'PENDING', waits_for = 'TURN', fetched_until = NULL, uncertain = d.uncertain OR %(uncertain)s
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(SELECT id FROM back WHERE NOT ends))
  RETURNING d.id, d.line_id)"""
"""Ends those of `back` that `ends`, and makes the others available again; `back` are locked, fetched deliveries."""
