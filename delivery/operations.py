"""What operators do to deliveries: cancel them, release what is HELD, try others now (contract 1.8, 3.6, 5.11)."""

from collections.abc import Sequence
from time import monotonic, sleep
from typing import Final, NamedTuple

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.filing import END_GROUPS, HISTORY_LINE, LINE, end_deliveries
from delivery.limits import LOCKED_RETRY_SECONDS
from delivery.statuses import WaitsFor

SLICE: Final = 5_000
"""Deliveries of each kind in one transaction: a large backlog must not lock its line for long."""

NEWEST: Final = "SELECT last_value FROM delivery_delivery_id_seq"

CANCEL_SECONDS: Final = 5.0
"""A request cancels for about this time. Its client sends it again while there is more."""

BETWEEN_SECONDS: Final = 3 * LOCKED_RETRY_SECONDS
"""Pause between two slices while a worker runs one of the lines, for it to settle what ended."""

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
"""Lock the lines, of the subscriber or of all senders, before their deliveries: a settle sees what was cancelled.

Returns the lines, and whether each is running.
"""

_UNASKED: Final = "NOT (d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AND d.cancel_requested)"
"""All except pushed deliveries in flight that are asked to end already: there are few of those."""
_KINDS: Final = [one.value for one in WaitsFor if one not in (WaitsFor.TURN, WaitsFor.RETURN)]
_ASIDE: Final = "\n   UNION ALL\n".join(
    f"""  (SELECT d.id, d.group_id FROM delivery_open d
    WHERE d.waits_for <> 'TURN' AND (d.waits_for, d.subscription_id) >= ('{kind}', %(subscription)s)
      AND (d.waits_for, d.subscription_id, d.id) <= ('{kind}', %(subscription)s, %(newest)s) AND {_UNASKED}
    ORDER BY d.waits_for, d.subscription_id, d.id LIMIT {SLICE})"""
    for kind in _KINDS
)
"""What waits for something else than its turn, compared as rows: only the index of these columns has that order.

With `=` and a sort the planner could take the key, or the index of retries, and read what others wait for.
"""

_END_THESE: Final = f"""
groups AS MATERIALIZED (
  SELECT g.id, g.delivery_ids
    FROM (SELECT DISTINCT group_id FROM these WHERE group_id IS NOT NULL ORDER BY group_id) t
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
  RETURNING d.id),{
    end_deliveries(
        "SELECT id FROM locked WHERE ends",
        note="'cancelled; it may never have been sent'",
        status="'CANCELLED'",
        cancel_requested="true",
        reason="%(reason)s::text",
    )
},{END_GROUPS}
"""
"""What follows `these`. Ends what waits, and asks what is in flight to end. Each delivery is judged once it is locked,
in one statement, so none that is returned or fetched meanwhile is missed.
"""

CANCEL: Final = f"""
WITH fetched AS MATERIALIZED (
  SELECT id, group_id, fetched_until FROM delivery_open
   WHERE subscription_id >= %(subscription)s AND subscription_id <= %(subscription)s
     AND id - %(newest)s <= 0 AND fetched_until >= %(since)s::timestamptz
     AND NOT (cancel_requested AND fetched_until > (SELECT clock_timestamp()))
   ORDER BY subscription_id, fetched_until, id LIMIT {SLICE}),
these AS MATERIALIZED (
  (SELECT d.id, d.group_id FROM delivery_open d
    WHERE d.waits_for = 'TURN' AND d.subscription_id >= %(subscription)s
      AND (d.subscription_id, d.id) <= (%(subscription)s, %(newest)s) AND {_UNASKED}
    ORDER BY d.subscription_id, d.id LIMIT {SLICE})
   UNION ALL
{_ASIDE}
   UNION ALL
  SELECT id, group_id FROM fetched),
{_END_THESE}SELECT (SELECT count(*) FROM these), (SELECT count(*) FROM gone), (SELECT count(*) FROM asked),
       (SELECT max(fetched_until)::text FROM fetched HAVING count(*) = {SLICE})
"""
"""Cancel some deliveries of a subscription.

Returns the number found, ended and newly asked, and the time-out from which to look next for fetched deliveries,
which stay where they are; null after the last of them.
"""
CANCEL_CHOSEN: Final = f"""
WITH these AS MATERIALIZED (
  SELECT d.id, d.group_id FROM delivery_open d
   WHERE d.id = ANY (%(ids)s) AND d.closed_on = '9999-12-31' AND {_UNASKED}),
{_END_THESE}
SELECT id FROM gone UNION ALL SELECT id FROM asked
"""


