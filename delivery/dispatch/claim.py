"""Claim lines for a worker: the lease and the fencing epoch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch.recovery import SIBLING_LINE, recover_lines, recover_senders
from delivery.limits import CAPACITY, LEASE_SECONDS
from delivery.models import Lane
from delivery.retry import MAX_PAUSE_SECONDS, MAX_RETRY_AFTER_SECONDS

LONGEST_PAUSE: Final = f"""
  GREATEST(COALESCE(p.max_delay_seconds, {MAX_PAUSE_SECONDS}),
           CASE WHEN p.respect_retry_after IS NOT FALSE THEN {MAX_RETRY_AFTER_SECONDS} END)"""
"""The longest pause, in seconds, that a retry policy `p` gives; without one the default policy."""

LINE_IS_DUE: Final = f"""
  (l.due_at IS NULL OR l.due_at <= clock_timestamp() OR l.lane = 'main' AND l.head_id IS NOT NULL
     AND l.held_config_version IS DISTINCT FROM
     (SELECT s.version + u.version FROM delivery_open h JOIN subscriptions_subscription s ON s.id = h.subscription_id
        JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
       WHERE h.id = l.head_id AND h.closed_on = '9999-12-31' AND s.is_sending AND u.status = 'ACTIVE')
   OR l.due_at > clock_timestamp() + make_interval(secs => COALESCE(
        (SELECT GREATEST({LONGEST_PAUSE}, 1 / s.rate_limit)
           FROM delivery_open h JOIN subscriptions_subscription s ON s.id = h.subscription_id
           LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
          WHERE h.id = l.head_id AND h.closed_on = '9999-12-31'), {MAX_RETRY_AFTER_SECONDS})))
"""
"""A held line tries again when its pause has ended, or at once when its head's configuration has changed.

At once also if it would wait longer than for any pause or rate: then a clock was ahead when that was written (5.9).
"""

CLAIM: Final = f"""
WITH picked AS (
  SELECT l.id, l.lease_until, COALESCE(u.max_queued_to_send, %s) AS capacity,
         CASE WHEN l.lane = 'main' AND u.processing = 'CONCURRENT' THEN u.concurrency ELSE 1 END AS concurrency
    FROM delivery_line l LEFT JOIN subscriptions_subscriber u ON u.id = l.subscriber_id
   WHERE l.id = ANY(%s) AND (l.lease_until IS NULL OR l.lease_until < clock_timestamp()) AND {LINE_IS_DUE}
   ORDER BY l.id FOR UPDATE OF l SKIP LOCKED),
forgotten AS (
  DELETE FROM delivery_pageread p USING picked WHERE p.line_id = picked.id AND picked.lease_until IS NULL)
UPDATE delivery_line l
   SET epoch = l.epoch + 1, worker = %s, lease_until = clock_timestamp() + make_interval(secs => %s)
  FROM picked
 WHERE l.id = picked.id
RETURNING l.id, l.lane, l.queue, l.epoch, l.last_sequence, l.head_id, l.failures, l.deferred_next,
          picked.capacity, {SIBLING_LINE}, picked.concurrency, picked.lease_until
"""

END_LEASES: Final = """
UPDATE delivery_line SET lease_until = clock_timestamp() - interval '1 ms'
 WHERE worker = %s AND lease_until >= clock_timestamp()
RETURNING id
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A line that this worker may run, under `epoch`, while its lease lasts."""

    line_id: int
    lane: str
    queue: str
    """The Celery queue that tells of its work."""
    epoch: int
    last_sequence: int
    head_id: int | None
    failures: int
    deferred_next: bool
    capacity: int
    """How many deliveries it may have in hand."""
    sibling_line_id: int | None = None
    """The subscriber's other line: the retry line of a main line, and the other way round."""
    concurrency: int = 1
    """How many requests it may have in flight: more than one if its order does not count (contract 4.13)."""


def claim(line_ids: Sequence[int], *, worker: str) -> list[Claim]:
    """Claim those of the lines that are due and have no worker, under a new epoch each.

    A line whose last worker vanished is recovered first: its requests in flight are sent first, with their numbers,
    flagged.
    """
    with transaction.atomic():
        taken = rows(CLAIM, [CAPACITY, sorted(line_ids), worker, LEASE_SECONDS])
        claims = {line_id: Claim(line_id, *columns) for line_id, *columns, _ in taken}
        abandoned = [(claims[line_id], lease_until) for line_id, *_, lease_until in taken if lease_until]
        recover_senders([(one.line_id, one.epoch) for one, _ in abandoned if one.lane == Lane.QUEUE])
        others = [(one.line_id, one.epoch, since) for one, since in abandoned if one.lane != Lane.QUEUE]
        for line_id, last_sequence, head_id in recover_lines(others):
            claims[line_id] = replace(claims[line_id], last_sequence=last_sequence, head_id=head_id)
        return [*claims.values()]


def end_leases_of(worker: str) -> int:
    """End what an earlier process of this name still held, so that its lines go on at once; return how many."""
    return len(rows(END_LEASES, [worker]))
