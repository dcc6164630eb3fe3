"""Replays: count and resend many deliveries, a slice at a time (contract 5.8)."""

import datetime as dt
from typing import Any, Final, LiteralString, NamedTuple

from django.conf import settings
from django.db import transaction

from broker_project.core.db import RowLocked, rows
from delivery.models import Replay, ReplayState
from delivery.replay import job_steps
from delivery.replay.eligibility import Selection
from delivery.replay.job_steps import DUE, FEWEST, SLICE, WALK, Count, count_all, each_of, step
from delivery.replay.resend import FAMILY, ONE_AT_A_TIME, SentDelivery, create_deliveries
from subscriptions.edit import LOCK_TIMEOUT, WAIT_FOR_PUBLISHERS, StillInUse

IN_TIME: Final = """
       {row}.status = ANY(%(statuses)s::text[]) AND {row}.finished_at <= %(until)s::timestamptz
       AND {row}.created_at >= %(begin)s::timestamptz AND {row}.created_at < %(end)s::timestamptz"""
AGAIN: Final = """,
again AS MATERIALIZED (
  SELECT n.resubmit_of FROM delivery_delivery n WHERE n.resubmit_of = ANY (ARRAY(SELECT id FROM stretch)))"""
"""Deliveries that were sent again are left out, or each failing replay would double the next."""

COLUMNS: Final = """d.id, d.message_id, d.subscription_id, d.group_id, d.ordering_key, d.status, d.resubmit_of,
       d.created_at, d.finished_at"""

LOOK_AHEAD: Final = 10
"""Rows read for each that may be created: few in a slow replay."""
BEHIND_SECONDS: Final = 2
"""A paced replay catches up with at most this much."""

WANTED: Final = f"""({IN_TIME.format(row="d")} AND d.id NOT IN (SELECT resubmit_of FROM again)
       AND (%(event_type)s::bigint IS NULL
            OR EXISTS (SELECT FROM subscriptions_subscription o
                        WHERE o.id = d.subscription_id AND o.event_type_id = %(event_type)s)
            OR EXISTS (SELECT FROM delivery_message m
                        WHERE m.id = d.message_id AND m.event_type_id = %(event_type)s)))"""
"""A message names the event type of a pattern subscription's delivery."""

BY_STATUS: Final = f"""
SELECT s.place * 100 + t.place AS arm, x.*
  FROM unnest(%(subscriptions)s::bigint[]) WITH ORDINALITY AS s (id, place)
 CROSS JOIN unnest(%(statuses)s::text[]) WITH ORDINALITY AS t (status, place)
 CROSS JOIN LATERAL (
   SELECT {COLUMNS} FROM delivery_delivery d
    WHERE d.subscription_id >= s.id AND d.subscription_id <= s.id AND d.status = t.status AND d.status <> 'DELIVERED'
      AND d.closed_on >= %(first_day)s::date AND d.closed_on < '9999-12-31'
      AND d.id > %(cursor)s AND d.id <= %(newest_id)s
    ORDER BY d.subscription_id, d.status, d.id LIMIT %(each)s) x"""

OF_ALL: Final = f"""
SELECT s.place AS arm, x.*
  FROM unnest(%(subscriptions)s::bigint[]) WITH ORDINALITY AS s (id, place)
 CROSS JOIN LATERAL (
   SELECT {COLUMNS} FROM delivery_delivery d
    WHERE d.subscription_id >= s.id AND d.subscription_id <= s.id
      AND d.closed_on >= %(first_day)s::date AND d.closed_on < '9999-12-31'
      AND d.id > %(cursor)s AND d.id <= %(newest_id)s
    ORDER BY d.subscription_id, d.id LIMIT %(each)s) x"""
"""No index has DELIVERED ones alone, so it reads all deliveries."""

NEXT: Final = (
    f"""{WALK}{AGAIN}
SELECT d.id, d.message_id, d.subscription_id, COALESCE(family.asked_group, d.group_id), d.ordering_key, {WANTED},
       family.is_open OR d.status <> 'DELIVERED' AND (family.is_taken OR family.is_anothers)
  FROM (SELECT * FROM stretch ORDER BY id LIMIT %(limit)s) d
"""
    + FAMILY.format(
        other=f"""f.id < d.id AND {IN_TIME.format(row="f")}
           AND NOT EXISTS (SELECT FROM delivery_delivery n WHERE n.resubmit_of = f.id)
           AND EXISTS (SELECT FROM subscriptions_subscription s
                         JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
                        WHERE s.id = f.subscription_id AND s.id = ANY(%(subscriptions)s::bigint[])
                          AND s.status = 'ACTIVE' AND u.status = 'ACTIVE')"""
    )
    + " ORDER BY d.id"
)

