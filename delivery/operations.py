"""What operators do to deliveries: cancel them, or release those that are HELD (contract 1.8, 3.6)."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from time import sleep
from typing import Final, NamedTuple

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.due_times import (
    DUE_LATER,
    FILE_GONE,
    FIRST_SENTINEL,
    HISTORY_LINE,
    RELEASED,
    RETURNED,
    TELL_UNCERTAIN_NUMBERS,
    gone_columns,
)
from delivery.worker.pending_settles import LOCKED_SECONDS

SLICE: Final = 5_000
"""Deliveries of each sort in one transaction: a large backlog must not keep its line locked, nor outlast the time."""


OURS: Final = """d.subscription_id = %(subscription)s AND d.id <= %(newest)s
      AND NOT (d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AND d.cancel_requested)"""
"""All but what is being sent, and is asked to end already: of those there are never many."""


NEWEST: Final = "SELECT last_value FROM delivery_delivery_id_seq"

BETWEEN_SECONDS: Final = 3 * LOCKED_SECONDS
"""Pause between two slices where somebody drives one of the lines: what has ended there meanwhile is settled in it."""

FROM_THE_FIRST: Final = "-infinity"

LOCK_LINES: Final = """
SELECT l.id, l.lease_until IS NOT NULL FROM delivery_line l
 WHERE l.id IN (
   SELECT m.id FROM subscriptions_subscription s JOIN delivery_line m ON m.subscriber_id = s.subscriber_id
    WHERE s.id = %(subscription)s AND s.kind <> 'QUEUE'
   UNION ALL
   SELECT q.id FROM subscriptions_subscription s JOIN delivery_line q ON q.sender >= 0
    WHERE s.id = %(subscription)s AND s.kind = 'QUEUE')
 ORDER BY l.id FOR NO KEY UPDATE OF l
"""
"""First the lines, of the subscriber or of all senders, then their deliveries: a settle sees what was cancelled.

Returns them, and which of them are driven.
"""


CANCEL: Final = f"""
WITH handed_out AS MATERIALIZED (
  SELECT id, group_id, fetched_until FROM delivery_open
   WHERE subscription_id = %(subscription)s AND id <= %(newest)s AND fetched_until >= %(since)s::timestamptz
     AND NOT (cancel_requested AND fetched_until > (SELECT clock_timestamp()))
   ORDER BY fetched_until, id LIMIT {SLICE}),
these AS MATERIALIZED (
  (SELECT d.id, d.group_id FROM delivery_open d WHERE {OURS} AND d.due_at IS NULL ORDER BY d.id LIMIT {SLICE})
  UNION ALL
  (SELECT d.id, d.group_id FROM delivery_open d WHERE {OURS} AND d.due_at < {FIRST_SENTINEL}
    ORDER BY d.id LIMIT {SLICE})
  UNION ALL
  (SELECT w.id, w.group_id FROM unnest(%(lines)s::bigint[]) AS l (id) CROSS JOIN LATERAL (
      SELECT d.id, d.group_id FROM delivery_open d WHERE {OURS} AND d.line_id = l.id AND d.due_at > {RETURNED}
       ORDER BY d.due_at, d.id LIMIT {SLICE}) w
    LIMIT {SLICE})
  UNION ALL
  SELECT id, group_id FROM handed_out),
groups AS MATERIALIZED (
  SELECT g.id, g.delivery_ids, t.id AS delivery_id
    FROM (SELECT id, group_id FROM these WHERE group_id IS NOT NULL ORDER BY group_id) t
   CROSS JOIN LATERAL (SELECT * FROM delivery_queuegroup WHERE id = t.group_id LIMIT 1 FOR UPDATE) g),
locked AS MATERIALIZED (
  SELECT d.* FROM (SELECT id FROM these WHERE (SELECT count(*) FROM groups) >= 0 ORDER BY id) t CROSS JOIN LATERAL (
    SELECT o.id, o.cancel_requested,
           o.status <> 'IN_FLIGHT' OR COALESCE(o.fetched_until <= clock_timestamp(), false) AS ends
      FROM delivery_open o WHERE o.id = t.id AND o.closed_on = '9999-12-31' LIMIT 1 FOR UPDATE) d),
