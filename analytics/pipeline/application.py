"""The Spark application: starts Spark and summarizes a job's windows; a failed window does not stop the others."""

import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from analytics.pipeline.connections import AnotherRun, only_run
from analytics.pipeline.extraction.source import register
from analytics.pipeline.job import REPORTS, Job, Progress, Reports, Window, is_local
from analytics.pipeline.lake import Lake
from analytics.pipeline.lake_files import LakeFiles
from analytics.pipeline.window import (
    RUN_FAILURES,
    WINDOW_FAILURES,
    WindowRun,
    idle_windows,
    reason,
    recompute_days,
    summarize,
    summarize_idle,
)

DATABASE: Final = "DATABASE_URL"
USAGE: Final = f"usage: python -m analytics.pipeline JOB.json (with {DATABASE} in the environment)"

NAME: Final = "broker summaries"
PACKAGE: Final = Path(__file__).resolve().parents[1]
LOGGING: Final = Path(__file__).with_name("log4j2.properties")

SETTINGS: Final = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential|database",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Takes a quarter less space than the default.
    "spark.sql.parquet.compression.codec": "zstd",
    # Other tools do not read INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # Otherwise the history for the UI grows with the number of windows.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Only the owner may read the lake: Hadoop has its own umask and ignores the process's.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    # Small partitions are coalesced; one partition of a day of ten million rows still sorts in memory.
    "spark.sql.shuffle.partitions": "32",
    "spark.ui.enabled": "false",
}


class Status(IntEnum):
    """The exit status of the application."""

    DONE = 0
    """Every window is summarized."""
    FAILED = 1
    """Some windows failed, or some later days are not recomputed; the reports say which."""
    NOT_DONE = 2
    """The run ended before its windows were done: no database, no lake, no Spark, or no job."""
    ANOTHER_RUN = 75
    """Another run is in progress; nothing has been done."""


def main(arguments: list[str]) -> int:
    """Do the job that a file describes; return the exit status."""
    if len(arguments) != 1 or DATABASE not in os.environ:
        print(USAGE, file=sys.stderr)
        return Status.NOT_DONE
    job = Job.from_json(Path(arguments[0]).read_text())
    descriptor = os.environ.get(REPORTS)
    with os.fdopen(int(descriptor) if descriptor else os.open(os.devnull, os.O_WRONLY), "w") as stream:
        return run(job, os.environ[DATABASE], Reports(stream, sys.stdout))


def run(job: Job, database: str, reports: Reports) -> Status:
    """Do a job with the database at an address."""
    try:
        with only_run(database) as ensure_locked, ExitStack() as started:

            @cache
            def spark() -> SparkSession:
                since = time.monotonic()
                session = started.enter_context(spark_session(job))
                register(session, database)
                reports.progress(f"Spark is ready after {time.monotonic() - since:.1f} s")
                return session

            lake = Lake(LakeFiles.at(job.lake), spark)
            return summarize_all(WindowRun(job, lake, database, ensure_locked, reports))
    except AnotherRun as other:
        reports.ended(str(other))
        return Status.ANOTHER_RUN
    except RUN_FAILURES as failure:
        reports.ended(reason(failure))
        return Status.NOT_DONE


def summarize_all(run: WindowRun) -> Status:
    """Delete what earlier runs left, summarize idle windows, then the others, and recompute the days after them."""
    run.lake.sweep(run.reports.progress)
    idle = idle_windows(run)
    run.reports.windows = [window for window in run.job.windows if window not in idle]
    passed = list[Window]()
    for window in (*idle, *run.reports.windows):
        started, progress = time.monotonic(), Progress()
        try:
            (summarize_idle if window in idle else summarize)(run, window, progress)
        except WINDOW_FAILURES as failure:
            run.reports.window(window, progress, time.monotonic() - started, reason(failure))
        else:
            run.reports.window(window, progress, time.monotonic() - started)
            passed.append(window)
    are_current = recompute_days(run, [window.day for window in passed if window not in idle])
    return Status.DONE if are_current and len(passed) == len(run.job.windows) else Status.FAILED


@contextmanager
def spark_session(job: Job) -> Iterator[SparkSession]:
    """Start Spark, or take the session that `spark-submit` has started; stop it at the end.

    Executors get `analytics.pipeline` as an archive: on a cluster nothing of the project is installed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SETTINGS | (LOCAL_SETTINGS if is_local(job.master) else {})
    builder = SparkSession.builder.appName(NAME).master(job.master).config("spark.driver.memory", job.memory)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with tempfile.TemporaryDirectory(prefix="broker-package-") as folder:
        archive = f"{folder}/analytics.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            for module in (PACKAGE / "__init__.py", *PACKAGE.glob("pipeline/**/*.py")):
                packed.write(module, module.relative_to(PACKAGE.parent))
        spark = builder.getOrCreate()
        try:
            spark.sparkContext.addPyFile(archive)
            yield spark
        finally:
            spark.stop()
