"""What a mailbox can hand out now, and the SQL in which its messages end or return to it."""

from typing import Final

from delivery.due_times import CARRIED, FILE_GONE, FIRST_SENTINEL, HISTORY_LINE, IN_DOUBT
from delivery.statuses import DeliveryStatus
from delivery.worker.pages import LIVES
from delivery.worker.settle_sql import ENDS_ANNOUNCED, OF_MAILBOXES

TIMED_OUT: Final = f"""d.fetched_until <= (SELECT clock_timestamp()) AND NOT d.cancel_requested
        AND (b.max_redeliveries IS NULL OR d.fetches <= b.max_redeliveries) AND {LIVES}"""

OVERDUE: Final = "fetched_until <= (SELECT clock_timestamp())"


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


def walk(name: str, condition: str) -> str:
    """Return a recursive part: the ids of the subscriptions that have anything so, the last of them null.

    From one to the next, along that condition's index: its cost follows subscriptions, not deliveries.
    """
    return f"""
{name} AS (
  (SELECT subscription_id AS id FROM delivery_open WHERE {condition} ORDER BY subscription_id LIMIT 1)
  UNION ALL
  SELECT (SELECT d.subscription_id FROM delivery_open d
           WHERE {condition} AND d.subscription_id > w.id ORDER BY d.subscription_id LIMIT 1)
    FROM {name} w WHERE w.id IS NOT NULL)"""


def gone(which: str, *, status: str, reason: str) -> str:
    """Return the parts in which these deliveries end: filed, and the line's history tells of a number in doubt."""
    return f"""
gone AS (
  DELETE FROM delivery_open d WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY({which}))
  RETURNING d.id, d.message_id, d.line_id, d.subscription_id, d.group_id, {status} AS status, d.size, d.attempts,
            d.times_deferred, d.due_at, d.sequence, d.uncertain, d.cancel_requested, {reason} AS reason,
            d.created_at, {CARRIED}),
filed AS ({FILE_GONE}),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id,
         lower(status) || ' from the mailbox; its number may never have been received'
    FROM gone WHERE {IN_DOUBT})"""


def ends(hand_out: str, limit: str) -> str:
    """Return SQL that tells whether a delivery which was handed out in vain ends (contract 9.7)."""
    return f"({hand_out}.cancel_requested OR COALESCE({hand_out}.fetches > {limit}, false))"


def end_in_vain(*, cancel_requested: bool, fetches: int, limit: int | None) -> DeliveryStatus | None:
    """Return as what one would end so, to be told before; None: it will be available again. `ends` says which do."""
    if cancel_requested:
        return DeliveryStatus.CANCELLED
    return DeliveryStatus.FAILED if limit is not None and fetches > limit else None


BACK: Final = f"""{
    gone(
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
     SET status = 'PENDING', due_at = NULL, fetched_until = NULL, uncertain = d.uncertain OR %(uncertain)s
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(SELECT id FROM back WHERE NOT ends))
  RETURNING d.id, d.line_id)"""
"""What becomes of `back`, locked hand-outs that nobody acknowledges: each ends if it has to, or is as it was before."""
