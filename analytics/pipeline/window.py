"""Summarize one window: read, check, transform, check, load, commit. A run that ends midway changes nothing."""

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from analytics.pipeline import checks, tables
from analytics.pipeline.checks import LASTING, FailedChecks, Statistics, statistics
from analytics.pipeline.connections import CONNECT_SECONDS, LockLost, Unreadable, reading
from analytics.pipeline.extraction.row_counts import counts, is_closed, is_idle, leaf_rows
from analytics.pipeline.extraction.source import copied, read
from analytics.pipeline.extraction.statements import idle_backlog
from analytics.pipeline.job import DAY, Job, Progress, Reports, Window, whole
from analytics.pipeline.lake import CHANGED, RECOMPUTED, TOUCHED, Lake, Stage, hours_of
from analytics.pipeline.load import load
from analytics.pipeline.manifests import Manifest, Piece
from analytics.pipeline.tables import BACKLOG, BRONZE, DAILY, GOLD, HOURLY, RELIABILITY, SILVER, Table
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
    reports: Reports


def idle_windows(run: WindowRun) -> list[Window]:
    """Return the windows of a run in which nothing happened, now and when they were summarized before."""
    found = []
    for window in run.job.windows:
        with suppress(*WINDOW_FAILURES), reading(run.database) as connection:  # it fails again when it is summarized
            known = _manifest(run, window).rows_in(window)
            if not any(known[table.path] for table in LASTING) and is_idle(connection, window):
                found.append(window)
    return found


def summarize_idle(run: WindowRun, window: Window, progress: Progress) -> None:
    """Summarize a window in which nothing happened, without Spark: all that it can have is a backlog.

    The daily summaries of its day are recomputed at the end of the run. It raises what `summarize` raises.
    """
    before = _manifest(run, window)
    with reading(run.database) as connection:
        if window.is_day:
            progress.inputs = leaf_rows(connection, window.day)
        query = idle_backlog(connection, window)
    run.lake.mark(TOUCHED, window.day)
    stage = Stage(run.lake, before, hours_of(window), run.job.run)
    stage.write_batches(BACKLOG, [*copied(run.database, BACKLOG, query)])
    progress.rows_written = {table.path: part.rows for table, part in stage.parts.items()}
    progress.lake_bytes = stage.size()
    piece = Piece(window, run.job.run, progress.inputs, (), tuple(stage.parts.values()))
    run.lake.mark(CHANGED, window.day)
    publish(run, stage, before.with_piece(piece), window, HOURLY)


def summarize(run: WindowRun, window: Window, progress: Progress) -> None:
    """Summarize a window; `progress` is filled step by step.

    Raises:
        WINDOW_FAILURES, LockLost: the window is not summarized and its old summaries count; if PostgreSQL ended during
            the commit, the lake has the new ones already.
    """
    lake, words = run.lake, run.job.vocabulary
    before, earlier = _manifest(run, window), _manifests_before(run, window.day)
    lake.mark(TOUCHED, window.day)
    stage = Stage(lake, before, hours_of(window), run.job.run)
    facts = _extract(run, window, stage, progress, before)
    run.reports.step(window, "summarizing", f"{sum(progress.rows_read.values()):,} rows read, ")
    cleaned = silver(stage.frames(BRONZE), words, stage.write)
    audits = lake.read_days(tables.AUDIT, [*earlier, before])
    inputs = {**cleaned, tables.AUDIT: audits.where(F.col("hour") < window.start)}
    for table, summary in HOURLY_SUMMARIES.items():
        stage.write(table, summary(inputs, window, words))
    piece = Piece(window, run.job.run, progress.inputs, (), tuple(stage.parts.values()))
    _summarize_day(run, stage, [*earlier, before.with_piece(piece)])
    progress.rows_written = {table.path: stage.parts[table].rows for table in SILVER + GOLD}
    progress.lake_bytes = stage.size()
    run.reports.step(window, "loading", f"{sum(progress.rows_written.values()):,} rows made, ")
    found = checks.check_summaries(statistics(stage.frames(SILVER + GOLD), window, words), facts)
    progress.checks += found
    checks.require(found)
    daily = tuple(stage.parts[table] for table in DAILY)
    after = replace(before.with_piece(replace(piece, checks=progress.checks)), daily=daily)
    lake.mark(CHANGED, window.day)
    publish(run, stage, after, window, GOLD)


