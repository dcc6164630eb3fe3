"""Run the summarizing application: in this process, in its own process, on a standalone cluster."""

import datetime as dt
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
import pyspark
from pyspark.sql import SparkSession

from analytics.pipeline.application import Status, summarize_all
from analytics.pipeline.connections import only_run
from analytics.pipeline.extraction.source import register
from analytics.pipeline.job import Job, Reports, Vocabulary, Window
from analytics.pipeline.lake import Lake
from analytics.pipeline.lake_files import LakeFiles
from analytics.pipeline.manifests import Manifest, path_of
from analytics.pipeline.tables import GOLD, Table
from analytics.pipeline.window import WindowRun
from analytics.spark_process import spark_environment
from analytics.vocabulary import vocabulary
from broker_project.stack.load.wait import wait_until
from tests.support.database import execute
from tests.support.spark_history import DAY, database_address

WHOLE_DAY = Window(dt.datetime(2026, 3, 2, tzinfo=dt.UTC), dt.datetime(2026, 3, 3, tzinfo=dt.UTC))
Row = tuple[Any, ...]

QUICK_START: Final = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Compiling well does not pay for a run of a few rows."""

SPARK: Final = Path(pyspark.__file__).parent
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
ANY_PORT: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
ADDRESS: Final = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED: Final = re.compile(r"Successfully registered with master")
SAVED: Final = re.compile(r"Saved output of task .*/(\w+/\w+)/dt=")


def hour(number: int) -> Window:
    start = WHOLE_DAY.start + dt.timedelta(hours=number)
    return Window(start, start + dt.timedelta(hours=1))


def job(lake: Path, *windows: Window, run: int = 1, master: str = "local[1]", slice_rows: int = 100_000) -> Job:
    return Job(
        run=run,
        windows=windows or (WHOLE_DAY,),
        lake=str(lake),
        master=master,
        memory="1g",
        vocabulary=vocabulary(),
        objective=0.999,
        slice_rows=slice_rows,
    )


class ReportStream(io.StringIO):
    """A stream that keeps reports; a test can act when a text is reported."""

    def __init__(self, on_report: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self._on_report = on_report

    def write(self, text: str) -> int:
        written = super().write(text)
        self._on_report(text)
        return written

    def windows(self) -> list[dict[str, Any]]:
        reports = [json.loads(line) for line in self.getvalue().splitlines()]
        return [report for report in reports if "window" in report]


@dataclass
class Summarizer:
    """Summarizes with one lake."""

    spark: SparkSession
    folder: Path
    runs: int = 0
    reports: ReportStream = field(default_factory=ReportStream)
    words: Vocabulary = field(default_factory=vocabulary)

    def run(self, *windows: Window, reports: ReportStream | None = None) -> Status:
        """Do what the application does, on the session there is."""
        self.runs += 1
        self.reports = reports or ReportStream()
        if self.spark:
            register(self.spark, database_address())
        reporting = Reports(self.reports, io.StringIO())
        with only_run(database_address()) as ensure_locked:
            asked = replace(job(self.folder, *windows, run=self.runs), vocabulary=self.words)
            return summarize_all(WindowRun(asked, self.lake, database_address(), ensure_locked, reporting))

    @property
    def lake(self) -> Lake:
        return Lake(LakeFiles.at(str(self.folder)), lambda: self.spark)

    def manifest(self) -> Manifest:
        return manifest_of(self.folder)

    def rows(self, table: Table) -> list[Row]:
        return rows_of(self.folder, table)

    def gold(self) -> Mapping[str, list[Row]]:
        return {table.name: self.rows(table) for table in GOLD}


def manifest_of(folder: Path) -> Manifest:
    text = LakeFiles.at(str(folder)).text(path_of(DAY))
    return Manifest.from_json(text) if text else Manifest(DAY)


def rows_of(folder: Path, table: Table) -> list[Row]:
    """Return what a lake has of the day, read without Spark, in a fixed order."""
    parts = [part.folder for part in manifest_of(folder).parts() if part.table == table.path]
    rows = [row for part in parts for row in ds.dataset(folder / part, format="parquet").to_table().to_pylist()]
    return sorted((tuple(row.values()) for row in rows), key=repr)


def loaded(table: Table) -> list[Row]:
    """Return the rows of a summary in PostgreSQL, without their ids."""
    names = ", ".join(f'"{name}"' for name in table.types)
    return sorted(execute(f"SELECT {names} FROM analytics_{table.name}"), key=repr)


def all_loaded() -> Mapping[str, list[Row]]:
    return {table.name: loaded(table) for table in GOLD}


KILLED = """
import os, signal, sys
from pathlib import Path
from analytics.pipeline.application import run
from analytics.pipeline.job import Job, Reports