COUNT: Final = f"""{WALK}{AGAIN}
SELECT d.status, count(*) FILTER (WHERE {WANTED}), max(d.id), (SELECT is_end FROM horizon)
  FROM stretch d GROUP BY d.status
"""


NOW: Final = """
SELECT clock_timestamp(), CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM delivery_delivery_id_seq
"""
"""The last id that was given: as a day begins, its first id has not been."""


class Snapshot(NamedTuple):
    """A moment: what had ended by then has an end and an id up to these.

    The id alone keeps out what a replay makes itself: the clock may be set back.
    """

    until: dt.datetime
    newest_id: int


class MatchedDelivery(NamedTuple):
    """A delivery on the way of a replay."""

    old: SentDelivery
    is_wanted: bool
    is_anothers: bool
    """Whether its QUEUE group is unfinished, taken, or given to another endpoint in its place."""


def counted(selection: Selection, snapshot: Snapshot, cursor: int) -> Count:
    """Count the deliveries to send again, of a snapshot, among those that one slice after `cursor` meets."""
    found = rows(_along(COUNT, selection), _arguments(selection, snapshot, cursor, job_steps.COUNT_SLICE))
    wanted = {status: number for status, number, *_ in found if number}
    last_id = max((last_id for _, _, last_id, _ in found), default=cursor)
    return Count(sum(wanted.values()), wanted, last_id, all(is_end for *_, is_end in found))


def next_of(selection: Selection, snapshot: Snapshot, *, cursor: int, limit: int) -> list[MatchedDelivery]:
    """Return the next deliveries after `cursor` by id, wanted or not."""
    found = rows(_along(NEXT, selection), _arguments(selection, snapshot, cursor, limit) | {"limit": limit})
    return [MatchedDelivery(SentDelivery(*old), is_wanted, is_anothers) for *old, is_wanted, is_anothers in found]


def _along(statement: LiteralString, selection: Selection) -> LiteralString:
    return statement.format(arms=OF_ALL if selection.has_delivered else BY_STATUS)


def _arguments(selection: Selection, snapshot: Snapshot, cursor: int, limit: int) -> dict[str, Any]:
    arms = len(selection.subscription_ids) * (1 if selection.has_delivered else len(selection.statuses))
    return {**selection.arguments(), **snapshot._asdict(), "cursor": cursor, "each": each_of(limit, arms)}


TAKE: Final = f"""
SELECT id, state, selection, until, newest_id, cursor_id, total, filed + skipped, pace,
       LEAST(extract(epoch FROM clock_timestamp() - sliced_at), {BEHIND_SECONDS})::float8
  FROM delivery_replay
 WHERE finished_at IS NULL AND kind = 'REPLAY' AND {DUE} AND pg_try_advisory_xact_lock({ONE_AT_A_TIME})
   AND (state = 'COUNTING' OR pace IS NULL
        OR clock_timestamp() >= sliced_at + make_interval(secs => LEAST(1.0, {SLICE}.0 / pace)))
 ORDER BY updated_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
COUNTED: Final = """
UPDATE delivery_replay
   SET total = total + %(count)s::bigint, failures = 0, reason = '', updated_at = clock_timestamp(),
       cursor_id = CASE WHEN %(is_end)s THEN 0 ELSE %(last_id)s::bigint END,
       state = CASE WHEN %(is_end)s THEN 'RUNNING' ELSE state END, sliced_at = clock_timestamp()
 WHERE id = %(id)s
"""
MOVE: Final = f"""
UPDATE delivery_replay
   SET cursor_id = COALESCE(%(cursor)s::bigint, cursor_id), filed = filed + %(filed)s::bigint,
       skipped = skipped + %(skipped)s::bigint, failures = 0, reason = %(reason)s, updated_at = clock_timestamp(),
       sliced_at = CASE WHEN pace IS NULL THEN clock_timestamp()
                        ELSE GREATEST(sliced_at, clock_timestamp() - make_interval(secs => {BEHIND_SECONDS}))
                             + make_interval(secs => (%(filed)s::bigint + %(skipped)s::bigint)::float8 / pace) END,
       state = CASE WHEN %(cursor)s::bigint IS NULL THEN 'DONE' ELSE state END,
       finished_at = CASE WHEN %(cursor)s::bigint IS NULL THEN clock_timestamp() END
 WHERE id = %(id)s
"""
"""Deliveries that are not wanted do not count towards the pace."""


LOCK: Final = """
SELECT kind = 'REPLAY' OR state = 'COUNTING' FROM delivery_replay
 WHERE id = %s AND finished_at IS NULL AND state <> 'CANCELLING' FOR UPDATE
