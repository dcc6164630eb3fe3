"""Taking lines to drive: the lease and the fencing epoch, and mending what an unclean end left behind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from django.db import transaction

from delivery.models import Lane
from delivery.rules.filing import CARRIED, FILE_GONE
from subscriptions.database import rows

DEADLINE_SECONDS: Final = 15.0
"""A request has ended after so long, whatever the endpoint does."""
LEASE_SECONDS: Final = 20.0
"""A line may be taken over so long after its last renewal."""
MARGIN_SECONDS: Final = 2.0
"""What a request may need beyond its deadline; a request starts only if it fits into the lease."""

CAPACITY: Final = 500
"""How much a line that is no subscriber's has in hand at most."""

LINE_IS_DUE: Final = """
  (l.due_at IS NULL OR l.due_at <= clock_timestamp() OR l.lane = 'main' AND l.held_stamp IS DISTINCT FROM
     (SELECT s.version + u.version FROM delivery_open h JOIN subscriptions_subscription s ON s.id = h.subscription_id
        JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
       WHERE h.id = l.head_id AND h.closed_on = '9999-12-31' AND s.is_sending AND u.status = 'ACTIVE'))
"""
"""A held line tries again when its pause has ended, or at once when its head's configuration has changed."""

SISTER: Final = "(SELECT r.id FROM delivery_line r WHERE r.subscriber_id = l.subscriber_id AND r.id <> l.id)"

CLAIM: Final = f"""
WITH picked AS (
  SELECT l.id, l.lease_until, COALESCE(u.max_queued_to_send, %s) AS capacity,
         CASE WHEN l.lane = 'main' AND u.processing = 'CONCURRENT' THEN u.concurrency ELSE 1 END AS strands
    FROM delivery_line l LEFT JOIN subscriptions_subscriber u ON u.id = l.subscriber_id
   WHERE l.id = ANY(%s) AND (l.lease_until IS NULL OR l.lease_until < clock_timestamp()) AND {LINE_IS_DUE}
   ORDER BY l.id FOR UPDATE OF l SKIP LOCKED),
forgotten AS (
  DELETE FROM delivery_pageread p USING picked WHERE p.line_id = picked.id AND picked.lease_until IS NULL)
UPDATE delivery_line l
   SET epoch = l.epoch + 1, worker = %s, lease_until = clock_timestamp() + make_interval(secs => %s)
  FROM picked
 WHERE l.id = picked.id
RETURNING l.id, l.lane, l.queue, l.epoch, l.last_sequence, l.head_id, l.failures, l.aside_next,
          picked.capacity, {SISTER}, picked.strands, picked.lease_until
"""

MEND: Final = f"""
WITH mine AS (
  SELECT l.id, l.last_sequence, l.head_id, i.since, l.lane = 'retry' AS is_apart,
         ARRAY[l.id, {SISTER}] AS both
    FROM unnest(%s::bigint[], %s::bigint[], %s::timestamptz[]) AS i (line_id, epoch, since)
    JOIN delivery_line l ON l.id = i.line_id AND l.epoch = i.epoch),
read AS (
  DELETE FROM delivery_pageread p USING mine m WHERE p.line_id = m.id RETURNING m.id AS line_id, p.delivery_ids),
sent AS MATERIALIZED (
  SELECT r.line_id, d.id, d.status, d.sequence, d.cancel_requested, d.line_id = r.line_id AS is_own
    FROM (SELECT DISTINCT line_id, unnest(delivery_ids) AS id FROM read) r
   CROSS JOIN LATERAL (
      SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
   WHERE d.sequence IS NOT NULL OR d.status = 'IN_FLIGHT'),
unknown AS (
  UPDATE delivery_open d SET status = 'PENDING', uncertain = true
    FROM sent WHERE sent.is_own AND sent.status = 'IN_FLIGHT' AND NOT sent.cancel_requested AND d.id = sent.id
     AND d.closed_on = '9999-12-31' RETURNING d.id, d.line_id),
gone AS (
  DELETE FROM delivery_open d USING sent
   WHERE sent.is_own AND sent.status = 'IN_FLIGHT' AND sent.cancel_requested AND d.id = sent.id
     AND d.closed_on = '9999-12-31'
  RETURNING d.id, d.message_id, d.line_id, d.subscription_id, d.group_id, 'CANCELLED' AS status, d.size, d.attempts,
            d.times_set_aside, d.due_at, d.sequence, true AS uncertain, d.cancel_requested,
            'cancelled while its outcome was unknown' AS reason, d.created_at, {CARRIED}),
filed AS ({FILE_GONE}),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT line_id, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'cancelled after an unclean end' FROM gone)
UPDATE delivery_line l
   SET last_sequence = CASE WHEN m.is_apart THEN m.last_sequence ELSE GREATEST(
         m.last_sequence,
         (SELECT max(sequence) FROM sent WHERE line_id = m.id),
         (SELECT max(f.sequence) FROM unnest(m.both) AS k (line_id) CROSS JOIN LATERAL (
           SELECT d.sequence FROM delivery_delivery d
            WHERE d.line_id = k.line_id AND d.sequence IS NOT NULL AND d.closed_on < '9999-12-31'
              -- filed on the day of the last renewal, or on the newest before it that had a partition
              AND d.closed_on >= COALESCE((SELECT max(day) FROM delivery_storageday
                                            WHERE day < (m.since AT TIME ZONE 'UTC')::date), '0001-01-01')
            ORDER BY d.sequence DESC LIMIT 1) f)) END,
       head_id = CASE WHEN NOT m.is_apart
                      THEN COALESCE((SELECT max(id) FROM unknown WHERE line_id = m.id), m.head_id) END
  FROM mine m
 WHERE l.id = m.id
RETURNING l.id, l.last_sequence, l.head_id
"""
"""What was under way is in one of the pages read since the last claim: the rest of the backlog is not looked at.

What has gone over to the subscriber's other line meanwhile belongs to that one, but for the number it was given here.
"""

