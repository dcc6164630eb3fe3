"""Recover lines whose worker vanished: requests in flight are sent first, numbered and flagged (contract 4.11)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from broker_project.core.db import rows
from delivery.filing import CANCELLED_UNKNOWN_OUTCOME, FILE_GONE, HISTORY_LINE

SIBLING_LINE: Final = "(SELECT r.id FROM delivery_line r WHERE r.subscriber_id = l.subscriber_id AND r.id <> l.id)"

RECOVER_LINES: Final = f"""
WITH mine AS (
  SELECT l.id, l.last_sequence, i.since, l.lane = 'retry' AS in_retry_line,
         ARRAY[l.id, {SIBLING_LINE}] AS both
    FROM unnest(%s::bigint[], %s::bigint[], %s::timestamptz[]) AS i (line_id, epoch, since)
    JOIN delivery_line l ON l.id = i.line_id AND l.epoch = i.epoch),
read AS (
  DELETE FROM delivery_pageread p USING mine m WHERE p.line_id = ANY (ARRAY[m.id])
  RETURNING m.id AS line_id, p.delivery_ids),
sent AS MATERIALIZED (
  SELECT r.line_id, d.id, d.sequence, d.cancel_requested,
         d.line_id = r.line_id AND d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AS was_in_flight
    FROM (SELECT DISTINCT line_id, unnest(delivery_ids) AS id FROM read) r
   CROSS JOIN LATERAL (
      SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
   WHERE d.sequence IS NOT NULL OR d.status = 'IN_FLIGHT'),
unknown AS (
  UPDATE delivery_open d SET status = 'PENDING', uncertain = true
    FROM sent WHERE sent.was_in_flight AND NOT sent.cancel_requested AND d.id = ANY (ARRAY[sent.id])
  RETURNING d.id, d.line_id),
held AS (
  INSERT INTO delivery_hold (delivery_id, line_id)
  SELECT id, line_id FROM unknown WHERE line_id IN (SELECT id FROM mine WHERE NOT in_retry_line)
      ON CONFLICT (delivery_id) DO UPDATE SET due_at = EXCLUDED.due_at),
gone AS (
  DELETE FROM delivery_open d USING sent
   WHERE sent.was_in_flight AND sent.cancel_requested AND d.id = ANY (ARRAY[sent.id])
  RETURNING {CANCELLED_UNKNOWN_OUTCOME}),
filed AS ({FILE_GONE}),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'cancelled after an unclean end'
    FROM gone)
UPDATE delivery_line l
   SET last_sequence = CASE WHEN m.in_retry_line THEN m.last_sequence ELSE GREATEST(
         m.last_sequence,
         (SELECT max(sequence) FROM sent WHERE line_id = m.id),
         (SELECT max(f.sequence) FROM unnest(m.both) AS k (line_id) CROSS JOIN LATERAL (
           SELECT d.sequence FROM delivery_delivery d
            WHERE d.line_id = k.line_id AND d.sequence IS NOT NULL AND d.closed_on < '9999-12-31'
              -- filed on the day of the last renewal, or on the newest before it that had a partition
              AND d.closed_on >= COALESCE((SELECT max(day) FROM delivery_storageday
                                            WHERE day < (m.since AT TIME ZONE 'UTC')::date), '0001-01-01')
            ORDER BY d.sequence DESC LIMIT 1) f)) END
  FROM mine m
 WHERE l.id = m.id
RETURNING l.id, l.last_sequence
"""
"""What was in flight is in one of the pages noted since the last claim: the rest of the backlog is not read.

Not what a client has fetched since: that is the client's, until it times out.

What has gone over to the subscriber's other line meanwhile belongs to that one, but for the number it was given here.
"""

RECOVER_SENDERS: Final = f"""
WITH mine AS (
  SELECT l.id FROM unnest(%s::bigint[], %s::bigint[]) AS i (line_id, epoch)
    JOIN delivery_line l ON l.id = i.line_id AND l.epoch = i.epoch),
read AS (
  DELETE FROM delivery_pageread p USING mine m WHERE p.line_id = ANY (ARRAY[m.id])
  RETURNING m.id AS line_id, p.delivery_ids),
sent AS MATERIALIZED (
  SELECT d.id, d.cancel_requested
    FROM (SELECT DISTINCT line_id, unnest(delivery_ids) AS id FROM read) r
   CROSS JOIN LATERAL (
      SELECT * FROM delivery_open o
       WHERE o.id = r.id AND o.closed_on = '9999-12-31' AND o.line_id = r.line_id AND o.status = 'IN_FLIGHT'
       LIMIT 1) d),
unknown AS (
  UPDATE delivery_open d SET status = 'PENDING', uncertain = true
    FROM sent WHERE NOT sent.cancel_requested AND d.id = ANY (ARRAY[sent.id])
  RETURNING d.id, d.group_id),
gone AS (
  DELETE FROM delivery_open d USING sent
   WHERE sent.cancel_requested AND d.id = ANY (ARRAY[sent.id])
  RETURNING {CANCELLED_UNKNOWN_OUTCOME}),
filed AS ({FILE_GONE})
UPDATE delivery_queuegroup g SET uncertain = true, first_id = i.id
  FROM (SELECT id, group_id FROM unknown UNION ALL SELECT NULL, group_id FROM gone) i
 WHERE g.id = ANY (ARRAY[i.group_id])
"""
"""The same for QUEUE senders: each group that had a request in flight begins with it, flagged."""


def recover_lines(abandoned: Sequence[tuple[int, int, datetime]]) -> list[tuple[int, int]]:
    """Recover lines just claimed, by epoch and the lease that ran out; return the last number of each.

    What was in flight is held, and due.
    """
    recovered: list[tuple[int, int]] = (
        rows(RECOVER_LINES, [[*column] for column in zip(*abandoned, strict=True)]) if abandoned else []
    )
    return recovered


def recover_senders(abandoned: Sequence[tuple[int, int]]) -> None:
    """Recover lines of QUEUE senders just claimed, by epoch."""
    if abandoned:
        rows(RECOVER_SENDERS, [[*column] for column in zip(*abandoned, strict=True)])
