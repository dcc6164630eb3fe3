"""Summarizes the windows of a job, one after the other; what fails of one leaves the others their chance."""

import time
from enum import IntEnum

from analytics.pipeline.extraction import register
from analytics.pipeline.failures import OF_A_RUN, OF_A_WINDOW, reason
from analytics.pipeline.job import Job, Window
from analytics.pipeline.lake.lake import Lake
from analytics.pipeline.lake.places import Place
from analytics.pipeline.reports import Done, Reports
from analytics.pipeline.run_lock import AnotherRun, only_run
from analytics.pipeline.session import spark_session
from analytics.pipeline.window import WindowRun, remake, summarize


class Status(IntEnum):
    """The exit status of the application."""

    DONE = 0
    """Every window is summarized."""
    FAILED = 1
    """Some windows are not, or days after them are not made again; the reports tell which."""
    NOT_DONE = 2
    """The run ended before its windows were done: no database, no lake, no Spark, or no job."""
    ANOTHER_RUN = 75
    """Another run is under way; nothing has been done."""


def run(job: Job, database: str, reports: Reports) -> Status:
    """Do a job with the database at an address."""
    try:
        with only_run(database) as still:
            started = time.monotonic()
            with spark_session(job) as spark:
                reports.ready(time.monotonic() - started)
                register(spark, database)
                lake = Lake(Place.at(job.lake), spark)
                return summarize_all(WindowRun(job, lake, database, still, reports.progress), reports)
    except AnotherRun as other:
        reports.ended(str(other))
        return Status.ANOTHER_RUN
    except OF_A_RUN as failure:
        reports.ended(reason(failure))
        return Status.NOT_DONE


def summarize_all(run: WindowRun, reports: Reports) -> Status:
    """Summarize every window of a run, and what is made of them and others, without what runs before it left behind."""
    run.lake.sweep(run.say)
    passed = [window for window in run.job.windows if _summarized(run, window, reports)]
    remade = remake(run, [window.day for window in passed])
    return Status.DONE if remade and len(passed) == len(run.job.windows) else Status.FAILED


def _summarized(run: WindowRun, window: Window, reports: Reports) -> bool:
    """Summarize a window, tell what became of it, and say whether it is."""
    started, done = time.monotonic(), Done()
    try:
        summarize(run, window, done)
    except OF_A_WINDOW as failure:
        reports.failed(window, done, time.monotonic() - started, reason(failure))
        return False
    reports.passed(window, done, time.monotonic() - started)
    return True