MEND_SENDERS: Final = f"""
WITH mine AS (
  SELECT l.id FROM unnest(%s::bigint[], %s::bigint[]) AS i (line_id, epoch)
    JOIN delivery_line l ON l.id = i.line_id AND l.epoch = i.epoch),
read AS (
  DELETE FROM delivery_pageread p USING mine m WHERE p.line_id = m.id RETURNING m.id AS line_id, p.delivery_ids),
sent AS MATERIALIZED (
  SELECT d.id, d.cancel_requested
    FROM (SELECT DISTINCT line_id, unnest(delivery_ids) AS id FROM read) r
   CROSS JOIN LATERAL (
      SELECT * FROM delivery_open o
       WHERE o.id = r.id AND o.closed_on = '9999-12-31' AND o.line_id = r.line_id AND o.status = 'IN_FLIGHT'
       LIMIT 1) d),
unknown AS (
  UPDATE delivery_open d SET status = 'PENDING', uncertain = true
    FROM sent WHERE NOT sent.cancel_requested AND d.id = sent.id AND d.closed_on = '9999-12-31'
  RETURNING d.id, d.group_id),
gone AS (
  DELETE FROM delivery_open d USING sent
   WHERE sent.cancel_requested AND d.id = sent.id AND d.closed_on = '9999-12-31'
  RETURNING d.id, d.message_id, d.line_id, d.subscription_id, d.group_id, 'CANCELLED' AS status, d.size, d.attempts,
            d.times_set_aside, d.due_at, d.sequence, true AS uncertain, d.cancel_requested,
            'cancelled while its outcome was unknown' AS reason, d.created_at, {CARRIED}),
filed AS ({FILE_GONE})
UPDATE delivery_queuegroup g SET uncertain = true, first_id = i.id
  FROM (SELECT id, group_id FROM unknown UNION ALL SELECT NULL, group_id FROM gone) i
 WHERE g.id = i.group_id
"""
"""The same for QUEUE senders: each group that had a request under way begins with it, and says that it may be one."""

END_LEASES: Final = """
UPDATE delivery_line SET lease_until = clock_timestamp() - interval '1 ms'
 WHERE worker = %s AND lease_until >= clock_timestamp()
RETURNING id
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A line that this process may drive, under `epoch` and for as long as the lease lasts."""

    line_id: int
    lane: str
    queue: str
    """The Celery queue that tells of its work."""
    epoch: int
    last_sequence: int
    head_id: int | None
    failures: int
    aside_next: bool
    capacity: int
    """How many deliveries it may have in hand."""
    sister_id: int | None = None
    """The subscriber's other line: the retry line of a main line, and the other way round."""
    strands: int = 1
    """How many requests it may have under way: more than one where its order does not count (behaviour 4.13)."""


def claim(line_ids: Sequence[int], *, worker: str) -> list[Claim]:
    """Take those of the lines that are due and that nobody drives, under a new epoch each.

    A line whose last driver vanished is mended first: what it had under way goes first, with its number, flagged.
    """
    with transaction.atomic():
        taken = rows(CLAIM, [CAPACITY, sorted(line_ids), worker, LEASE_SECONDS])
        claims = {line_id: Claim(line_id, *columns) for line_id, *columns, _ in taken}
        abandoned = {line_id: lease_until for line_id, *_, lease_until in taken if lease_until}
        return [*_mended(claims, abandoned).values()]


def _mended(claims: dict[int, Claim], abandoned: dict[int, datetime]) -> dict[int, Claim]:
    senders = [line_id for line_id in abandoned if claims[line_id].lane == Lane.QUEUE]
    if senders:
        rows(MEND_SENDERS, [senders, [claims[line_id].epoch for line_id in senders]])
    abandoned = {line_id: since for line_id, since in abandoned.items() if line_id not in senders}
    if not abandoned:
        return claims
    columns = [[*abandoned], [claims[line_id].epoch for line_id in abandoned], [*abandoned.values()]]
    return claims | {
        line_id: replace(claims[line_id], last_sequence=last_sequence, head_id=head_id)
        for line_id, last_sequence, head_id in rows(MEND, columns)
    }


def end_leases_of(worker: str) -> int:
    """End what an earlier process of this name still held, so that its lines go on at once; return how many."""
    return len(rows(END_LEASES, [worker]))
