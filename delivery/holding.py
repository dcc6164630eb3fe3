"""Releasing what is HELD because its filter or its script failed: back to its place in its line (behaviour 3.6)."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.due_times import TOLD_BY
from delivery.due_times_ import DUE_LATER, RELEASED

LOCK_LINES: Final = """
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
  SELECT {TOLD_BY}, clock_timestamp(), 'RELEASED', sequence, id, '' FROM released)
SELECT id, line_id FROM released
"""
"""What is delayed goes on waiting for its time, and what is in a retry line is due there.

What is in a mailbox could not be read before: the days in which it may be begin now (behaviour 9.6).

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
        queues = dict(rows(LOCK_LINES, [[*delivery_ids]]))
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
