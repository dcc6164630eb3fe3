"""A process that outlives the supervisor only to end everything the supervisor had started.

The kernel's parent death signal reaches children but not grandchildren (granian's worker); the guard
knows every process group. It is forked before there are threads, holds the read end of a pipe, and
acts when the write end is closed: by `kill -9` of the supervisor too.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Self

from broker_project.core.subprocesses import running_processes

STANDARD_STREAMS = (0, 1, 2)
CLEAN_END_SECONDS = 10.0
"""Time for a database to shut down before it is killed as well."""


class Guard:
    """The supervisor's end of the pipe."""

    def __init__(self, pipe: int, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid

    @classmethod
    def start(cls, *, keep: int) -> Self:
        """Fork the guard; it holds the file `keep`, so that a lock on it lasts until the guard has finished."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_guard(reading, keep)
        os.close(reading)
        return cls(writing, pid)

    def watch(self, group: int, death_signal: signal.Signals) -> None:
        """End this process group when the supervisor is gone."""
        os.write(self._pipe, f"{group} {int(death_signal)}\n".encode())

    def forget(self, group: int) -> None:
        """Leave this process group alone: it has ended."""
        os.write(self._pipe, f"{group} 0\n".encode())

    def dismiss(self) -> None:
        """Let the guard end what is left, and go."""
        os.close(self._pipe)
        os.waitpid(self._pid, 0)


def _be_guard(reading: int, keep: int) -> None:
    """Read what is to be watched until nobody writes any more; then end it. Never returns."""
    try:
        os.setsid()
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
        _close_all_but(reading, keep)
        _end(_read(reading))
    finally:
        os._exit(0)


def _close_all_but(*kept: int) -> None:
    """Hold nobody's pipe or terminal open."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in STANDARD_STREAMS:
        os.dup2(nowhere, standard)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number not in {*STANDARD_STREAMS, *kept}:
            with contextlib.suppress(OSError):
                os.close(number)


def _read(reading: int) -> dict[int, int]:
    """Return the groups that were watched when the pipe was closed, with their signals."""
    watched: dict[int, int] = {}
    with os.fdopen(reading) as lines:
        for line in lines:
            group, death_signal = map(int, line.split())
            if death_signal:
                watched[group] = death_signal
            else:
                watched.pop(group, None)
    return watched


def _end(watched: dict[int, int]) -> None:
    """Signal every group; kill what has not ended in time."""
    for group, death_signal in watched.items():
        _signal(group, death_signal)
    deadline = time.monotonic() + CLEAN_END_SECONDS
    while watched.keys() & {running.group for running in running_processes()} and time.monotonic() < deadline:
        time.sleep(0.05)
    for group in watched:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