def _manifest(run: WindowRun, window: Window) -> Manifest:
    """Return the manifest of a window's day; that of a whole day may be damaged, since its window replaces it."""
    lake = run.lake
    return lake.readable_manifest(window.day, run.reports.progress) if window.is_day else lake.manifest(window.day)


def _extract(run: WindowRun, window: Window, stage: Stage, progress: Progress, before: Manifest) -> Statistics:
    """Copy the facts of a window into the lake and check them; `progress.inputs` shows later what came late."""
    with reading(run.database) as connection:
        if window.is_day:
            progress.inputs = leaf_rows(connection, window.day)
        at_least = {} if is_closed(connection, window) else counts(connection, window)
    spark, slice_rows = run.lake.spark(), run.job.slice_rows
    run.reports.step(window, "reading")
    facts = {table: stage.write(table, read(spark, table, window, slice_rows=slice_rows)) for table in BRONZE}
    progress.rows_read = {table.name: stage.parts[table].rows for table in BRONZE}
    with reading(run.database) as connection:
        counted = {} if at_least else counts(connection, window)
    found = statistics(facts, window, run.job.vocabulary)
    progress.checks = checks.check_facts(found, counted, before.rows_in(window), at_least=at_least)
    checks.require(progress.checks)
    return found


def _manifests_before(run: WindowRun, day: dt.date) -> list[Manifest]:
    """Return the manifests of the four weeks before a day."""
    return [run.lake.readable_manifest(day - ago * DAY, run.reports.progress) for ago in range(DAYS_BEFORE, 0, -1)]


def _summarize_day(run: WindowRun, stage: Stage, days: Sequence[Manifest]) -> None:
    """Write the daily summaries of the last of these days, as far as it is known; the others are those before."""
    reliability, latency = (run.lake.read_days(table, days) for table in (RELIABILITY, tables.LATENCY))
    known, day = frozenset(hour for one in days for hour in one.hours), days[-1].day
    stage.write(tables.BUDGETS, budgets(reliability, day, run.job.objective))
    stage.write(tables.ANOMALIES, anomalies(reliability, latency, day, known))


def publish(run: WindowRun, stage: Stage, manifest: Manifest, window: Window, loaded: Iterable[Table]) -> None:
    """Load what has been written and checked into PostgreSQL, and commit it in the lake and there.

    The window's rows of all tables in `loaded` are replaced; those that have not been written have none.

    Raises:
        OSError, LockLost: nothing is committed; after LockLost, another run may have started.
        psycopg.Error: at most the lake is.
    """

    def commit_lake() -> None:
        run.ensure_locked()
        run.lake.commit(manifest)
        run.reports.progress(f"{window}: in the lake")

    stage.flush()
    with psycopg.connect(run.database, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
        load(connection, window, {table: stage.batches(table) for table in loaded}, commit_lake)


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
    """Return the days whose daily summaries were made before they changed, or one of the 28 days before them did.

    `summarized` are the days that Spark summarized in this run, in order; other days in `changed` changed before that.
    """
    at = {day: number for number, day in enumerate(summarized, 1)}

    def is_stale(day: dt.date) -> bool:
        before = (one for one in changed if 0 < (day - one).days <= DAYS_BEFORE)
        return (day in changed and day not in at) or any(at.get(one, 0) >= at.get(day, 0) for one in before)

    return sorted(filter(is_stale, days))


def _recompute(run: WindowRun, day: dt.date) -> bool:
    """Recompute the daily summaries of a day; report a failure and return whether they are current."""
    window = whole(day)
    try:
        manifest = run.lake.readable_manifest(day, run.reports.progress)
        if manifest.pieces:
            run.lake.mark(TOUCHED, day)
            stage = Stage(run.lake, manifest, RECOMPUTED, run.job.run)
            days = [*_manifests_before(run, day), manifest]
            if any(part.rows for one in days for part in one.parts() if part.table == RELIABILITY.path):
                _summarize_day(run, stage, days)
                checks.require(checks.check_rows(statistics(stage.frames(DAILY), window, run.job.vocabulary)))
            publish(run, stage, replace(manifest, daily=tuple(stage.parts.values())), window, DAILY)
            run.reports.progress(f"{day}: budgets and anomalies made again")
    except WINDOW_FAILURES as failure:
        run.reports.progress(
            f"{day}: budgets and anomalies are not made again, the next run tries to: {reason(failure)}"
        )
        return False
    return True