"""
"""Waits for a step that is under way. Returns whether the subscription is as it was before the job."""
CANCEL: Final = """
UPDATE delivery_replay
   SET state = 'CANCELLED', finished_at = clock_timestamp(), reason = %(reason)s, failures = 0,
       updated_at = clock_timestamp()
 WHERE id = %(id)s
"""
CANCEL_BACKFILL: Final = """
WITH cancelled AS (
  UPDATE delivery_replay
     SET state = 'CANCELLING', cursor_id = (SELECT last_value FROM delivery_delivery_id_seq), reason = %(reason)s,
         failures = 0, updated_at = clock_timestamp()
   WHERE id = %(id)s RETURNING subscription_id)
UPDATE subscriptions_subscription s SET status = 'INACTIVE', updated_at = clock_timestamp()
  FROM cancelled WHERE s.id = cancelled.subscription_id
"""
"""The subscription is INACTIVE again, as before, and the workers cancel its deliveries up to now: see `backfill_job`.

It stays paused until that is done: if it is activated before, it gets none of it.
"""


class ReplayFinished(Exception):
    """The replay cannot be cancelled any more; the text says why."""


class _Job(NamedTuple):
    """A row of `TAKE`."""

    id: int
    state: str
    selection: dict[str, Any]
    until: dt.datetime
    newest_id: int
    cursor: int
    total: int
    done: int
    pace: int | None
    seconds: float
    """Since the last slice."""


def count(selection: Selection) -> Count:
    """Count the deliveries of a replay started now."""
    snapshot = Snapshot._make(rows(NOW)[0])
    return count_all(lambda cursor: counted(selection, snapshot, cursor))


def begin(selection: Selection, *, pace: int | None, subscription_id: int | None, created_by: str) -> Replay:
    """Store a replay, which the workers count and run; `pace` limits new deliveries a second."""
    return Replay.objects.create(
        subscription_id=subscription_id,
        selection=selection.kept(),
        pace=pace,
        created_by=created_by,
        **Snapshot._make(rows(NOW)[0])._asdict(),
    )


def cancel(replay_id: int, *, reason: str) -> None:
    """End a replay, whose new deliveries stay; or a backfill, whose deliveries are cancelled.

    May be repeated.

    Raises:
        ReplayFinished: it has ended otherwise.
        StillInUse: a publish that may have chosen the backfill's subscription takes long.
    """
    which = {"id": replay_id, "reason": reason}
    try:
        with transaction.atomic():
            for (is_as_before,) in rows(LOCK, [replay_id]):
                if is_as_before:
                    rows(CANCEL, which)
                else:
                    rows(LOCK_TIMEOUT)
                    rows(WAIT_FOR_PUBLISHERS)  # of what they store by then all is cancelled
                    rows(CANCEL_BACKFILL, which)
                return
    except RowLocked as busy:
        raise StillInUse("Something that publishes or changes subscriptions takes long; try again.") from busy
    state = Replay.objects.values_list("state", flat=True).filter(pk=replay_id).first()
    if state not in {ReplayState.CANCELLED, ReplayState.CANCELLING}:
        raise ReplayFinished(f"It is {state}; what it has made can be cancelled by its subscription.")


def go_on() -> int:
    """Take one step of a replay that is due and not locked by another worker; return 0 without such a job."""
    return step(TAKE, lambda *columns: _go_on(_Job(*columns), settings.QUEUE_SENDERS))


def _go_on(job: _Job, senders: int) -> None:
    """Count the next deliveries, or create new ones of them, and note it in the same transaction."""
    selection, snapshot = Selection.of(job.selection), Snapshot(job.until, job.newest_id)
    if job.state == ReplayState.COUNTING:
        found = counted(selection, snapshot, job.cursor)
        rows(COUNTED, {"id": job.id, "count": found.total, "last_id": found.last_id, "is_end": found.complete})
        return
    may_make = SLICE if job.pace is None else min(SLICE, int(job.pace * job.seconds))
    limit = min(SLICE, LOOK_AHEAD * max(may_make, FEWEST))
    met = next_of(selection, snapshot, cursor=job.cursor, limit=limit)
    wanted = [one for one in met if one.is_wanted]
    last = wanted[may_make - 1] if len(wanted) > may_make else met[-1] if met else None
    cursor = last.old.id if last else None
    wanted = wanted[:may_make]
    made = create_deliveries([one.old for one in wanted if not one.is_anothers], senders=senders, replay_id=job.id)
    missing = job.total - job.done if cursor is None else 0
    gone = f"{missing} of those counted were past their time, or sent again otherwise, before the replay reached them"
    moved = {"id": job.id, "cursor": cursor, "filed": len(made), "skipped": len(wanted) - len(made)}
    rows(MOVE, {**moved, "reason": gone if missing > 0 else ""})
