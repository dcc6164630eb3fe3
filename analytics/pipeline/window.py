"""Summarize one window: read, check, summarize, check, commit, load. A run that ends midway changes nothing."""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.pipeline import checks, tables
from analytics.pipeline.checks import Looks, look
from analytics.pipeline.extraction import count, leaf_rows, read
from analytics.pipeline.extraction.connection import CONNECT_SECONDS, reading
from analytics.pipeline.failures import OF_A_WINDOW, reason
from analytics.pipeline.job import DAY, Job, Vocabulary, Window
from analytics.pipeline.lake.lake import ANEW, CHANGED, Lake, Stage, hours_of
from analytics.pipeline.lake.manifests import Manifest, Piece
from analytics.pipeline.load import load
from analytics.pipeline.reports import Done
from analytics.pipeline.tables import BRONZE, DAILY, GOLD, SILVER, Table
from analytics.pipeline.transforms import silver as cleaning
from analytics.pipeline.transforms.daily import anomalies, budgets
from analytics.pipeline.transforms.frames import Facts, Silver
from analytics.pipeline.transforms.hourly import HOURLY_SUMMARIES

Frames = Mapping[Table, DataFrame]

DAYS_BEFORE: Final = 28
"""Four weeks, of which budgets and anomalies are made besides the day itself."""


def write_facts(lake: Lake, stage: Stage, window: Window, *, slice_rows: int) -> Frames:
    """Copy the facts of a window out of PostgreSQL."""
    return {table: stage.keep(table, read(lake.spark, table, window, slice_rows=slice_rows)) for table in tables.BRONZE}


def clean(stage: Stage, facts: Frames, words: Vocabulary) -> Silver:
    """Make silver of bronze; attempts are made of the deliveries that are kept by then."""
    bronze = Facts(**{table.name: frame for table, frame in facts.items()})
    silver = cleaning.silver(bronze, words)
    deliveries = stage.keep(tables.SILVER_DELIVERIES, silver.deliveries)
    attempts = stage.keep(tables.SILVER_ATTEMPTS, cleaning.attempts(bronze.attempts, deliveries, words))
    messages = stage.keep(tables.SILVER_MESSAGES, silver.messages)
    return replace(silver, deliveries=deliveries, attempts=attempts, messages=messages)


def audited_before(lake: Lake, window: Window, say: Callable[[str], None]) -> DataFrame:
    """Return what the ordering audit has of the hours before a window, up to four weeks back."""
    days = (lake.known(window.day - dt.timedelta(days=days), say) for days in range(DAYS_BEFORE, -1, -1))
    return lake.of_days(tables.AUDIT, days).where(F.col("hour") < window.start)


def summaries(stage: Stage, silver: Silver, window: Window, words: Vocabulary) -> None:
    """Make gold of silver."""
    for table, make in HOURLY_SUMMARIES.items():
        stage.keep(table, make(silver, window, words))


def summaries_of_day(
    lake: Lake, stage: Stage, manifest: Manifest, objective: float, say: Callable[[str], None]
) -> None:
    """Make what takes the whole day of `manifest`, as far as it is known, and four weeks before."""
    before = (lake.known(manifest.day - dt.timedelta(days=days), say) for days in range(DAYS_BEFORE, 0, -1))
    days = (*before, manifest)
    reliability, latency = lake.of_days(tables.RELIABILITY, days), lake.of_days(tables.LATENCY, days)
    stage.keep(tables.BUDGETS, budgets(reliability, manifest.day, objective))
    known = frozenset(hour for one in days for hour in one.hours)
    stage.keep(tables.ANOMALIES, anomalies(reliability, latency, manifest.day, known))


@dataclass(frozen=True, slots=True)
class WindowRun:
    """What all windows of a run have in common."""

    job: Job
    lake: Lake
    database: str
    still: Callable[[], None]
    """Raises where this may not be the only run any more."""
    say: Callable[[str], None]


