"""Find lines with due work and no worker (contract 11.3): a lost wake-up cannot hide them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from broker_project.core.db import rows, rows_of_each
from delivery.dispatch import notify
from delivery.dispatch.claim import LEASE_IS_OVER, LINE_HOLDS, LINE_IS_DUE, lease_clock
from delivery.dispatch.diversion import WITHOUT_PROBE
from delivery.dispatch.parked_groups import UNPARK
from delivery.dispatch.turn_floors import ARE_THERE, GROUP_WAITS, WAITS
from delivery.filing import IS_SENT_IN, LINE, LINES_APART, MAIN_LINE, subscriptions_with
from delivery.limits import MAX_LINES_PER_SWEEP, SWEEP_SECONDS, SWEEP_SLICE, TAKEOVER_SECONDS
from delivery.retry import MAX_RETRY_AFTER_SECONDS

HAS_MORE_THAN_HELD: Final = f"""
  (holds.number = 0 OR holds.number > holds.resting OR w.line_id IS NOT NULL
   OR (SELECT d.id FROM delivery_open d
        WHERE {WAITS.format("w.subscription_id")}
          AND (SELECT h.delivery_id FROM delivery_hold h WHERE h.delivery_id = d.id) IS NULL
          AND (u.processing <> 'KEYED' OR COALESCE(d.ordering_key, '') NOT IN (
            SELECT COALESCE(o.ordering_key, '') FROM delivery_hold h
              JOIN delivery_open o ON o.id = ANY (ARRAY[h.delivery_id]) WHERE h.line_id = l.id))
        ORDER BY d.subscription_id, d.id LIMIT 1) IS NOT NULL)"""
"""What is held, with all of its key, still waits for its turn: where there is nothing else, its line is due when the
hold is.
"""

HAS_DUE_GROUPS: Final = f"""
  ((SELECT g.id FROM delivery_queuegroup g
     WHERE {GROUP_WAITS.format("l.id")} ORDER BY g.line_id, g.id LIMIT 1) IS NOT NULL
   OR (SELECT g.id FROM delivery_queuegroup g
        WHERE g.line_id = l.id AND g.due_at <= (SELECT clock_timestamp())
        ORDER BY g.due_at, g.id LIMIT 1) IS NOT NULL)
"""
"""In the order of an index that begins with the line, and said so that no other will do.

`EXISTS` would forget the order, and by id alone the planner would look through whatever waits for another reason.
"""

IS_FREE: Final = "(l.lease_until IS NULL OR l.id IN (SELECT unnest(%s::bigint[])))"
"""Whether nobody runs a line `l`, or it is idle in the process that asks."""

DUE: Final = f"""
WITH RECURSIVE {subscriptions_with("walked", f"waits_for = 'TURN' AND NOT {ARE_THERE}")},{LINES_APART},
fresh AS (
  SELECT id FROM walked
   UNION ALL
  SELECT s.id FROM subscriptions_subscription s
   WHERE {ARE_THERE} AND s.kind = 'TOPIC' AND s.delivery_mode = 'PUSH'
     AND (SELECT d.id FROM delivery_open d
           WHERE {WAITS.format("s.id")} ORDER BY d.subscription_id, d.id LIMIT 1) IS NOT NULL),
lines AS (
  (SELECT id, queue, epoch, worker, lease_until FROM delivery_line WHERE {ARE_THERE}
    ORDER BY id DESC, epoch DESC LIMIT 1)
   UNION ALL
  SELECT n.* FROM lines l CROSS JOIN LATERAL (
    SELECT id, queue, epoch, worker, lease_until FROM delivery_line WHERE id < l.id
     ORDER BY id DESC, epoch DESC LIMIT 1) n),
waiting AS (
  SELECT id AS subscription_id, NULL::bigint AS line_id FROM fresh
   UNION ALL
  SELECT a.subscription_id, a.line_id FROM apart a
   WHERE EXISTS (SELECT FROM delivery_open d
                  WHERE d.subscription_id = a.subscription_id AND d.line_id = a.line_id
                    AND d.due_at <= (SELECT clock_timestamp())
                  ORDER BY d.due_at, d.id LIMIT 1))
SELECT l.id, l.queue, l.epoch, l.worker
  FROM waiting w
  JOIN subscriptions_subscription s ON s.id = w.subscription_id AND s.kind = 'TOPIC'
  JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
  JOIN LATERAL (
    SELECT * FROM {MAIN_LINE.format("u.id")} m WHERE w.line_id IS NULL
     UNION ALL
    SELECT * FROM {LINE.format("w.line_id")} m) l ON {IS_SENT_IN} {LINE_HOLDS}
 WHERE {IS_FREE} AND {LINE_IS_DUE} AND {HAS_MORE_THAN_HELD}
 UNION
SELECT l.id, l.queue, l.epoch, l.worker FROM delivery_line l
 WHERE l.sender IS NOT NULL AND {IS_FREE} AND {HAS_DUE_GROUPS}
 UNION
SELECT l.id, l.queue, l.epoch, l.worker FROM (
  SELECT line_id FROM delivery_hold WHERE due_at <= (SELECT clock_timestamp())
   UNION
  SELECT line_id FROM delivery_hold
   WHERE due_at > (SELECT clock_timestamp() + make_interval(secs => {MAX_RETRY_AFTER_SECONDS}))) d
 CROSS JOIN {LINE.format("d.line_id")} l
  LEFT JOIN subscriptions_subscriber u ON u.id = l.subscriber_id {LINE_HOLDS}
 WHERE l.lease_until IS NULL AND {LINE_IS_DUE} AND holds.number > holds.resting
 UNION
