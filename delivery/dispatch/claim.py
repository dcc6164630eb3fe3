"""Claim lines for a worker: the lease, the fencing epoch, and recovery after a crash (contract 4.11)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from broker_project.core import boot_clock
from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.db import RowLocked, rows
from delivery.dispatch.diversion import IS_DIVERTED, give_probes
from delivery.filing import CANCELLED_UNKNOWN_OUTCOME, FILE_GONE, HISTORY_LINE, LINE, SHORT_LOCK_WAIT
from delivery.limits import (
    CAPACITY,
    LEASE_SECONDS,
    MAX_CRASHES,
    MAX_LINE_BYTES,
    MAX_STEP_SECONDS,
    RETRY_LINE_REST_SECONDS,
)
from delivery.models import Lane
from delivery.retry import MAX_PAUSE_SECONDS, MAX_RETRY_AFTER_SECONDS

LONGEST_PAUSE: Final = f"""
  GREATEST(COALESCE(p.max_delay_seconds, {MAX_PAUSE_SECONDS}),
           CASE WHEN p.respect_retry_after IS NOT FALSE THEN {MAX_RETRY_AFTER_SECONDS} END)"""
"""The longest pause, in seconds, that a retry policy `p` gives; without one the default policy."""

HELD_DELIVERY: Final = """
    LEFT JOIN LATERAL (
      SELECT * FROM delivery_open o WHERE o.id = h.delivery_id AND o.closed_on = '9999-12-31' LIMIT 1) d ON true
    LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
    LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id"""
"""Joins the delivery of a hold `h`, with its subscription and subscriber; a reply has none."""

HOLD_RESTS: Final = f"""
      (h.due_at > clock_timestamp() AND d.id IS NOT NULL
       AND (s.id IS NULL OR s.is_sending AND u.status = 'ACTIVE' AND s.version + u.version = h.config_version)
       AND h.due_at <= clock_timestamp() + make_interval(secs => (
         SELECT GREATEST({LONGEST_PAUSE}, 1 / s.rate_limit)
           FROM (VALUES (s.retry_policy_id)) AS x (id) LEFT JOIN subscriptions_retrypolicy p ON p.id = x.id)))"""
"""Whether a hold `h` is not due: its pause has not ended, nor has its configuration changed.

Due is also what would wait longer than for any pause or rate: then a clock was ahead when that was written (5.9).
"""

LINE_HOLDS: Final = f"""
  CROSS JOIN LATERAL (
    SELECT count(*) AS number, count(*) FILTER (WHERE {HOLD_RESTS}) AS resting
      FROM delivery_hold h {HELD_DELIVERY}
     WHERE h.line_id = l.id) holds"""
"""Counts the holds of a line `l`."""

CONCURRENCY: Final = "CASE WHEN l.lane = 'main' AND u.processing <> 'SERIAL' THEN u.concurrency ELSE 1 END"
"""How many requests a line `l` may have in flight, or keys held; `u` is its subscriber."""

LINE_IS_DUE: Final = f"""
  ((l.due_at > clock_timestamp() AND l.due_at <= clock_timestamp() + interval '{RETRY_LINE_REST_SECONDS} s') IS NOT TRUE
   AND holds.resting < {CONCURRENCY})"""
"""A line `l` rests until its rest ends, or until one of its `holds` is due if as many are held as it may send."""

LEASE_IS_OVER: Final = "l.lease_until < LEAST(clock_timestamp(), to_timestamp(%s))"
"""Whether the lease of a line `l` has run out, by the `lease_clock` too."""

SIBLING_LINE: Final = """(
  SELECT r.id FROM delivery_line r
   WHERE r.subscriber_id = l.subscriber_id AND r.lane = CASE l.lane WHEN 'main' THEN 'retry' ELSE 'main' END
   ORDER BY r.epoch DESC LIMIT 1)"""

CLAIM: Final = f"""
WITH picked AS (
  SELECT l.id, l.epoch, l.lease_until, COALESCE(u.max_queued_to_send, {CAPACITY}) AS capacity,
         COALESCE(u.max_queued_bytes, {MAX_LINE_BYTES}) AS max_bytes,
         COALESCE(u.refill_percent, 0) / 100.0::float8 AS refill_level,
         {CONCURRENCY} AS concurrency, u.processing = 'KEYED' AND {CONCURRENCY} > 1 AS is_keyed, holds.number AS holds
    FROM unnest(%s::bigint[]) AS w (id) CROSS JOIN {LINE.format("w.id")} n
    JOIN delivery_line l ON l.id = n.id AND l.epoch = n.epoch
    LEFT JOIN subscriptions_subscriber u ON u.id = l.subscriber_id {LINE_HOLDS}
   WHERE {SHORT_LOCK_WAIT}
     AND CASE WHEN l.lease_until IS NULL THEN {LINE_IS_DUE}
                                 ELSE {LEASE_IS_OVER} END
   ORDER BY l.id FOR UPDATE OF l SKIP LOCKED),
