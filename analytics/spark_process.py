"""Spark as a supervised child process: its log, its reports, and its end."""

import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from analytics.guard import GRACE_SECONDS, SIGNALLED, end_session
from analytics.spark_settings import spark_environment

HEAD_BYTES: Final = 256 * 1024
"""How it began."""
TAIL_BYTES: Final = 256 * 1024
"""How it ended, at the least; twice as much while it grows."""
MAX_KEPT_BYTES: Final = 64 * 1024
"""So much is kept of the beginning in the database, and as much of the end."""
OPTIONS_OF_JAVA: Final = re.compile(rb"^NOTE: Picked up JDK_JAVA_OPTIONS:.*\n?", re.MULTILINE)
"""Every Java says what it was told, passwords of stores of certificates among it."""

GUARD: Final = Path(__file__).with_name("guard.py")
REPORTS: Final = "BROKER_REPORT_FD"
"""The variable that tells the process where to report: a descriptor, a JSON object a line."""
MAX_REPORT_BYTES: Final = 4 * 1024 * 1024
LOOK_SECONDS: Final = 0.25
CHUNK: Final = 64 * 1024

Report = Mapping[str, Any]

APPLICATION: Final = "analytics.pipeline"


class RunLog:
    """A file of its owner that keeps the head and the tail of what is written to it."""

    def __init__(self, path: Path, *, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._head, self._tail = head, tail
        self._size = self._left_out = 0
        self._tail_starts = head

    def write(self, text: bytes) -> None:
        """Append; what is between head and tail is left out, which the file says."""
        for start in range(0, len(text), self._tail):
            self._size += os.pwrite(self._file, text[start : start + self._tail], self._size)
            if self._size > self._tail_starts + 2 * self._tail:
                self._shorten()

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)

    def _shorten(self) -> None:
        tail = os.pread(self._file, self._tail, self._size - self._tail)
        self._left_out += self._size - self._tail_starts - self._tail
        said = f"\n... {self._left_out} bytes are left out here ...\n".encode()
        self._tail_starts = self._head + len(said)
        self._size = self._head + os.pwrite(self._file, said + tail, self._head)
        os.ftruncate(self._file, self._size)


def kept(printed: Path) -> str:
    """Return what was printed, or its beginning and its end, as PostgreSQL takes it; not what Java was told."""
    text = OPTIONS_OF_JAVA.sub(b"", printed.read_bytes() if printed.exists() else b"")
    if len(text) > 2 * MAX_KEPT_BYTES:
        text = text[:MAX_KEPT_BYTES] + b"\n...\n" + text[-MAX_KEPT_BYTES:]
    return text.decode(errors="replace").replace("\0", "")


class NotAReport(Exception):
    """The process has reported what is no JSON object of a bearable size."""


class GuardedProcess:
    """A command under a guard, which ends everything once this hangs up or is gone, and removes the folder."""

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
        self._report = b""
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
        assert self._guard.stdout  # noqa: S101 - it is a pipe
        self._reports = os.fdopen(reports, "rb")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reports, selectors.EVENT_READ, self._hear_report)
        self._selector.register(self._guard.stdout, selectors.EVENT_READ, self._log.write)

    def is_running(self) -> bool:
        """Say whether the guard still has something to guard."""
        return self._guard.poll() is None

    def listen(self) -> bool:
        """Pass on what comes within a moment; say whether anything did."""
        heard = False
        for key, _ in self._selector.select(LOOK_SECONDS):
            chunk = os.read(key.fd, CHUNK)
            heard = heard or bool(chunk)
            key.data(chunk) if chunk else self._selector.unregister(key.fileobj)
        return heard

    def hear_the_rest(self) -> None:
        """Pass on what was written before the end."""
        while self._selector.get_map() and self.listen():
            pass

    def hang_up(self) -> None:
        """Let the guard end everything: in order if it can, else by force."""
        assert self._guard.stdin  # noqa: S101 - it is a pipe
        self._guard.stdin.close()

    def end(self) -> int:
        """Return the status once nothing is left."""
        self.hang_up()
        try:
            status = self._guard.wait(2 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            status = self._guard.wait()
        if status < 0:  # somebody has killed it, so that it could end nothing
            end_session(self._guard.pid)
        self._close()
        return status if status >= 0 else SIGNALLED - status

    def _hear_report(self, chunk: bytes) -> None:
        *lines, self._report = (self._report + chunk).split(b"\n")
        if len(self._report) > MAX_REPORT_BYTES:
            raise NotAReport(f"{len(self._report)} bytes without an end of line")
        for line in lines:
            self._on_report(_read(line))

    def _close(self) -> None:
        self._selector.close()
        self._reports.close()
        self._log.close()
        assert self._guard.stdout  # noqa: S101 - it is a pipe
        self._guard.stdout.close()


def _read(line: bytes) -> Report:
    try:
        report = json.loads(line)
    except ValueError as problem:
        raise NotAReport(f"{line[:100]!r}: {problem}") from problem
    if not isinstance(report, dict):
        raise NotAReport(f"{line[:100]!r} is no object")
    return report


class End(Enum):
    """Why a run is over."""

    BY_ITSELF = auto()
    TOO_LONG = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    end: End
    status: int
    """Of the application, 0 if it has done everything; 128 and more tell the signal that ended it."""


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
    """Run the application on a job, for so many seconds at most, or until `stopping`; nothing of it is left then.

    `environment` is the worker's own, of which it gets what it needs; `log` gets the head and the tail of what it
    prints. Whatever `on_report` raises ends the run.

    Raises:
        NoJava: there is none to run it on.
        NotAReport: the application is not ours.

    """
    with tempfile.TemporaryDirectory(prefix="broker-spark-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        command = (sys.executable, "-P", "-m", APPLICATION, str(job.resolve()))
        variables = spark_environment(scratch, master=master, database_url=database_url, environment=environment)
        spark = GuardedProcess(command, variables, scratch, log=log, on_report=on_report)
        return ended(spark, seconds=seconds, stopping=stopping)


def ended(spark: GuardedProcess, *, seconds: float, stopping: threading.Event) -> Ended:
    """Listen to a process until it has ended, by itself or because its time is over; nothing of it is left then."""
    until, end = time.monotonic() + seconds, End.BY_ITSELF
    try:
        while spark.is_running():
            spark.listen()
            if end is End.BY_ITSELF and (stopping.is_set() or time.monotonic() > until):
                end = End.STOPPED if stopping.is_set() else End.TOO_LONG
                spark.hang_up()
        spark.hear_the_rest()
    finally:
        status = spark.end()
    return Ended(end, status)
