"""Summarize one window: read, check, transform, check, commit, load. A run that ends midway changes nothing."""

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from analytics.pipeline import checks, tables
from analytics.pipeline.checks import FailedChecks, Statistics, statistics
from analytics.pipeline.connections import CONNECT_SECONDS, LockLost, Unreadable, reading
from analytics.pipeline.extraction.row_counts import count, leaf_rows
from analytics.pipeline.extraction.source import read
from analytics.pipeline.extraction.statements import IN_WINDOW
from analytics.pipeline.job import DAY, Job, Progress, Window, whole
from analytics.pipeline.lake import CHANGED, RECOMPUTED, TOUCHED, Lake, Stage, hours_of
from analytics.pipeline.load import load
from analytics.pipeline.manifests import Manifest, Piece
from analytics.pipeline.tables import BRONZE, DAILY, GOLD, SILVER
from analytics.pipeline.transforms.daily import DAYS_BEFORE, anomalies, budgets
from analytics.pipeline.transforms.hourly import HOURLY_SUMMARIES
from analytics.pipeline.transforms.silver import silver

WINDOW_FAILURES: Final = (
    FailedChecks,
    Unreadable,
    PySparkException,
    Py4JError,
    psycopg.Error,
    OSError,
    ValueError,
)
"""Failures of one window, after which the next one is tried: checks, the database, Spark or the lake.

Damaged files raise ValueError, as do manifests of another version.
"""
RUN_FAILURES: Final = (LockLost, *WINDOW_FAILURES)
"""Failures that end the run when they are raised outside of a window."""

