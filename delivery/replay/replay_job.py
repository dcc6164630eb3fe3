"""Replays: many deliveries made again, a slice at a time (behaviour 5.8)."""

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from django.conf import settings

from broker_project.core.db import rows
from delivery.models import Replay, ReplayState
from delivery.replay.families import ONE_AT_A_TIME
from delivery.replay.job_steps import end
from delivery.replay.resend import line_up
from delivery.replay.selecting import Stretch, counted, next_of
from delivery.replay.selection import Selection
from delivery.replay.stepping import DUE, step
from delivery.replay.walking import FEWEST, taken

SLICE: Final = 1000
"""Rows that one transaction meets and makes at most."""
LOOK_AHEAD: Final = 10
"""Rows that are met for each that may be made: of a slow replay, few."""
COUNT_SLICE: Final = 10_000
"""Rows that one statement counts; what is done by the clock waits for it."""
MOST_COUNTED: Final = 500_000
"""Rows that are looked at for whoever waits for the count."""
BEHIND_SECONDS: Final = 2
"""A paced replay makes up for so much: what stood still for longer is not made up for in one go."""

NOW: Final = "SELECT clock_timestamp()"
TAKE: Final = f"""
SELECT id, state, selection, until, cursor_id, total, filed + skipped, pace,
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
"""What was met and is not wanted costs nothing of its pace."""


class ReplayFinished(Exception):
    """There is nothing to cancel any more; the text says why."""


class Counted(NamedTuple):
    """What a replay would be of."""

    by_status: dict[str, int]
    complete: bool
    """Whether that is all: where there is very much, only the oldest is counted."""

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
    may_make: int


def count(selection: Selection) -> Counted:
    """Count what a replay would be of, if it were asked for now."""
    ((until,),) = rows(NOW)
    found: Counter[str] = Counter()
    stretch = Stretch({}, 0, is_end=False)
    for _ in range(MOST_COUNTED // COUNT_SLICE):
        stretch = counted(selection, until, cursor=stretch.last_id, limit=COUNT_SLICE)
        found.update(stretch.by_status)
        if stretch.is_end:
            break
    return Counted(dict(found), stretch.is_end)


def begin(selection: Selection, *, pace: int | None, subscription_id: int | None, created_by: str) -> Replay:
    """Store the job, which the workers count and then do; `pace`: new deliveries a second at most, None: any."""
    ((until,),) = rows(NOW)
    return Replay.objects.create(
        subscription_id=subscription_id, selection=selection.kept(), pace=pace, until=until, created_by=created_by
    )


def cancel(replay_id: int, *, reason: str) -> None:
    """End a replay, of which what it has made stays; or a backfill, of which nothing does. Twice is as good as once.

    Raises:
        ReplayFinished: it has ended otherwise.

    """
    if end(replay_id, ReplayState.CANCELLED, reason=reason):
        return
    state = Replay.objects.values_list("state", flat=True).filter(pk=replay_id).first()
    if state not in {ReplayState.CANCELLED, ReplayState.CANCELLING}:
        raise ReplayFinished(f"It is {state}; what it has made can be cancelled by its subscription.")


def go_on() -> int:
    """Do the next step of a replay that is due and nobody else is at; return 0 where there is none."""
    return step(TAKE, partial(_go_on, settings.QUEUE_SENDERS))


def _go_on(senders: int, replay_id: int, state: str, selection: dict[str, Any], until: dt.datetime, *rest: Any) -> None:
    cursor, total, done, pace, seconds = rest
    chosen = Selection.of(selection)
    if state == ReplayState.COUNTING:
        stretch = counted(chosen, until, cursor=cursor, limit=COUNT_SLICE)
        rows(COUNTED, {**stretch._asdict(), "id": replay_id, "count": sum(stretch.by_status.values())})
        return
    most = SLICE if pace is None else min(SLICE, int(pace * seconds))
    _slice(_Job(replay_id, chosen, until, cursor, total, done, most), senders)


def _slice(job: _Job, senders: int) -> None:
    """Make new deliveries of what comes next, and say so, in the one transaction: neither is ever without the other."""
    limit = min(SLICE, LOOK_AHEAD * max(job.may_make, FEWEST))
    wanted, cursor = taken(next_of(job.selection, job.until, cursor=job.cursor, limit=limit), job.may_make)
    made = line_up([one.old for one in wanted if not one.is_anothers], senders=senders, replay_id=job.id)
    missing = job.total - job.done if cursor is None else 0
    gone = f"{missing} of those counted were past their time, or made again by somebody, before it came to them"
    moved = {"id": job.id, "cursor": cursor, "filed": len(made), "skipped": len(wanted) - len(made)}
    rows(MOVE, {**moved, "reason": gone if missing > 0 else ""})