def summarize(run: WindowRun, window: Window, done: Done) -> None:
    """Summarize a window; `done` gets what is known of it, step by step.

    Raises:
        failures.OF_A_WINDOW: it is not summarized, and what was there before counts; where only loading failed, the
            lake has the new already.
        LockLost: likewise; another run may be under way.

    """
    before = run.lake.known(window.day, run.say) if window.is_day else run.lake.manifest(window.day)
    run.lake.touch(window.day)
    stage = Stage(run.lake, before, hours_of(window), run.job.run)
    facts = _read(run, window, stage, done, before)
    after = _summarize(run, window, stage, done, before, facts)
    run.lake.mark(CHANGED, window.day)
    let_count(run, stage, after, window)


def let_count(run: WindowRun, stage: Stage, manifest: Manifest, window: Window) -> None:
    """Let what has been made, and checked, of a window count: in the lake, then in PostgreSQL.

    Raises:
        OSError: it counts nowhere.
        psycopg.Error: it counts in the lake only.
        LockLost: it counts in the lake at the most; another run may be under way.

    """
    stage.settle()
    run.still()
    run.lake.keep(manifest)
    run.say(f"{window}: in the lake")
    with psycopg.connect(run.database, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
        load(connection, window, {table: stage.batches(table) for table in GOLD if table in stage.parts}, run.still)


def _read(run: WindowRun, window: Window, stage: Stage, done: Done, before: Manifest) -> Looks:
    """Copy the facts of a window into the lake, and check them; what is filed under a day later shows by `inputs`."""
    if window.is_day:
        with reading(run.database) as connection:
            done.inputs = leaf_rows(connection, window.day)
    facts = write_facts(run.lake, stage, window, slice_rows=run.job.slice_rows)
    done.rows_read = {table.name: stage.parts[table].rows for table in BRONZE}
    run.say(f"{window}: {sum(done.rows_read.values()):,} rows read")
    with reading(run.database) as connection:
        counted = {table: count(connection, table, window) for table in checks.COUNTED}
    looks = look(facts, window, run.job.vocabulary)
    done.checks = checks.of_facts(looks, counted) + checks.of_the_past(looks, before.rows_in(window))
    checks.insist(done.checks)
    return looks


def _summarize(run: WindowRun, window: Window, stage: Stage, done: Done, before: Manifest, facts: Looks) -> Manifest:
    """Make silver and gold of the facts, check them, and return the manifest that lets all of it count."""
    words = run.job.vocabulary
    silver = clean(stage, stage.frames(BRONZE), words)
    audited = audited_before(run.lake, window, run.say)
    summaries(stage, replace(silver, audit=audited), window, words)
    piece = Piece(window, run.job.run, done.inputs, (), tuple(stage.parts.values()))
    summaries_of_day(run.lake, stage, before.with_piece(piece), run.job.objective, run.say)
    done.rows_written = {table.path: stage.parts[table].rows for table in SILVER + GOLD}
    done.lake_bytes = stage.size()
    run.say(f"{window}: {sum(done.rows_written.values()):,} rows made")
    found = checks.of_summaries(look(stage.frames(SILVER + GOLD), window, words), facts)
    done.checks += found
    checks.insist(found)
    daily = tuple(stage.parts[table] for table in DAILY)
    return before.with_piece(replace(piece, checks=done.checks)).with_daily(daily)


def remake(run: WindowRun, made: Sequence[dt.date]) -> bool:
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


def _remade(run: WindowRun, day: dt.date) -> bool:
    try:
        _remake(run, day)
    except OF_A_WINDOW as failure:
        run.say(f"{day}: budgets and anomalies are not made again, the next run tries to: {reason(failure)}")
        return False
    return True


def _remake(run: WindowRun, day: dt.date) -> None:
    manifest = run.lake.known(day, run.say)
    if not manifest.pieces:
        return
    midnight = dt.datetime.combine(day, dt.time(), dt.UTC)
    window = Window(midnight, midnight + DAY)
    run.lake.touch(day)
    stage = Stage(run.lake, manifest, ANEW, run.job.run)
    summaries_of_day(run.lake, stage, manifest, run.job.objective, run.say)
    checks.insist(checks.of_daily(look(stage.frames(DAILY), window, run.job.vocabulary)))
    let_count(run, stage, manifest.with_daily(tuple(stage.parts[table] for table in DAILY)), window)
    run.say(f"{day}: budgets and anomalies made again")
