"""Replays: many deliveries made again, a slice at a time (behaviour 5.8)."""

import datetime as dt
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.conf import settings
from django.db import transaction

from delivery.again.lining_up import line_up
from delivery.again.reserving import end
from delivery.again.selecting import Met, Selection, counted, next_of
from delivery.models import Replay, ReplayState
from subscriptions.database import rows

SLICE: Final = 1000
"""Rows that one transaction reads and makes at most."""
BEHIND_SECONDS: Final = 2
"""A paced replay makes up for so much: what stood still for longer is not made up for in one go."""

NOW: Final = "SELECT clock_timestamp()"
TAKE: Final = f"""
SELECT id, selection, until, cursor_id, total, filed + skipped, pace,
       LEAST(extract(epoch FROM clock_timestamp() - sliced_at), {BEHIND_SECONDS})::float8
  FROM delivery_replay
 WHERE finished_at IS NULL AND kind = 'REPLAY'
   AND (pace IS NULL OR clock_timestamp() >= sliced_at + make_interval(secs => LEAST(1.0, {SLICE}.0 / pace)))
 ORDER BY sliced_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
MOVE: Final = f"""
UPDATE delivery_replay
   SET cursor_id = %(cursor)s, filed = filed + %(filed)s, skipped = skipped + %(skipped)s, reason = %(reason)s,
       sliced_at = CASE WHEN pace IS NULL THEN clock_timestamp()
                        ELSE GREATEST(sliced_at, clock_timestamp() - make_interval(secs => {BEHIND_SECONDS}))
                             + make_interval(secs => %(most)s::float8 / pace) END,
       updated_at = clock_timestamp(), state = CASE WHEN %(is_done)s THEN 'DONE' ELSE state END,
       finished_at = CASE WHEN %(is_done)s THEN clock_timestamp() END
 WHERE id = %(id)s
"""
CANCEL: Final = """
UPDATE delivery_replay SET state = 'CANCELLED', reason = %s, updated_at = clock_timestamp(),
                           finished_at = clock_timestamp()
 WHERE id = %s AND kind = 'REPLAY' AND finished_at IS NULL RETURNING id
"""


class ReplayFinished(Exception):
    """There is nothing to cancel any more; the text says why."""


class Counted(NamedTuple):
    """What a replay would be of, and the moment that counts for it."""

    by_status: dict[str, int]
    until: dt.datetime

    @property
    def total(self) -> int:
        """How many new deliveries it would make, if all can be sent."""
        return sum(self.by_status.values())


@dataclass(frozen=True, slots=True)
class _Job:
    id: int
    selection: Selection
    until: dt.datetime
    cursor: int
    total: int
    done: int
    most: int
    """What it may make now."""


def count(selection: Selection) -> Counted:
    """Count what a replay would be of, if it were asked for now."""
    ((until,),) = rows(NOW)
    return Counted(counted(selection, until), until)


def begin(selection: Selection, *, pace: int | None, subscription_id: int | None, created_by: str) -> Replay:
    """Count, and store the job, which the workers do; `pace`: how many new deliveries a second at most, None: any."""
    found = count(selection)
    return Replay.objects.create(
        subscription_id=subscription_id,
        selection=selection.kept(),
        pace=pace,
        total=found.total,
        until=found.until,
        sliced_at=found.until,
        created_by=created_by,
    )


def cancel(replay_id: int, *, reason: str) -> None:
    """End a replay, of which what it has made stays; or a backfill, of which nothing does. Twice is as good as once.

    Raises:
        ReplayFinished: it has ended otherwise.

    """
    if rows(CANCEL, [reason, replay_id]) or end(replay_id, ReplayState.CANCELLED, reason=reason):
        return
    state = Replay.objects.values_list("state", flat=True).filter(pk=replay_id).first()
    if state != ReplayState.CANCELLED:
        raise ReplayFinished(f"It is {state}; what it has made can be cancelled by its subscription.")


def go_on() -> int:
    """File the next slice of a replay that is due and nobody else is at; return how many deliveries that looked at."""
    with transaction.atomic():
        found = rows(TAKE)
        if not found:
            return 0
        ((replay_id, selection, until, cursor, total, done, pace, seconds),) = found
        most = SLICE if pace is None else min(SLICE, int(pace * seconds))
        job = _Job(replay_id, Selection.of(selection), until, cursor, total, done, most)
        return _slice(job, settings.QUEUE_SENDERS)


def _slice(job: _Job, senders: int) -> int:
    """Make new deliveries of what comes next, and say so, in the one transaction: neither is ever without the other."""
    met = next_of(job.selection, job.until, cursor=job.cursor, limit=SLICE)
    taken, cursor = _taken(met, job)
    made = line_up([one.old for one in taken if not one.is_anothers], senders=senders, replay_id=job.id)
    is_done = len(met) < SLICE and (not met or cursor == met[-1].old.id)
    missing = job.total - job.done - len(taken)
    moved = {
        "id": job.id,
        "cursor": cursor,
        "filed": len(made),
        "skipped": len(taken) - len(made),
        "most": job.most,
        "is_done": is_done,
        "reason": f"{missing} of those counted were past their time before it came to them" * (is_done and missing > 0),
    }
    rows(MOVE, moved)
    return len(met)


def _taken(met: list[Met], job: _Job) -> tuple[list[Met], int]:
    """Return what is made again of those met, no more than the job may; and up to where it then is."""
    wanted = [one for one in met if one.is_wanted]
    if len(wanted) > job.most:
        wanted = wanted[: job.most]
        return wanted, wanted[-1].old.id if wanted else job.cursor
    return wanted, met[-1].old.id if met else job.cursor