asked AS (
  UPDATE delivery_open d SET cancel_requested = true
   WHERE d.closed_on = '9999-12-31'
     AND d.id = ANY (ARRAY(SELECT id FROM locked WHERE NOT ends AND NOT cancel_requested))
  RETURNING d.id),
gone AS (
  DELETE FROM delivery_open d
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(SELECT id FROM locked WHERE ends))
  RETURNING {gone_columns(status="'CANCELLED'", cancel_requested="true", reason="%(reason)s::text")}),
filed AS ({FILE_GONE}),
ended AS (
  DELETE FROM delivery_queuegroup WHERE id = ANY (ARRAY(
    SELECT g.id FROM groups g JOIN gone ON gone.id = g.delivery_id
     WHERE (SELECT d.id FROM unnest(g.delivery_ids) AS other (id) CROSS JOIN LATERAL (
              SELECT o.id FROM delivery_open o WHERE o.id = other.id AND o.closed_on = '9999-12-31' LIMIT 1) d
             WHERE d.id <> gone.id LIMIT 1) IS NULL))),
{TELL_UNCERTAIN_NUMBERS.format(reason="'cancelled; it may never have been sent'")}
SELECT (SELECT count(*) FROM these), (SELECT count(*) FROM gone), (SELECT count(*) FROM asked),
       (SELECT max(fetched_until)::text FROM handed_out HAVING count(*) = {SLICE})
"""
"""What waits ends; what is being sent, or is handed out, is asked to. Each is decided when it is locked: what somebody
gave back, or fetched, while this waited for him is met as he left it, and in one statement none slips between the two.

Returns how many it has found, how many of them have ended, how many are newly asked, and from which time-out on to look
next for what is handed out: what is asked stays where it is, and each slice would look through all of it again. None:
that was the last of them.

Groups in which nobody is left end too: those that are HELD or parked are not read any more. The rest of a group is
looked up by id: `NOT EXISTS` becomes a join that reads every open delivery while statistics say that there are none.
"""


class Slice(NamedTuple):
    """What became of some of it."""

    found: int
    """How many were unfinished and had not been asked to end; somebody else may have ended them since."""
    ended: int
    in_flight: int
    """Under way, and newly asked to end so."""
    since: str | None
    """From which time-out on the next slice may look at what is handed out; None: there was no more."""
    is_driven: bool
    """Whether somebody drives one of the lines."""


class Cancelled(NamedTuple):
    """What cancelling did."""

    ended: int
    """Ended at once."""
    in_flight: int
    """Under way, and newly asked to end so unless their answer ends them otherwise."""
    is_complete: bool
    """Whether nothing waits any more that was unfinished when it began, and what is under way is asked to end."""


def cancel_deliveries_of(subscription_id: int, *, reason: str) -> tuple[int, int]:
    """End every delivery that the subscription has unfinished now as CANCELLED.

    Returns how many ended at once, and how many are under way and end so unless their answer ends them otherwise.
    """
    ended, in_flight, _ = cancel_until(lambda: False, subscription_id, reason=reason)
    return ended, in_flight


def cancel_until(is_over: Callable[[], bool], subscription_id: int, *, reason: str) -> Cancelled:
    """Do the same until a look at all of it finds nothing, or time is over; one slice of it at least."""
    ((newest,),) = rows(NEWEST)
    ended, in_flight, since = 0, 0, FROM_THE_FIRST
    while True:
        with transaction.atomic():
            done = cancel_slice(subscription_id, newest=newest, since=since, reason=reason)
        ended, in_flight = ended + done.ended, in_flight + done.in_flight
        if since == FROM_THE_FIRST and not done.found:
            return Cancelled(ended, in_flight, is_complete=True)
        if is_over():
            return Cancelled(ended, in_flight, is_complete=False)
        if done.is_driven and done.found >= SLICE:
            sleep(BETWEEN_SECONDS)
        since = done.since or FROM_THE_FIRST


def cancel_slice(subscription_id: int, *, newest: int, reason: str, since: str = FROM_THE_FIRST) -> Slice:
    """End some of what the subscription has unfinished up to that delivery, in the transaction that is open.

    What is under way is asked to end; from the first on, a slice that finds nothing leaves nothing to be done.
    """
    lines = dict(rows(LOCK_LINES, {"subscription": subscription_id}))
    which = {"subscription": subscription_id, "newest": newest, "lines": [*lines], "since": since, "reason": reason}
    ((found, ended, in_flight, next_since),) = rows(CANCEL, which)
    return Slice(found, ended, in_flight, next_since, is_driven=any(lines.values()))


LOCK_LINES_TO_RELEASE: Final = """
SELECT l.id, l.queue FROM delivery_line l
 WHERE l.id IN (SELECT d.line_id FROM delivery_open d WHERE d.id = ANY(%s) AND d.closed_on = '9999-12-31')
 ORDER BY l.id FOR NO KEY UPDATE OF l