forgotten AS (
  DELETE FROM delivery_pageread p USING picked
   WHERE p.line_id = ANY (ARRAY[picked.id]) AND p.epoch BETWEEN picked.epoch - 1 AND picked.epoch
     AND picked.lease_until IS NULL)
UPDATE delivery_line l
   SET epoch = l.epoch + 1, worker = %s, lease_until = clock_timestamp() + make_interval(secs => %s)
  FROM picked
 WHERE l.id = picked.id AND l.epoch = picked.epoch
RETURNING l.id, l.lane, l.queue, l.epoch, l.last_sequence, l.deferred_next,
          picked.capacity, picked.max_bytes, picked.refill_level, {SIBLING_LINE}, picked.concurrency,
          COALESCE(picked.is_keyed, false), picked.holds, picked.lease_until, {IS_DIVERTED}
"""

HOLDS: Final = f"""
SELECT h.line_id, h.delivery_id, COALESCE(d.ordering_key, ''), h.failures,
       CASE WHEN {HOLD_RESTS} THEN extract(epoch FROM h.due_at - clock_timestamp())::float8 ELSE 0 END
  FROM delivery_hold h {HELD_DELIVERY}
 WHERE h.line_id = ANY(%s) ORDER BY h.delivery_id
"""

ENDED_PAUSES: Final = f"""
SELECT i.id FROM unnest(%s::bigint[]) AS i (id)
  LEFT JOIN delivery_hold h ON h.delivery_id = i.id {HELD_DELIVERY}
 WHERE ({HOLD_RESTS}) IS NOT TRUE
"""

RENEW: Final = """
WITH wanted AS MATERIALIZED (
  SELECT * FROM unnest(%s::bigint[], %s::bigint[]) AS w (line_id, epoch)),
free AS MATERIALIZED (
  SELECT l.id, l.epoch FROM delivery_line l JOIN wanted w ON l.id = w.line_id AND l.epoch = w.epoch
   WHERE l.lease_until IS NOT NULL FOR NO KEY UPDATE OF l SKIP LOCKED),
renewed AS (
  UPDATE delivery_line l SET lease_until = clock_timestamp() + make_interval(secs => %s)
    FROM free f WHERE l.id = f.id AND l.epoch = f.epoch)
SELECT l.id, f.id IS NOT NULL
  FROM delivery_line l JOIN wanted w ON l.id = w.line_id AND l.epoch = w.epoch LEFT JOIN free f ON f.id = l.id
"""
"""Nobody waits here. What is read without a lock may be an epoch that is over: a line is ours only if it was renewed.

