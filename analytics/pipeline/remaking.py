"""Budgets and anomalies, made again of the days that are made of others which have changed since.

A day that changes leaves a mark in the lake, which stays until the days after it are made again: a run that is ended
before that leaves it to the next.
"""

import datetime as dt
from collections.abc import Collection, Iterable, Sequence

from analytics.pipeline import checks, making
from analytics.pipeline.failures import OF_A_WINDOW, reason
from analytics.pipeline.job import DAY, Window
from analytics.pipeline.lake.lake import CHANGED
from analytics.pipeline.lake.stages import ANEW, Stage
from analytics.pipeline.looks import look
from analytics.pipeline.making import DAYS_BEFORE
from analytics.pipeline.tables import DAILY
from analytics.pipeline.window import Run, let_count


def remake(run: Run, made: Sequence[dt.date]) -> bool:
    """Make again what is not of the latest, and say whether all is by then; `made` are the days of this run, in order.

    Raises:
        LockLost: another run may be under way.
        OSError: the lake cannot be read.

    """
    changed = run.lake.marked(CHANGED)
    remade = [_remade(run, day) for day in stale(run.lake.days(), changed, made)]
    if all(remade):
        for day in changed:
            run.lake.unmark(CHANGED, day)
    return all(remade)


def stale(days: Iterable[dt.date], changed: Collection[dt.date], made: Sequence[dt.date]) -> list[dt.date]:
    """Return which days were made before one of the 28 days before them changed, in order.

    `made` are the days that were made since, in order; whatever else has changed did so before them.
    """
    at = {day: nth for nth, day in enumerate(made, 1)}

    def is_stale(day: dt.date) -> bool:
        before = (one for one in changed if 0 < (day - one).days <= DAYS_BEFORE)
        return any(at.get(one, 0) >= at.get(day, 0) for one in before)

    return sorted(filter(is_stale, days))


def _remade(run: Run, day: dt.date) -> bool:
    try:
        _remake(run, day)
    except OF_A_WINDOW as failure:
        run.say(f"{day}: budgets and anomalies are not made again, the next run tries to: {reason(failure)}")
        return False
    return True


def _remake(run: Run, day: dt.date) -> None:
    manifest = run.lake.known(day, run.say)
    if not manifest.pieces:
        return
    midnight = dt.datetime.combine(day, dt.time(), dt.UTC)
    window = Window(midnight, midnight + DAY)
    run.lake.touch(day)
    stage = Stage(run.lake, manifest, ANEW, run.job.run)
    making.summaries_of_day(run.lake, stage, manifest, run.job.objective, run.say)
    checks.insist(checks.of_daily(look(stage.frames(DAILY), window, run.job.vocabulary)))
    let_count(run, stage, manifest.with_daily(tuple(stage.parts[table] for table in DAILY)), window)
    run.say(f"{day}: budgets and anomalies made again")
