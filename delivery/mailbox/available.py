"""The pieces of SQL in which what a mailbox has ends, or goes back to it."""

from typing import Final

from delivery.due_times import CARRIED, FILE_GONE, IN_DOUBT, TOLD_BY
from delivery.statuses import DeliveryStatus
from delivery.worker.announcement_statements import ENDS_ANNOUNCED, OF_MAILBOXES

OVERDUE: Final = "fetched_until <= (SELECT clock_timestamp())"


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
            d.times_set_aside, d.due_at, d.sequence, d.uncertain, d.cancel_requested, {reason} AS reason,
            d.created_at, {CARRIED}),
filed AS ({FILE_GONE}),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {TOLD_BY}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id,
         lower(status) || ' from the mailbox; its number may never have been received'
    FROM gone WHERE {IN_DOUBT})"""


def ends(hand_out: str, limit: str) -> str:
    """Return SQL that tells whether a delivery which was handed out in vain ends (behaviour 9.7)."""
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