A line that was released, in a commit that was not heard, stays so.
"""

END_LEASES: Final = """
UPDATE delivery_line SET lease_until = clock_timestamp() - interval '1 ms'
 WHERE id = ANY (ARRAY(
   SELECT id FROM delivery_line WHERE worker = %s AND lease_until >= clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id
"""
"""What somebody has locked is recovered once its lease has run out: the worker begins without it."""


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
  UPDATE delivery_open d
     SET status = 'PENDING', uncertain = true,
         crash_count = LEAST(d.crash_count + 1, {MAX_CRASHES})
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
  UPDATE delivery_open d
     SET status = 'PENDING', uncertain = true,
         crash_count = LEAST(d.crash_count + 1, {MAX_CRASHES})
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


@dataclass(frozen=True, slots=True)
class ActiveHold:
    """A delivery of a claimed line that must not be overtaken, as it is in the database, or is to be written there."""

    line_id: int
    delivery_id: int
    ordering_key: str
    failures: int
    """Unsuccessful tries in a row."""
    pause: float | None
    """Seconds until it is tried again; None: it holds nothing up any more."""
    until: float
    """When that is, as time since boot."""
    reason: str = ""
    """Empty: this time it has not failed."""
    config_version: int = 0
    """Of its destination."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A line that this worker may run, under `epoch`, while its lease lasts."""

    line_id: int
    lane: str
    queue: str
    """The Celery queue that tells of its work."""
    epoch: int
    last_sequence: int
    deferred_next: bool
    capacity: int
    """How many deliveries it may hold."""
    max_bytes: int = MAX_LINE_BYTES
    """How many bytes of bodies it may hold."""
    refill_level: float = 0.0
    """The share of its last page at which it reads the next one; 0: when none is left (contract 11.1)."""
    sibling_line_id: int | None = None
    """The subscriber's other line: the retry line of a main line, and the other way round."""
    concurrency: int = 1
    """How many requests it may have in flight: more than one if its order as a whole does not count (4.13, 4.18)."""
    is_keyed: bool = False
    """Whether of these no two have the same ordering key (contract 4.18)."""
    holds: Sequence[ActiveHold] = ()
    """Oldest first."""


def claim(line_ids: Sequence[int], *, worker: str) -> list[Claim]:
    """Claim those of the lines that are due and have no worker, under a new epoch each.

    A line whose last worker vanished is recovered first: its requests in flight are sent first, with their numbers,
    flagged. Where somebody has locked one of these deliveries, the line stays as it is.
    """
    try:
        return _claim(line_ids, worker)
    except RowLocked:
        claims: list[Claim] = []
        for line_id in line_ids:
            with suppress(RowLocked):
                claims += _claim([line_id], worker)
        return claims


def lease_clock() -> float:
    """Return what the database's clock would say if it had not jumped ahead: a jump ends no lease.

    A lease that was given before a jump has ended on its worker's clock once no jump is looked for any more. Nobody
    needs to see smaller steps than the margin by which requests end before their lease.
    """
    return DATABASE_CLOCK.without_jumps(LEASE_SECONDS) + MAX_STEP_SECONDS


def _claim(line_ids: Sequence[int], worker: str) -> list[Claim]:
    with transaction.atomic():
        taken = rows(CLAIM, [sorted(line_ids), lease_clock(), worker, LEASE_SECONDS])
        claims = {line_id: Claim(line_id, *columns) for line_id, *columns, _, _, _ in taken}
        abandoned = [(claims[line_id], lease_until) for line_id, *_, lease_until, _ in taken if lease_until]
        numbers = _recover(abandoned)
        if diverted := [line_id for line_id, *_, is_diverted in taken if is_diverted]:
            with suppress(RowLocked), transaction.atomic():  # somebody has locked what is to be tried: the next claim
                numbers += give_probes(diverted)
        for line_id, last_sequence in numbers:
            claims[line_id] = replace(claims[line_id], last_sequence=last_sequence)
        held = [line_id for line_id, *_, holds, lease_until, _ in taken if holds or lease_until]
        holds_of: dict[int, list[ActiveHold]] = defaultdict(list)
        for line_id, *columns, pause in rows(HOLDS, [held]) if held else ():
            hold: Any = (line_id, *columns, pause, boot_clock.since_boot() + pause)
            holds_of[line_id].append(ActiveHold(*hold))
        return [
            replace(one, holds=holds_of[line_id]) if line_id in holds_of else one for line_id, one in claims.items()
        ]


def _recover(abandoned: Sequence[tuple[Claim, datetime]]) -> list[tuple[int, int]]:
    """Recover lines just claimed, each with the lease that ran out; return the last numbers of those that give numbers.

    What was in flight is held, and due.
    """
    senders = [(one.line_id, one.epoch) for one, _ in abandoned if one.lane == Lane.QUEUE]
    others = [(one.line_id, one.epoch, since) for one, since in abandoned if one.lane != Lane.QUEUE]
    if senders:
        rows(RECOVER_SENDERS, [[*column] for column in zip(*senders, strict=True)])
    recovered: list[tuple[int, int]] = (
        rows(RECOVER_LINES, [[*column] for column in zip(*others, strict=True)]) if others else []
    )
    return recovered


def ended_pauses(delivery_ids: Sequence[int]) -> list[int]:
    """Return which of these held deliveries are due: their pause is over, also because a person has ended it.

    So are those whose subscription has changed since, or that are gone.
    """
    return [delivery_id for (delivery_id,) in rows(ENDED_PAUSES, [delivery_ids])]


def renew(epochs: Mapping[int, int]) -> dict[int, bool]:
    """Let the leases of lines last on; return those that are still ours, and whether each has been renewed.

    One that has not is locked by somebody else.
    """
    return dict(rows(RENEW, [[*epochs.keys()], [*epochs.values()], LEASE_SECONDS]))


def end_leases_of(worker: str) -> int:
    """End what an earlier process of this name still held, so that its lines go on at once; return how many."""
    return len(rows(END_LEASES, [worker]))
