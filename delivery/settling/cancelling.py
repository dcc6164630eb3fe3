"""Cancelling what a subscription has unfinished: an action of its own (behaviour 1.8)."""

from collections.abc import Callable
from time import sleep
from typing import Final, NamedTuple

from django.db import transaction

from delivery.rules.filing import CARRIED, FILE_GONE, TOLD_BY
from delivery.settling.outages import LOCKED_SECONDS
from subscriptions.database import rows

LOCK_LINES: Final = """
SELECT l.lease_until IS NOT NULL FROM delivery_line l
 WHERE l.id IN (
   SELECT m.id FROM subscriptions_subscription s JOIN delivery_line m ON m.subscriber_id = s.subscriber_id
    WHERE s.id = %(subscription)s AND s.kind <> 'QUEUE'
   UNION ALL
   SELECT q.id FROM subscriptions_subscription s JOIN delivery_line q ON q.sender >= 0
    WHERE s.id = %(subscription)s AND s.kind = 'QUEUE')
 ORDER BY l.id FOR NO KEY UPDATE OF l
"""
"""First the lines, of the subscriber or of all senders, then their deliveries: a settle sees what was cancelled.

Returns which of them are driven.
"""

SLICE: Final = 5_000
"""Deliveries ended in one transaction: a large backlog must not keep its line locked, nor outlast the time limit."""

BETWEEN_SECONDS: Final = 3 * LOCKED_SECONDS
"""Pause between two slices where somebody drives one of the lines: what has ended there meanwhile is settled in it."""

CANCEL: Final = f"""
WITH these AS MATERIALIZED (
  (SELECT id, group_id FROM delivery_open
    WHERE subscription_id = %(subscription)s AND due_at IS NULL AND id <= %(newest)s
      AND status IN ('PENDING', 'HELD') ORDER BY id LIMIT {SLICE})
  UNION ALL
  (SELECT id, group_id FROM delivery_open
    WHERE subscription_id = %(subscription)s AND due_at IS NOT NULL AND id <= %(newest)s
      AND status IN ('PENDING', 'HELD') ORDER BY line_id, due_at, id LIMIT {SLICE})
  UNION ALL
  (SELECT id, group_id FROM delivery_open
    WHERE subscription_id = %(subscription)s AND fetched_until <= (SELECT clock_timestamp()) AND id <= %(newest)s
    ORDER BY fetched_until, id LIMIT {SLICE})),
groups AS MATERIALIZED (
  SELECT g.id, g.delivery_ids, t.id AS delivery_id
    FROM (SELECT id, group_id FROM these WHERE group_id IS NOT NULL ORDER BY group_id) t
   CROSS JOIN LATERAL (SELECT * FROM delivery_queuegroup WHERE id = t.group_id LIMIT 1 FOR UPDATE) g),
gone AS (
  DELETE FROM delivery_open d USING these
   WHERE (SELECT count(*) FROM groups) >= 0
     AND d.id = these.id AND d.closed_on = '9999-12-31'
     AND (d.status IN ('PENDING', 'HELD') OR d.fetched_until <= clock_timestamp())
  RETURNING d.id, d.message_id, d.line_id, d.subscription_id, d.group_id, 'CANCELLED' AS status, d.size, d.attempts,
            d.times_set_aside, d.due_at, d.sequence, d.uncertain, true AS cancel_requested, %(reason)s::text AS reason,
            d.created_at, {CARRIED}),
filed AS ({FILE_GONE}),
ended AS (
  DELETE FROM delivery_queuegroup WHERE id = ANY (ARRAY(
    SELECT g.id FROM groups g JOIN gone ON gone.id = g.delivery_id
     WHERE NOT EXISTS (SELECT FROM delivery_open d
                        WHERE d.id = ANY (g.delivery_ids) AND d.closed_on = '9999-12-31' AND d.id <> gone.id)))),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {TOLD_BY}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'cancelled; it may never have been sent'
    FROM gone WHERE (uncertain OR unreceived) AND sequence IS NOT NULL)
SELECT count(*) FROM gone
"""
"""With what a mailbox handed out and nobody acknowledged in time: it is not under way any more (behaviour 9.2).

Groups in which nobody is left end too: those that are HELD or parked are not read any more.

First they are locked, then their deliveries go, in the order of whoever parks them.
"""


ASK: Final = """
UPDATE delivery_open d SET cancel_requested = true
 WHERE d.closed_on = '9999-12-31' AND NOT d.cancel_requested AND d.id IN (
   SELECT id FROM delivery_open
    WHERE subscription_id = %(subscription)s AND due_at IS NULL AND status = 'IN_FLIGHT'
   UNION ALL
   SELECT id FROM delivery_open
    WHERE subscription_id = %(subscription)s AND due_at IS NOT NULL AND status = 'IN_FLIGHT')
RETURNING d.id
"""

NEWEST: Final = "SELECT last_value FROM delivery_delivery_id_seq"


class Cancelled(NamedTuple):
    """What cancelling did."""

    ended: int
    """Ended at once."""
    under_way: int
    """Under way, and newly asked to end so unless their answer ends them otherwise."""
    is_complete: bool
    """Whether nothing is left that was unfinished when it began."""


def cancel_deliveries_of(subscription_id: int, *, reason: str) -> tuple[int, int]:
    """End every delivery that the subscription has unfinished now as CANCELLED.

    Returns how many ended at once, and how many are under way and end so unless their answer ends them otherwise.
    """
    ended, under_way, _ = cancel_until(lambda: False, subscription_id, reason=reason)
    return ended, under_way


def cancel_until(is_over: Callable[[], bool], subscription_id: int, *, reason: str) -> Cancelled:
    """Do the same until it is done, or time is over; one slice of it at least."""
    ((newest,),) = rows(NEWEST)
    ended = 0
    while True:
        with transaction.atomic():
            slice_ended, driven = cancel_slice(subscription_id, newest=newest, reason=reason)
            if not slice_ended:
                return Cancelled(ended, len(rows(ASK, {"subscription": subscription_id})), is_complete=True)
        ended += slice_ended
        if is_over():
            return Cancelled(ended, 0, is_complete=False)
        if driven and slice_ended >= SLICE:
            sleep(BETWEEN_SECONDS)


def cancel_slice(subscription_id: int, *, newest: int, reason: str) -> tuple[int, bool]:
    """End some of what the subscription has unfinished up to that delivery, in the transaction that is open.

    Returns how many, 0 if none are left but those under way, and whether somebody drives one of its lines.
    """
    driven = any(is_driven for (is_driven,) in rows(LOCK_LINES, {"subscription": subscription_id}))
    ((ended,),) = rows(CANCEL, {"subscription": subscription_id, "newest": newest, "reason": reason})
    return ended, driven