class Slice(NamedTuple):
    """The result of one slice."""

    found: int
    """Unfinished ones found that had not been asked to end; some may have ended since."""
    ended: int
    in_flight: int
    """Newly asked to end so."""
    since: str | None
    """The time-out from which the next slice looks at fetched deliveries; None at the end."""
    is_running: bool
    """Whether a worker runs one of the lines."""


class Cancelled(NamedTuple):
    """The result of cancelling."""

    ended: int
    """Ended at once."""
    in_flight: int
    """Newly asked to end so, unless their answer, or an acknowledgement, ends them otherwise."""
    is_complete: bool
    """Whether every delivery that was unfinished at the start has ended or is asked to."""


def cancel_deliveries_of(subscription_id: int, *, reason: str, seconds: float = CANCEL_SECONDS) -> Cancelled:
    """End unfinished deliveries as CANCELLED, slice by slice: at least one, and as many as `seconds` allow."""
    until = monotonic() + seconds
    ((newest,),) = rows(NEWEST)
    ended, in_flight, since = 0, 0, FROM_THE_FIRST
    while True:
        with transaction.atomic():
            done = cancel_slice(subscription_id, newest=newest, since=since, reason=reason)
        ended, in_flight = ended + done.ended, in_flight + done.in_flight
        if since == FROM_THE_FIRST and not done.found:
            return Cancelled(ended, in_flight, is_complete=True)
        if monotonic() >= until:
            return Cancelled(ended, in_flight, is_complete=False)
        if done.is_running and done.found >= SLICE:
            sleep(BETWEEN_SECONDS)
        since = done.since or FROM_THE_FIRST


def cancel_slice(subscription_id: int, *, newest: int, reason: str, since: str = FROM_THE_FIRST) -> Slice:
    """Cancel some of the subscription's deliveries up to id `newest`, in the open transaction.

    If a slice from the first on finds nothing, nothing is left.
    """
    lines: dict[int, bool] = dict(rows(LOCK_LINES, {"subscription": subscription_id}))
    which = {"subscription": subscription_id, "newest": newest, "since": since, "reason": reason}
    ((found, ended, in_flight, next_since),) = rows(CANCEL, which)
    return Slice(found, ended, in_flight, next_since, is_running=any(lines.values()))


LOCK_LINES_OF: Final = """
SELECT l.id, l.queue FROM delivery_line l
 WHERE l.id IN (SELECT d.line_id FROM delivery_open d WHERE d.id = ANY(%s) AND d.closed_on = '9999-12-31')
 ORDER BY l.id FOR NO KEY UPDATE OF l
"""
"""Lock lines before deliveries, as a settle and a cancel do."""


def cancel(delivery_ids: Sequence[int], *, reason: str) -> list[int]:
    """Cancel unfinished deliveries, or ask them to end if they are in flight; return their ids, in order."""
    with transaction.atomic():
        queues: dict[int, str] = dict(rows(LOCK_LINES_OF, [[*delivery_ids]]))
        cancelled = rows(CANCEL_CHOSEN, {"ids": [*delivery_ids], "reason": reason})
        notify.wake_after_commit((queue, line_id) for line_id, queue in queues.items())
    return sorted(delivery_id for (delivery_id,) in cancelled)


RELEASE: Final = f"""
WITH asked AS (
  SELECT d.id, d.group_id FROM delivery_open d
   WHERE d.id = ANY(%s) AND d.closed_on = '9999-12-31' AND d.status = 'HELD'),
groups AS MATERIALIZED (
  SELECT g.id, g.delivery_ids, g.waits_for FROM delivery_queuegroup g
   WHERE g.id = ANY (ARRAY(SELECT group_id FROM asked))
     AND (g.waits_for IS NOT DISTINCT FROM 'RELEASE' OR g.waits_for IS NOT DISTINCT FROM 'SUBSCRIPTION')
   ORDER BY g.id FOR UPDATE),
freed AS (
  UPDATE delivery_queuegroup g
     SET (due_at, waits_for) = (
           SELECT min(d.not_before), CASE count(*) WHEN 0 THEN 'TURN' ELSE 'START' END FROM delivery_open d
            WHERE d.id = ANY (g.delivery_ids) AND d.closed_on = '9999-12-31' AND d.not_before > clock_timestamp())
   WHERE g.id = ANY (ARRAY(SELECT id FROM groups))),
released AS (
  UPDATE delivery_open d
     SET status = 'PENDING', reason = 'released; ' || d.reason,
         waits_for = CASE WHEN l.lane = 'retry' THEN 'RETRY'
                          WHEN d.group_id IS NULL AND d.not_before > clock_timestamp() THEN 'START' ELSE 'TURN' END,
         due_at = CASE WHEN l.lane = 'retry' THEN clock_timestamp() END,
         not_before = CASE WHEN EXISTS (SELECT FROM subscriptions_subscription s
                                         WHERE s.id = d.subscription_id AND s.delivery_mode = 'PULL')
                           THEN GREATEST(d.not_before, clock_timestamp()) ELSE d.not_before END
    FROM delivery_line l
   WHERE l.id = d.line_id
     AND d.id = ANY (ARRAY(
       SELECT id FROM asked UNION SELECT unnest(delivery_ids) FROM groups WHERE waits_for = 'RELEASE'))
     AND d.closed_on = '9999-12-31' AND d.status = 'HELD'
  RETURNING d.id, d.line_id, d.sequence),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), 'RELEASED', sequence, id, '' FROM released)
SELECT id, line_id FROM released
"""
"""Delayed deliveries wait on for their time; in a retry line they are due at once.

A mailbox delivery could not be fetched while HELD: the days in which it may be unread begin now (contract 9.6).

A delivery of a QUEUE group that is HELD as a whole releases the others of the group: they have the same filter, and one
endpoint takes it. If the group waits for the subscription of another, it takes its turn with this delivery alone.

The line's history notes it, since nothing else shows later why deliveries sent before it were in order.
"""