SELECT l.id, l.queue, l.epoch, l.worker
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
 CROSS JOIN {MAIN_LINE.format("u.id")} l {LINE_HOLDS}
 WHERE {WITHOUT_PROBE} AND l.lease_until IS NULL AND {LINE_IS_DUE}
 UNION
SELECT l.id, l.queue, l.epoch, l.worker FROM delivery_line l
 WHERE NOT {ARE_THERE} AND {LEASE_IS_OVER}
 UNION
SELECT l.id, l.queue, l.epoch, l.worker FROM lines l WHERE {LEASE_IS_OVER}
 LIMIT {MAX_LINES_PER_SWEEP}
"""
"""Walks from subscription to subscription, and from line to line, along the index: its cost follows them, not rows.

While there are floors it looks at each subscription and each line instead: a walk would pass all dead entries between
two of them, and all leases that have been renewed.
"""


class DueLine(NamedTuple):
    """A line with due work and no worker."""

    id: int
    queue: str
    epoch: int
    """The same as before: nobody has claimed it since."""
    worker: str
    """Who claimed it last."""


class SweepMemory:
    """What a sweeper remembers of due lines, to know which of them its own process has to run (contract 6.2).

    A line of a queue that the process consumes: if its hint was not taken, or nobody has come since the last sweep.
    Another line: if it has been due for ten seconds without anybody. It then counts as its own until someone else
    claims it.
    """

    def __init__(self, worker: str, queues: Collection[str]) -> None:
        self._worker = worker
        self._queues = queues
        self._due_for: dict[DueLine, float] = {}
        """Seconds. A line that is not due any more is forgotten."""
        self._taken_over: set[int] = set()
        """Lines of other queues."""
        self._swept_at = 0.0

    def left_to_us(self, due: Sequence[DueLine], untaken: Collection[str], now: float) -> list[int]:
        """Return the lines that this process has to run, its own first; `untaken`: queues that took no hint.

        The time between two sweeps counts as two seconds at most: while the database was away or this process stood
        still, nobody could come.
        """
        passed = min(now - self._swept_at, 2 * SWEEP_SECONDS)
        seen = {line.id for line in self._due_for}
        self._due_for = {line: self._due_for[line] + passed if line in self._due_for else 0.0 for line in due}
        self._swept_at = now
        kept = {line for line in due if line.id in self._taken_over and line.worker == self._worker}
        own = kept | {line for line in due if line.queue in self._queues}
        left = [line.id for line in due if line in own and (line.queue in untaken or line.id in seen)]
        taken_over = [line.id for line in due if line not in own and self._due_for[line] >= TAKEOVER_SECONDS]
        if len(self._taken_over) > MAX_LINES_PER_SWEEP:
            self._taken_over.clear()  # most are of replies and have ended; the others wait once more
        self._taken_over.update(taken_over)
        return left + taken_over


def due_lines(idle: Collection[int] = ()) -> list[DueLine]:
    """Return the lines without a worker that have due work, or that have to be recovered; of `idle` ones the former.

    What has become due because a subscription is active again is among it.
    """
    _, due = rows_of_each([(UNPARK, ()), (DUE, [[*idle]] * 2 + [lease_clock()] * 2)])
    return [DueLine(*row) for row in due]


def wake_workers_of(due: Iterable[DueLine]) -> set[str]:
    """Wake the workers of each line's queue; return the queues that took no hint."""
    by_queue: dict[str, list[int]] = defaultdict(list)
    for line in due:
        by_queue[line.queue].append(line.id)
    return {queue for queue, line_ids in by_queue.items() if not notify.wake_regardless(queue, line_ids)}


IS_DELAYED: Final = "waits_for LIKE 'START' AND not_before <= (SELECT clock_timestamp())"
ARE_DELAYED: Final = f"(SELECT id FROM delivery_open WHERE {IS_DELAYED} ORDER BY not_before, id LIMIT 1) IS NOT NULL"
BEGIN: Final = f"""
WITH begun AS (
  UPDATE delivery_open SET waits_for = 'TURN'
   WHERE closed_on = '9999-12-31' AND status = 'PENDING' AND id = ANY (ARRAY(
     SELECT id FROM delivery_open
      WHERE {IS_DELAYED}
      ORDER BY not_before, id LIMIT {SWEEP_SLICE} FOR UPDATE SKIP LOCKED))
  RETURNING line_id, subscription_id)
SELECT b.line_id, s.delivery_mode = 'PUSH', count(*)
  FROM begun b JOIN subscriptions_subscription s ON s.id = b.subscription_id GROUP BY 1, 2
"""
"""From then on they are as if published just now, but for their ids: these say their places."""


def begin_delayed() -> int:
    """Let those whose time has come, a slice of them, take their places, and wake their lines; return how many.

    What is fetched from a mailbox is there for the next who asks.
    """
    begun = rows(BEGIN)
    notify.wake(notify.TOPIC, sorted(line_id for line_id, is_pushed, _ in begun if is_pushed))
    return sum(number for *_, number in begun)