"""
"""First the lines, then their deliveries, as whoever settles or cancels does."""

RELEASE: Final = f"""
WITH asked AS (
  SELECT d.id, d.group_id FROM delivery_open d
   WHERE d.id = ANY(%s) AND d.closed_on = '9999-12-31' AND d.status = 'HELD'),
freed AS (
  UPDATE delivery_queuegroup g
     SET due_at = (SELECT min(d.not_before) FROM delivery_open d
                    WHERE d.id = ANY (g.delivery_ids) AND d.closed_on = '9999-12-31'
                      AND d.not_before > clock_timestamp())
   WHERE g.id = ANY (ARRAY(SELECT group_id FROM asked)) AND g.due_at = {RELEASED}
  RETURNING g.delivery_ids),
released AS (
  UPDATE delivery_open d
     SET status = 'PENDING', reason = 'released; ' || d.reason,
         due_at = CASE WHEN l.lane = 'retry' THEN clock_timestamp()
                       WHEN d.group_id IS NULL AND d.not_before > clock_timestamp() THEN {DUE_LATER} END,
         not_before = CASE WHEN EXISTS (SELECT FROM subscriptions_subscription s
                                         WHERE s.id = d.subscription_id AND s.delivery_mode = 'PULL')
                           THEN GREATEST(d.not_before, clock_timestamp()) ELSE d.not_before END
    FROM delivery_line l
   WHERE l.id = d.line_id AND d.id = ANY (ARRAY(SELECT id FROM asked UNION SELECT unnest(delivery_ids) FROM freed))
     AND d.closed_on = '9999-12-31' AND d.status = 'HELD'
  RETURNING d.id, d.line_id, d.sequence),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), 'RELEASED', sequence, id, '' FROM released)
SELECT id, line_id FROM released
"""
"""What is delayed goes on waiting for its time, and what is in a retry line is due there.

What is in a mailbox could not be read before: the days in which it may be begin now (contract 9.6).

With a delivery of a QUEUE group the others of the group: they have the same filter, and one of them takes it.

The line's history says so, since nothing else will once it has been sent: who was sent before it was not wrong.
"""


class NotHeld(Exception):
    """There is nothing to release; the text says so."""


def release(delivery_ids: Sequence[int]) -> list[int]:
    """Let those that are HELD be sent whatever their filters say, in order of id among what waits; return which.

    A script that failed runs again when the delivery is sent. A QUEUE group is released as a whole.
    """
    with transaction.atomic():
        queues = dict(rows(LOCK_LINES_TO_RELEASE, [[*delivery_ids]]))
        released = rows(RELEASE, [[*delivery_ids]])
        by_queue: dict[str, set[int]] = defaultdict(set)
        for _, line_id in released:
            by_queue[queues[line_id]].add(line_id)
        for queue, lines in by_queue.items():
            transaction.on_commit(partial(notify.wake, queue, sorted(lines)), robust=True)
    return sorted(delivery_id for delivery_id, _ in released)


def release_one(delivery_id: int) -> None:
    """Let a HELD delivery be sent.

    Raises:
        NotHeld: it is not HELD, or not any more.

    """
    if not release([delivery_id]):
        raise NotHeld("Only what is HELD can be released; this delivery is not, or not any more.")