class NotHeld(Exception):
    """The delivery is not HELD."""


def release(delivery_ids: Sequence[int]) -> list[int]:
    """Let HELD deliveries be sent despite their filters, in order of id; return the released ids.

    A script that failed runs again when the delivery is sent. A QUEUE group that is HELD as a whole is released so.
    """
    with transaction.atomic():
        queues: dict[int, str] = dict(rows(LOCK_LINES_OF, [[*delivery_ids]]))
        released = rows(RELEASE, [[*delivery_ids]])
        notify.wake_after_commit((queues[line_id], line_id) for _, line_id in released)
    return sorted(delivery_id for delivery_id, _ in released)


def release_one(delivery_id: int) -> None:
    """Release a HELD delivery; raise `NotHeld` if it is not HELD, or not any more."""
    if not release([delivery_id]):
        raise NotHeld("Only HELD deliveries can be released, and this one is not HELD.")


TRY_NOW: Final = f"""
WITH asked AS MATERIALIZED (
  SELECT d.id, d.line_id, d.group_id FROM delivery_open d
   WHERE d.id = ANY(%s) AND d.closed_on = '9999-12-31' AND d.status = 'PENDING' ORDER BY d.id FOR UPDATE),
held AS (
  UPDATE delivery_hold h SET due_at = clock_timestamp()
   WHERE h.delivery_id = ANY (ARRAY(SELECT id FROM asked)) AND h.due_at > clock_timestamp()
  RETURNING h.delivery_id AS id),
groups AS (
  UPDATE delivery_queuegroup g SET due_at = clock_timestamp()
   WHERE g.id = ANY (ARRAY(SELECT group_id FROM asked)) AND g.waits_for IS NOT DISTINCT FROM 'RETRY'
     AND g.due_at > clock_timestamp()
  RETURNING g.id),
deferred AS (
  UPDATE delivery_open d SET due_at = clock_timestamp()
   WHERE d.id = ANY (ARRAY(SELECT id FROM asked)) AND d.closed_on = '9999-12-31' AND d.waits_for = 'RETRY'
     AND d.due_at > clock_timestamp()
  RETURNING d.id)
SELECT a.id, l.queue, l.id FROM asked a CROSS JOIN {LINE.format("a.line_id")} l
 WHERE a.id IN (SELECT id FROM held UNION SELECT id FROM deferred) OR a.group_id IN (SELECT id FROM groups)
"""
"""Ends the pauses of those that wait to be tried again; a group waits as a whole."""


class NotWaiting(Exception):
    """The delivery does not wait to be tried again."""


def try_now(delivery_ids: Sequence[int]) -> list[int]:
    """Let deliveries that wait to be tried again be tried at once; return their ids, in order.

    Statuses, pauses, suspensions and rate limits hold as ever.
    """
    with transaction.atomic():
        rows(LOCK_LINES_OF, [[*delivery_ids]])
        tried = rows(TRY_NOW, [[*delivery_ids]])  # a settle that was waited for may have moved one to another line
        notify.wake_after_commit((queue, line_id) for _, queue, line_id in tried)
    return sorted(delivery_id for delivery_id, *_ in tried)


def try_one_now(delivery_id: int) -> None:
    """Let a delivery be tried at once; raise `NotWaiting` if it does not wait to be tried again."""
    if not try_now([delivery_id]):
        raise NotWaiting("Only a delivery that waits to be tried again can be tried now, and this one does not.")
