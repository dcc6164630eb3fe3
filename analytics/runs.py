"""One run from start to end: find its windows, start Spark, record what it reports."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from analytics import run_records
from analytics.models import Run, RunState
from analytics.pending import calendar, windows_of
from analytics.pipeline.connections import WORKER_LOCK, AnotherRun, only_run
from analytics.pipeline.job import Job, Window
from analytics.run_records import INTERRUPTED, STOPPED, Ending, Record
from analytics.run_requests import QUEUE, SUMMARIZE
from analytics.spark_process import Ended, SparkSettings, run_application
from analytics.vocabulary import vocabulary
from broker_project.core.db import forget_connection
from delivery.dispatch import notify

SLICE_ROWS: Final = 100_000
"""Copied by one reading transaction in a quarter of a second, so that it does not hold back vacuum."""
NO_LAKE: Final = "There is no lake: set BROKER_LAKE to a folder that Spark can write to, for all workers alike."
NOT_WRITABLE: Final = "The lake {} cannot be written to: {}. BROKER_LAKE says where it is."

Application = Callable[..., Ended]
"""Does a job, like `run_application`."""

log = structlog.get_logger(__name__)


def start_waiting(
    settings: SparkSettings, *, stopping: threading.Event, application: Application = run_application
) -> None:
    """Do all waiting runs, also those requested meanwhile, until another worker does one; hints may have been lost."""
    run_records.abandon_vanished()
    while not stopping.is_set() and (run_ids := run_records.waiting()):
        if not run(run_ids[0], settings, stopping=stopping, application=application):
            return


def run(
    run_id: int,
    settings: SparkSettings,
    *,
    stopping: threading.Event,
    report: Callable[[str], object] = lambda _: None,
    application: Application = run_application,
    stopped: Ending = STOPPED,
) -> Run | None:
    """Do a run that waits, or a range that was abandoned; return it as it ended.

    Return None if another run is in progress, or this one is done. `report` gets the progress, as text; `stopped` is
    the ending if `stopping` is set; one that somebody cancels ends as CANCELLED. While Spark runs, one connection to
    the database holds the lock that marks this run as active; it is released if the process dies.
    """
    run_records.abandon_vanished()
    done = None
    with suppress(AnotherRun), only_run(settings.database_url, WORKER_LOCK):
        started = run_records.start(run_id)
        if started is None:
            return None
        record, ending = Record(started), INTERRUPTED
        try:
            ending = _summarize(record, settings, application, stopping, report)
            ending = stopped if ending is STOPPED else ending
        finally:
            record.end(ending, stopping)
            done = Run.objects.get(pk=run_id)
            log.info("summaries.ended", run=run_id, state=done.state, error=done.error)
    if done and (others := run_records.waiting()):  # workers may have skipped them while this run held the lock
        notify.hint(SUMMARIZE, others[:1], QUEUE)
    return done


def _summarize(
    record: Record,
    settings: SparkSettings,
    application: Application,
    stopping: threading.Event,
    report: Callable[[str], object],
) -> Ending:
    """Find its windows, let Spark do it, and return how that ended."""
    run = record.run
    assert run.started_at  # noqa: S101 - it has started
    windows = windows_of(run, calendar(run.started_at))
    forget_connection()
    log.info("summaries.begun", run=run.pk, windows=len(windows))
    if not windows:
        return Ending(RunState.PASSED)
    if problem := lake_problem(settings.lake):
        return Ending(RunState.FAILED, problem)
    report(f"Windows to be summarized: {len(windows)}, from {windows[0]} on. Spark starts ...")
    try:
        ended = application(
            job_of(run.pk, windows, settings),
            settings,
            on_report=partial(record.add_report, show=report),
            on_output=record.add_output,
            is_stopping=lambda: stopping.is_set() or record.is_cancelled(),
        )
    except OSError as failure:
        return Ending(RunState.FAILED, f"Spark cannot be started: {failure}.")
    ending = record.ending(ended, windows, settings.minutes)
    if interrupted := record.interrupted(ended, windows, settings.minutes):
        record.add_failure(*interrupted)
    return ending


def job_of(run: int, windows: Sequence[Window], settings: SparkSettings) -> Job:
    """Return the job of a run of these windows."""
    return Job(
        run=run,
        windows=tuple(windows),
        lake=settings.lake,
        master=settings.master,
        memory=settings.memory,
        vocabulary=vocabulary(),
        objective=settings.objective,
        slice_rows=SLICE_ROWS,
    )


def lake_problem(lake: str) -> str:
    """Return why a folder cannot be the lake, and what to do; empty if it can, or is a URL."""
    if not lake:
        return NO_LAKE
    if "://" in lake:
        return ""
    try:
        Path(lake).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        return NOT_WRITABLE.format(lake, failure.strerror)
    return "" if os.access(lake, os.W_OK | os.X_OK) else NOT_WRITABLE.format(lake, "permission denied")