OWN_MESSAGE: Final = re.compile(r"^[\w.]*\.Unreadable: (.+)$", re.MULTILINE)
"""A reader's message, at the end of the Python traceback in Spark's."""
CAUSE: Final = re.compile(r"^\s*Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
MAX_REASON_CHARACTERS: Final = 500


def reason(failure: BaseException) -> str:
    """Return what went wrong, in one line: of Spark's pages of text, the root cause."""
    text = str(failure)
    found = OWN_MESSAGE.findall(text) or CAUSE.findall(text)
    line = found[-1] if found else text.strip().partition("\n")[0]
    return " ".join(line.split())[:MAX_REASON_CHARACTERS] or type(failure).__name__


@dataclass(frozen=True, slots=True)
class WindowRun:
    """What all windows of a run share."""

    job: Job
    lake: Lake
    database: str
    ensure_locked: Callable[[], None]
    """Raises `LockLost` if another run may have started."""
    report: Callable[[str], None]


def summarize(run: WindowRun, window: Window, progress: Progress) -> None:
    """Summarize a window; `progress` is filled step by step.

    Raises:
        WINDOW_FAILURES: the window is not summarized and its old summaries count; if only the load failed, the lake
            has the new ones already.
        LockLost: likewise; another run may have started.
    """
    lake, words = run.lake, run.job.vocabulary
    before = lake.readable_manifest(window.day, run.report) if window.is_day else lake.manifest(window.day)
    lake.mark(TOUCHED, window.day)
    stage = Stage(lake, before, hours_of(window), run.job.run)
    facts = _extract(run, window, stage, progress, before)
    cleaned = silver(stage.frames(BRONZE), words, stage.write)
    audits = lake.read_days(tables.AUDIT, [*_manifests_before(run, window.day), before])
    inputs = {**cleaned, tables.AUDIT: audits.where(F.col("hour") < window.start)}
    for table, summary in HOURLY_SUMMARIES.items():
        stage.write(table, summary(inputs, window, words))
    piece = Piece(window, run.job.run, progress.inputs, (), tuple(stage.parts.values()))
    _summarize_day(run, stage, before.with_piece(piece))
    progress.rows_written = {table.path: stage.parts[table].rows for table in SILVER + GOLD}
    progress.lake_bytes = stage.size()
    run.report(f"{window}: {sum(progress.rows_written.values()):,} rows made")
    found = checks.check_summaries(statistics(stage.frames(SILVER + GOLD), window, words), facts)
    progress.checks += found
    checks.require(found)
    daily = tuple(stage.parts[table] for table in DAILY)
    after = replace(before.with_piece(replace(piece, checks=progress.checks)), daily=daily)
    lake.mark(CHANGED, window.day)
    publish(run, stage, after, window)


def _extract(run: WindowRun, window: Window, stage: Stage, progress: Progress, before: Manifest) -> Statistics:
    """Copy the facts of a window into the lake and check them; `progress.inputs` shows later what came late."""
    if window.is_day:
        with reading(run.database) as connection:
            progress.inputs = leaf_rows(connection, window.day)
    slice_rows = run.job.slice_rows
    facts = {table: stage.write(table, read(run.lake.spark, table, window, slice_rows=slice_rows)) for table in BRONZE}
    progress.rows_read = {table.name: stage.parts[table].rows for table in BRONZE}
    run.report(f"{window}: {sum(progress.rows_read.values()):,} rows read")
    with reading(run.database) as connection:
        counted = {table: count(connection, table, window) for table in IN_WINDOW}
    found = statistics(facts, window, run.job.vocabulary)
    progress.checks = checks.check_facts(found, counted, before.rows_in(window))
    checks.require(progress.checks)
    return found


def _manifests_before(run: WindowRun, day: dt.date) -> list[Manifest]:
    """Return the manifests of the four weeks before a day."""
    return [run.lake.readable_manifest(day - ago * DAY, run.report) for ago in range(DAYS_BEFORE, 0, -1)]


def _summarize_day(run: WindowRun, stage: Stage, manifest: Manifest) -> None:
    """Write the daily summaries: of the day of `manifest`, as far as it is known, and the four weeks before."""
    days = (*_manifests_before(run, manifest.day), manifest)
    reliability, latency = (run.lake.read_days(table, days) for table in (tables.RELIABILITY, tables.LATENCY))
    known = frozenset(hour for one in days for hour in one.hours)
    stage.write(tables.BUDGETS, budgets(reliability, manifest.day, run.job.objective))
    stage.write(tables.ANOMALIES, anomalies(reliability, latency, manifest.day, known))


def publish(run: WindowRun, stage: Stage, manifest: Manifest, window: Window) -> None:
    """Commit what has been written and checked: in the lake, then in PostgreSQL.

    Raises:
        OSError: nothing is committed.
        psycopg.Error: only the lake is.
        LockLost: at most the lake is; another run may have started.
    """
    stage.flush()
    run.ensure_locked()
    run.lake.commit(manifest)
    run.report(f"{window}: in the lake")
    rows = {table: stage.batches(table) for table in GOLD if table in stage.parts}
    with psycopg.connect(run.database, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
        load(connection, window, rows, run.ensure_locked)


def recompute_days(run: WindowRun, summarized: Sequence[dt.date]) -> bool:
    """Recompute the daily summaries of stale days; return whether all are current by then.

    `summarized` are the days of this run, in order.

    Raises:
        LockLost: another run may have started.
        OSError: the lake cannot be read.
    """
    changed = run.lake.marked(CHANGED)
    recomputed = [_recompute(run, day) for day in stale(run.lake.days(), changed, summarized)]
    if all(recomputed):
        for day in changed:
            run.lake.unmark(CHANGED, day)
    return all(recomputed)


def stale(days: Iterable[dt.date], changed: Collection[dt.date], summarized: Sequence[dt.date]) -> list[dt.date]:
    """Return the days that were summarized before one of the 28 days before them changed, in order.

    `summarized` are the days summarized by this run, in order; other days in `changed` changed before it.
    """
    at = {day: number for number, day in enumerate(summarized, 1)}

    def is_stale(day: dt.date) -> bool:
        before = (one for one in changed if 0 < (day - one).days <= DAYS_BEFORE)
        return any(at.get(one, 0) >= at.get(day, 0) for one in before)

    return sorted(filter(is_stale, days))


def _recompute(run: WindowRun, day: dt.date) -> bool:
    """Recompute the daily summaries of a day; report a failure and return whether they are current."""
    window = whole(day)
    try:
        manifest = run.lake.readable_manifest(day, run.report)
        if manifest.pieces:
            run.lake.mark(TOUCHED, day)
            stage = Stage(run.lake, manifest, RECOMPUTED, run.job.run)
            _summarize_day(run, stage, manifest)
            checks.require(checks.check_rows(statistics(stage.frames(DAILY), window, run.job.vocabulary)))
            publish(run, stage, replace(manifest, daily=tuple(stage.parts[table] for table in DAILY)), window)
            run.report(f"{day}: budgets and anomalies made again")
    except WINDOW_FAILURES as failure:
        run.report(f"{day}: budgets and anomalies are not made again, the next run tries to: {reason(failure)}")
        return False
    return True
