"""Claim lines for a worker: the lease and the fencing epoch."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch.recovery import SIBLING_LINE, recover_lines, recover_senders
from delivery.limits import CAPACITY, LEASE_SECONDS, RETRY_LINE_REST_SECONDS, SWEEP_SLICE
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

CLAIM: Final = f"""
WITH picked AS (
  SELECT l.id, l.lease_until, COALESCE(u.max_queued_to_send, %s) AS capacity,
         {CONCURRENCY} AS concurrency, u.processing = 'KEYED' AND {CONCURRENCY} > 1 AS is_keyed, holds.number AS holds
    FROM delivery_line l LEFT JOIN subscriptions_subscriber u ON u.id = l.subscriber_id {LINE_HOLDS}
   WHERE l.id = ANY(%s) AND CASE WHEN l.lease_until IS NULL THEN {LINE_IS_DUE}
                                 ELSE l.lease_until < clock_timestamp() END
   ORDER BY l.id FOR UPDATE OF l SKIP LOCKED),
forgotten AS (
  DELETE FROM delivery_pageread p USING picked WHERE p.line_id = ANY (ARRAY[picked.id]) AND picked.lease_until IS NULL)
UPDATE delivery_line l
   SET epoch = l.epoch + 1, worker = %s, lease_until = clock_timestamp() + make_interval(secs => %s)
  FROM picked
 WHERE l.id = picked.id
RETURNING l.id, l.lane, l.queue, l.epoch, l.last_sequence, l.deferred_next,
          picked.capacity, {SIBLING_LINE}, picked.concurrency, COALESCE(picked.is_keyed, false), picked.holds,
          picked.lease_until
"""

HOLDS: Final = f"""
SELECT h.line_id, h.delivery_id, COALESCE(d.ordering_key, ''), h.failures,
       CASE WHEN {HOLD_RESTS} THEN extract(epoch FROM h.due_at - clock_timestamp())::float8 ELSE 0 END
  FROM delivery_hold h {HELD_DELIVERY}
 WHERE h.line_id = ANY(%s) ORDER BY h.delivery_id
"""

RENEW: Final = """
WITH wanted AS MATERIALIZED (
  SELECT * FROM unnest(%s::bigint[], %s::bigint[]) AS w (line_id, epoch)),
free AS MATERIALIZED (
  SELECT l.id FROM delivery_line l JOIN wanted w ON l.id = w.line_id AND l.epoch = w.epoch
   WHERE l.lease_until IS NOT NULL FOR NO KEY UPDATE OF l SKIP LOCKED),
renewed AS (
  UPDATE delivery_line l SET lease_until = clock_timestamp() + make_interval(secs => %s) FROM free f WHERE l.id = f.id)
SELECT l.id, f.id IS NOT NULL
  FROM delivery_line l JOIN wanted w ON l.id = w.line_id AND l.epoch = w.epoch LEFT JOIN free f ON f.id = l.id
"""
"""Nobody waits here. What is read without a lock may be an epoch that is over: a line is ours only if it was renewed.

A line that was released, in a commit that was not heard, stays so.
"""

GIVE_KEYS: Final = f"""
UPDATE delivery_open SET ordering_key = ''
 WHERE closed_on = '9999-12-31' AND id = ANY (ARRAY(
   SELECT d.id FROM delivery_line l JOIN subscriptions_subscriber u ON u.id = l.subscriber_id
     JOIN subscriptions_subscription s ON s.subscriber_id = u.id
    CROSS JOIN LATERAL (
      SELECT d.id FROM delivery_open d
       WHERE d.subscription_id = s.id AND d.waits_for = 'TURN' AND d.ordering_key IS NULL
       ORDER BY d.id LIMIT {SWEEP_SLICE}) d
    WHERE l.id = ANY(%s) AND u.updated_at > clock_timestamp() - interval '1 hour'))
"""
"""What was published before its subscriber named an ordering key has the empty one: else no page would find it."""

END_LEASES: Final = """
UPDATE delivery_line SET lease_until = clock_timestamp() - interval '1 ms'
 WHERE worker = %s AND lease_until >= clock_timestamp()
RETURNING id
"""


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
    """The same as monotonic time."""
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
    """How many deliveries it may have in hand."""
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
    flagged.
    """
    with transaction.atomic():
        taken = rows(CLAIM, [CAPACITY, sorted(line_ids), worker, LEASE_SECONDS])
        if keyed := [line_id for line_id, *_, is_keyed, _, _ in taken if is_keyed]:
            rows(GIVE_KEYS, [keyed])
        claims = {line_id: Claim(line_id, *columns) for line_id, *columns, _, _ in taken}
        abandoned = [(claims[line_id], lease_until) for line_id, *_, lease_until in taken if lease_until]
        recover_senders([(one.line_id, one.epoch) for one, _ in abandoned if one.lane == Lane.QUEUE])
        others = [(one.line_id, one.epoch, since) for one, since in abandoned if one.lane != Lane.QUEUE]
        for line_id, last_sequence in recover_lines(others):
            claims[line_id] = replace(claims[line_id], last_sequence=last_sequence)
        held = [line_id for line_id, *_, holds, lease_until in taken if holds or lease_until]
        holds_of: dict[int, list[ActiveHold]] = defaultdict(list)
        for line_id, *columns, pause in rows(HOLDS, [held]) if held else ():
            hold: Any = (line_id, *columns, pause, time.monotonic() + pause)
            holds_of[line_id].append(ActiveHold(*hold))
        return [
            replace(one, holds=holds_of[line_id]) if line_id in holds_of else one for line_id, one in claims.items()
        ]


def renew(epochs: Mapping[int, int]) -> dict[int, bool]:
    """Let the leases of lines last on; return those that are still ours, and whether each has been renewed.

    One that has not is locked by somebody else.
    """
    return dict(rows(RENEW, [[*epochs.keys()], [*epochs.values()], LEASE_SECONDS]))


def end_leases_of(worker: str) -> int:
    """End what an earlier process of this name still held, so that its lines go on at once; return how many."""
    return len(rows(END_LEASES, [worker]))
