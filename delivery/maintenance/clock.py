"""Set back times that the database's clock has written while it was ahead: they hold no work for long (contract 5.9).

Each statement changes a slice of the times of one kind that lie further ahead than any of that kind can, and skips what
is locked. Other times that the clock writes hold nothing: when a message, an idempotency key or a callback expires.
"""

from typing import Final

from broker_project.core.db import rows_of_each
from delivery.believed_clock import DOUBT_SECONDS
from delivery.dispatch.claim import LONGEST_PAUSE
from delivery.filing import LINES_APART, subscriptions_with
from delivery.limits import (
    EXPIRED_SECONDS,
    LEASE_SECONDS,
    REFUSED_GROUP_SECONDS,
    SWEEP_SLICE,
    UNADDRESSED_SECONDS,
)
from delivery.retry import MAX_PAUSE_SECONDS
from subscriptions.retry_policies import TEAMFORGE

MAX_GROUP_PAUSE_SECONDS: Final = max(MAX_PAUSE_SECONDS, REFUSED_GROUP_SECONDS, EXPIRED_SECONDS, UNADDRESSED_SECONDS)
FAR_GROUPS: Final = 500
"""The groups that wait longest are looked at."""
IN: Final = "(SELECT clock_timestamp() + make_interval(secs => {}))"
"""SQL for the time that lies the given number of seconds ahead."""

RETRIES: Final = f"""
WITH RECURSIVE {LINES_APART},
far AS MATERIALIZED (
  SELECT d.id
    FROM apart a
    JOIN subscriptions_subscription s ON s.id = a.subscription_id
    LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
   CROSS JOIN LATERAL {IN.format(LONGEST_PAUSE)} latest (at)
   CROSS JOIN LATERAL (
     SELECT d.id FROM delivery_open d
      WHERE d.subscription_id = a.subscription_id AND d.line_id = a.line_id AND d.due_at > latest.at
      ORDER BY d.due_at, d.id LIMIT {SWEEP_SLICE} FOR UPDATE SKIP LOCKED) d
   LIMIT {SWEEP_SLICE})
UPDATE delivery_open d SET due_at = clock_timestamp()
 WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(SELECT id FROM far))
RETURNING d.id
"""
"""Deferred deliveries that wait for longer than the longest pause of their policy are due at once."""

GROUPS: Final = f"""
UPDATE delivery_queuegroup SET due_at = clock_timestamp()
 WHERE id = ANY (ARRAY(
   SELECT g.id FROM (
     SELECT id FROM delivery_queuegroup WHERE waits_for = 'RETRY' ORDER BY due_at DESC LIMIT {FAR_GROUPS}) l
    CROSS JOIN LATERAL (
      SELECT id FROM delivery_queuegroup
       WHERE id = l.id AND waits_for = 'RETRY' AND due_at > {IN.format(MAX_GROUP_PAUSE_SECONDS)}
       LIMIT 1 FOR UPDATE SKIP LOCKED) g))
RETURNING id
"""
"""Not those that are delayed: their time is their publisher's. Read by an index that has none of them."""

LEASES: Final = f"""
UPDATE delivery_line SET lease_until = {IN.format(LEASE_SECONDS)}
 WHERE id = ANY (ARRAY(
   SELECT id FROM delivery_line WHERE lease_until > {IN.format(LEASE_SECONDS)}
    ORDER BY lease_until LIMIT {SWEEP_SLICE} FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id
"""
"""A lease is not ended: its worker may be alive."""

FETCHES: Final = f"""
WITH RECURSIVE {subscriptions_with("boxes", "fetched_until IS NOT NULL")}
UPDATE delivery_open d SET fetched_until = clock_timestamp() + make_interval(secs => d.fetched_seconds)
 WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(
   SELECT d.id FROM boxes b
     JOIN subscriptions_subscription s ON s.id = b.id
     JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
    CROSS JOIN LATERAL (
      SELECT d.id FROM delivery_open d
       WHERE d.subscription_id = s.id AND d.fetched_until > {IN.format("u.ack_seconds")}
         AND d.fetched_until > clock_timestamp() + make_interval(secs => d.fetched_seconds)
       ORDER BY d.fetched_until, d.id LIMIT {SWEEP_SLICE} FOR UPDATE SKIP LOCKED) d
    LIMIT {SWEEP_SLICE}))
RETURNING d.id
"""
"""A fetched message times out when its client was promised, counted from now."""

PROBES: Final = f"""
WITH far AS MATERIALIZED (
  SELECT s.id
    FROM subscriptions_subscription s LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
   CROSS JOIN LATERAL {IN.format(f"COALESCE(p.probe_seconds, {TEAMFORGE.probe_seconds})")} latest (at)
   WHERE s.probe_due_at > {IN.format(0)} AND s.probe_due_at > latest.at AND s.status <> 'INACTIVE'
   ORDER BY s.probe_due_at LIMIT {SWEEP_SLICE} FOR NO KEY UPDATE OF s SKIP LOCKED)
UPDATE subscriptions_subscription s SET probe_due_at = clock_timestamp() FROM far WHERE s.id = far.id
RETURNING s.id
"""

REPLAYS: Final = """
UPDATE delivery_replay
   SET updated_at = LEAST(updated_at, clock_timestamp()), sliced_at = LEAST(sliced_at, clock_timestamp())
 WHERE id = ANY (ARRAY(
   SELECT id FROM delivery_replay
    WHERE finished_at IS NULL AND GREATEST(updated_at, sliced_at) > (SELECT clock_timestamp())
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id
"""
"""Their pace, and their back-off after a failure, count from times that are past."""


HOLDS: Final = f"""
UPDATE delivery_hold SET since = clock_timestamp()
 WHERE delivery_id = ANY (ARRAY(
   SELECT delivery_id FROM delivery_hold WHERE since > {IN.format(0)} LIMIT {SWEEP_SLICE} FOR UPDATE SKIP LOCKED))
RETURNING delivery_id
"""
"""A line is announced, and an alert fires, so long after this (contract 5.7, 11.8)."""

JUMPS: Final = f"DELETE FROM delivery_clockjump WHERE believed_at > {IN.format(2 * DOUBT_SECONDS)} RETURNING id"
"""A jump that was undone, and not by a clock that ticks back a little: else it would be doubted once its time comes."""

STATEMENTS: Final = (RETRIES, GROUPS, LEASES, FETCHES, PROBES, REPLAYS, HOLDS, JUMPS)


def set_back_times() -> int:
    """Set back what lies too far ahead; return how many times did."""
    return sum(map(len, rows_of_each([(one, ()) for one in STATEMENTS])))
