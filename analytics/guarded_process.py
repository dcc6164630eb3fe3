"""A process under a guard: what it prints goes into a log, what it reports is passed on, and nothing of it is left."""

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from analytics.guard import GRACE_SECONDS, SIGNALLED, end_session
from analytics.run_log import RunLog

GUARD: Final = Path(__file__).with_name("guard.py")
REPORTS: Final = "BROKER_REPORT_FD"
"""The variable that tells the process where to report: a descriptor, a JSON object a line."""
MOST_REPORT_BYTES: Final = 4 * 1024 * 1024
LOOK_SECONDS: Final = 0.25
CHUNK: Final = 64 * 1024

Report = Mapping[str, Any]


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
        if len(self._report) > MOST_REPORT_BYTES:
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
