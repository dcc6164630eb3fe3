"""One step of a replay or backfill job, how jobs end, and how they walk through many rows and count them."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, LiteralString, NamedTuple

from django.db import Error, transaction

from broker_project.core.db import forget_connection, rows
from delivery.filing import MAIN_LINE

TRIES: Final = 10
"""Consecutive failures after which a job ends."""

DUE: Final = "(failures = 0 OR updated_at < clock_timestamp() - make_interval(secs => 2 ^ LEAST(failures, 6)))"
"""Back-off after a failure: ten failures take minutes, however many workers try."""

SLICE: Final = 1000
"""Rows read, and deliveries created, in one transaction."""
COUNT_SLICE: Final = 10_000
"""Rows counted in one statement: periodic jobs wait for it."""
MAX_COUNTED: Final = 500_000
"""Rows that are counted while a client waits."""
LARGEST_ID: Final = 2**63 - 1

FEWEST: Final = 10
"""Rows of each arm, even if there are many arms."""

WALK: Final = f"""
WITH met AS MATERIALIZED ({{arms}}),
full_arms AS (SELECT max(id) AS last_id FROM met GROUP BY arm HAVING count(*) = %(each)s),
horizon AS (SELECT min(last_id) AS last_id, count(*) = 0 AS is_end FROM full_arms),
stretch AS (SELECT m.* FROM met m CROSS JOIN horizon h WHERE m.id <= COALESCE(h.last_id, {LARGEST_ID}))"""

ARE_UNFINISHED: Final = "EXISTS (SELECT FROM delivery_replay WHERE finished_at IS NULL)"

FAILED: Final = """
UPDATE delivery_replay
   SET failures = failures + 1, updated_at = clock_timestamp(),
       reason = CASE state WHEN 'CANCELLING' THEN reason ELSE 'it failed: ' || %s END
 WHERE id = %s AND finished_at IS NULL RETURNING failures
"""
"""Keeps the reason of a job that is being cancelled, which continues."""


def step(take: LiteralString, do: Callable[..., object]) -> int:
    """Run one step of a job; return 1, or 0 if there is none.

    `take` locks a job that is `DUE` and returns its id and what `do` needs. A step that fails is retried later and
    delays no other job; after `TRIES` failures the job ends.
    """
    replay_id = None
    try:
        with transaction.atomic():
            for replay_id, *rest in rows(take):
                do(replay_id, *rest)
    except Exception as failure:
        if replay_id is not None:
            forget_connection()
            text = str(failure).partition("\n")[0] or type(failure).__name__
            with contextlib.suppress(Error), transaction.atomic():  # if that fails too, nothing is recorded
                for (failures,) in rows(FAILED, [text, replay_id]):
                    if failures >= TRIES:
                        fail(replay_id, reason=f"it failed {failures} times: {text}")
        raise
    return int(replay_id is not None)


FAIL: Final = """
WITH failed AS (
  UPDATE delivery_replay
     SET state = 'FAILED', finished_at = clock_timestamp(), reason = %(reason)s, failures = 0,
         updated_at = clock_timestamp()
   WHERE {which} AND finished_at IS NULL AND state <> 'CANCELLING'
  RETURNING kind, subscription_id)
UPDATE subscriptions_subscription s
   SET paused_reason = 'its backfill failed: ' || %(reason)s, updated_at = clock_timestamp()
  FROM failed WHERE failed.kind = 'BACKFILL' AND s.id = failed.subscription_id AND s.paused_by = 'BACKFILL'
"""
"""The subscription of a backfill stays paused until somebody resumes it (contract 1.6)."""

ENDED: Final = f"""
WITH ended AS (
  UPDATE delivery_replay
     SET state = CASE state WHEN 'CANCELLING' THEN 'CANCELLED' WHEN 'FILING' THEN 'DONE' END,
         updated_at = clock_timestamp(), finished_at = clock_timestamp()
   WHERE id = %s RETURNING subscription_id)
UPDATE subscriptions_subscription s
   SET paused_since = NULL, paused_by = '', paused_reason = '', half_open = false, probe_due_at = NULL,
       updated_at = clock_timestamp()
  FROM ended WHERE s.id = ended.subscription_id AND s.paused_by = 'BACKFILL'
RETURNING (SELECT l.id FROM {MAIN_LINE.format("s.subscriber_id")} l)
"""
"""Returns the main line of a subscription that is resumed."""


def fail(replay_id: int, *, reason: str) -> None:
    """End a job as FAILED unless it has ended or is being cancelled; what it has created stays."""
    rows(FAIL.format(which="id = %(id)s"), {"id": replay_id, "reason": reason})


class Count(NamedTuple):
    """The wanted rows that a walk has met."""

    total: int
    by_status: Mapping[str, int]
    """Without zeros; empty for a backfill, whose messages have no status."""
    last_id: int
    """Position reached."""
    complete: bool
    """Whether nothing is left; False: only the oldest were counted."""


def count_all(counted: Callable[[int], Count], cursor: int = 0) -> Count:
    """Count a slice after the other from `cursor` on, up to `MAX_COUNTED` rows."""
    total, by_status = 0, Counter[str]()
    part = Count(0, {}, cursor, complete=False)
    for _ in range(MAX_COUNTED // COUNT_SLICE):
        part = counted(part.last_id)
        total += part.total
        by_status.update(part.by_status)
        if part.complete:
            break
    return part._replace(total=total, by_status=dict(by_status))


def each_of(limit: int, arms: int) -> int:
    """Return the rows to read of each arm, for about `limit` rows in all."""
    return min(limit, max(FEWEST, 2 * limit // max(arms, 1)))