class Killing:
    def write(self, text):
        if sys.argv[2] in text:
            os.kill(os.getpid(), signal.SIGKILL)
    def flush(self):
        pass

run(Job.from_json(Path(sys.argv[1]).read_text()), os.environ["DATABASE_URL"], Reports(Killing(), sys.stdout))
"""
"""The application, killed by force as soon as it reports a text."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and what it reported."""

    status: int
    printed: str
    reports: list[Mapping[str, Any]]


def run_process(folder: Path, job: Job, *arguments: str, more: Mapping[str, str] | None = None) -> Ended:
    """Run the application, or another program instead of it, on a job; wait for its end."""
    scratch = folder / f"scratch-{job.run}"
    scratch.mkdir(parents=True)
    file = scratch / "job.json"
    file.write_text(job.as_json())
    reports, reporting = os.pipe()
    environment = os.environ | dict(more or {})
    variables = spark_environment(scratch, master=job.master, database_url=database_address(), environment=environment)
    command = arguments or ("-P", "-m", "analytics.pipeline", "JOB")
    with os.fdopen(reports) as lines:
        ended = subprocess.run(
            [sys.executable, *(str(file) if one == "JOB" else one for one in command)],
            env=variables | {"BROKER_REPORT_FD": str(reporting), **QUICK_START} | dict(more or {}),
            cwd=scratch,
            pass_fds=[reporting],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        os.close(reporting)
        return Ended(ended.returncode, ended.stdout, [json.loads(line) for line in lines])


@dataclass(frozen=True, slots=True)
class Cluster:
    address: str
    workers: tuple[Path, ...]
    """The folder of each."""
    settings: Path
    """What SPARK_CONF_DIR must be for an application to wait for all workers before it begins."""

    def tables_written(self, worker: Path) -> set[str]:
        """Return what the executors of one worker have written of the lake, as they say themselves."""
        logs = "\n".join(log.read_text() for log in worker.rglob("stderr"))
        return set(SAVED.findall(logs))


@contextmanager
def running_cluster(folder: Path, java_home: str) -> Iterator[Cluster]:
    """Start a cluster in a folder, where nothing of the project is; end it afterwards."""
    environment = {"PATH": os.environ["PATH"], "JAVA_HOME": java_home, "SPARK_LOCAL_IP": "127.0.0.1", **QUICK_START}
    folders = (folder / "worker-0", folder / "worker-1")
    with ExitStack() as stack:
        log = stack.enter_context(_running(folder / "master", environment, MASTER, *ANY_PORT))
        address = _said(log, ADDRESS)
        for place in folders:
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(place))
            log = stack.enter_context(_running(place, environment, WORKER, *ANY_PORT, *size, address))
            _said(log, REGISTERED)
        yield Cluster(address, folders, _settings(folder / "conf", cores=len(folders)))


def _settings(folder: Path, cores: int) -> Path:
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(
        f"spark.cores.max {cores}\n"
        "spark.scheduler.minRegisteredResourcesRatio 1.0\n"
        "spark.scheduler.maxRegisteredResourcesWaitingTime 600s\n"
    )
    return folder


def _said(log: Path, words: re.Pattern[str]) -> str:
    """Wait until a log has some words; return the last of them."""
    wait_until(lambda: words.search(log.read_text()), saying=log.read_text)
    (*_, found) = words.findall(log.read_text())
    return str(found)


@contextmanager
def _running(folder: Path, environment: Mapping[str, str], *command: str) -> Iterator[Path]:
    folder.mkdir(parents=True)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            (str(SPARK / "bin" / "spark-class"), *command),
            cwd=folder,
            env={**environment, "SPARK_HOME": str(SPARK), "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait()
