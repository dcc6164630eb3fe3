"""One run from start to end: find what is due, start Spark, write down what it reports."""

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from analytics import run_records, run_requests
from analytics.due import calendar, due
from analytics.models import Run, RunState
from analytics.pipeline.job import Job, Window
from analytics.pipeline.run_lock import WORKER_LOCK, AnotherRun, only_run
from analytics.run_records import Record
from analytics.run_results import INTERRUPTED, STOPPED, Ending, cut_short, ending, not_begun
from analytics.spark_process import Ended, kept, run_application
from analytics.spark_settings import SparkTerms
from analytics.vocabulary import vocabulary
from broker_project.core.db import forget_connection

NOT_WRITABLE: Final = "The lake {} cannot be written to: {}. BROKER_LAKE says where it is."

SLICE_ROWS: Final = 100_000
"""What one reading transaction copies, a quarter of a second: vacuum is not kept waiting."""
SECRETLY: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
NO_LAKE: Final = "There is no lake: set BROKER_LAKE to a folder that Spark can write to, for all workers alike."

Application = Callable[..., Ended]
"""What does a job, in the way of `run_application`."""

log = structlog.get_logger(__name__)


def problem_of(lake: str) -> str:
    """Return why a folder cannot be the lake, and what to do; empty if it can, or is the URL of something else."""
    if "://" in lake:
        return ""
    try:
        Path(lake).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        return NOT_WRITABLE.format(lake, failure.strerror)
    return "" if os.access(lake, os.W_OK | os.X_OK) else NOT_WRITABLE.format(lake, "permission denied")


def storable(told: Any) -> Any:
    """Return a value of JSON without what PostgreSQL takes into no text: NUL is left out, half a character is `?`."""
    match told:
        case str():
            return told.replace("\0", "").encode(errors="replace").decode()
        case list():
            return [storable(one) for one in told]
        case dict():
            return {storable(name): storable(one) for name, one in told.items()}
        case _:
            return told


def take_up(terms: SparkTerms, *, stopping: threading.Event, application: Application = run_application) -> None:
    """Do all runs that wait, those whose hint was lost too, the oldest first, until another one is under way."""
    for run_id in run_records.waiting():
        if stopping.is_set() or not run(run_id, terms, stopping=stopping, application=application):
            return


def run(
    run_id: int,
    terms: SparkTerms,
    *,
    stopping: threading.Event,
    tell: Callable[[str], object] = lambda _: None,
    application: Application = run_application,
    stopped: Ending = STOPPED,
) -> Run | None:
    """Do a run that waits, or a range that was abandoned; return it as it ended.

    None where another run is under way, or this one has been done: nothing has happened then. `tell` gets the progress,
    for people; `stopped` is how it ends where `stopping` ends it. While Spark runs one connection to the database is
    held: it says that somebody does this run, and ends with him.
    """
    run_records.abandon_vanished()
    done = None
    with suppress(AnotherRun), only_run(terms.database_url, WORKER_LOCK):
        done = _do(run_id, terms, stopping, tell, application, stopped)
    if done:
        run_requests.hint_waiting()
    return done


def _do(
    run_id: int,
    terms: SparkTerms,
    stopping: threading.Event,
    tell: Callable[[str], object],
    application: Application,
    stopped: Ending,
) -> Run | None:
    begun = run_records.begin(run_id)
    if begun is None:
        return None
    record, end = Record(begun), INTERRUPTED
    start = partial(
        application,
        master=terms.master,
        database_url=terms.database_url,
        environment=terms.environment,
        seconds=60.0 * terms.minutes,
        stopping=stopping,
    )
    try:
        end = _summarize(record, terms, start, tell)
        end = stopped if end is STOPPED else end
    finally:
        record.end(end.state, end.error, stopping)
        log.info("summaries.ended", run=run_id, state=end.state, error=end.error)
    return Run.objects.get(pk=run_id)


def _summarize(record: Record, terms: SparkTerms, start: Application, tell: Callable[[str], object]) -> Ending:
    """Find what is due, let Spark do it, and return how that ended."""
    assert record.run.started_at  # noqa: S101 - it has begun
    windows = due(record.run, calendar(record.run.started_at, call_seconds=terms.call_seconds))
    forget_connection()
    log.info("summaries.begun", run=record.run.pk, windows=len(windows))
    if not windows:
        return Ending(RunState.PASSED)
    if problem := problem_of(terms.lake) if terms.lake else NO_LAKE:
        return Ending(RunState.FAILED, problem)
    tell(f"Windows to be summarized: {len(windows)}, from {windows[0]} on. Spark starts ...")
    with tempfile.TemporaryDirectory(prefix="broker-run-") as folder:
        job, printed = Path(folder, "job.json"), Path(folder, "log")
        with os.fdopen(os.open(job, SECRETLY, 0o600), "w") as file:
            file.write(_job(record.run, windows, terms).as_json())
        try:
            ended = start(job, log=printed, on_report=lambda report: _hear(storable(report), record, tell))
        except Exception as failure:
            if known := not_begun(failure):
                return known
            raise
        finally:
            record.log = kept(printed)
    end = ending(ended, windows, record.heard, terms.minutes)
    if cut := cut_short(ended, windows, record.heard, terms.minutes):
        record.failed(*cut)
    return end


def _job(run: Run, windows: Sequence[Window], terms: SparkTerms) -> Job:
    return Job(
        run=run.pk,
        windows=tuple(windows),
        lake=terms.lake,
        master=terms.master,
        memory=terms.memory,
        vocabulary=vocabulary(),
        objective=terms.objective,
        slice_rows=SLICE_ROWS,
    )


def _hear(report: Mapping[str, Any], record: Record, tell: Callable[[str], object]) -> None:
    match report:
        case {"window": _}:
            record.window(report)
        case {"progress": text}:
            tell(text)
        case {"error": text}:
            record.heard.error = text
        case {"ready": seconds}:
            tell(f"Spark is ready after {seconds:.1f} s")
