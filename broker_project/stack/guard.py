"""A process that ends everything the supervisor started if the supervisor dies.

The kernel's parent-death signal reaches children, but not grandchildren such as granian's worker. The guard knows all
process groups. It is forked before there are threads, and reads a pipe. When the pipe closes, which `kill -9` of the
supervisor does too, it ends the groups.
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
"""Time for a database to shut down before it is killed."""


class Guard:
    """The supervisor's side of the guard."""

    def __init__(self, pipe: int, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid

    @classmethod
    def start(cls, *, keep: int) -> Self:
        """Fork the guard. It keeps the file `keep` open, so that a lock on it lasts until the guard has finished."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_guard(reading, keep)
        os.close(reading)
        return cls(writing, pid)

    def watch(self, group: int, death_signal: signal.Signals) -> None:
        """Let the guard end this process group if the supervisor dies."""
        os.write(self._pipe, f"{group} {int(death_signal)}\n".encode())

    def forget(self, group: int) -> None:
        """Tell the guard that this process group has ended."""
        os.write(self._pipe, f"{group} 0\n".encode())

    def dismiss(self) -> None:
        """Let the guard end the groups that are left, then exit."""
        os.close(self._pipe)
        os.waitpid(self._pid, 0)


def _be_guard(reading: int, keep: int) -> None:
    """Read process groups until the pipe closes, then end them. Never returns."""
    try:
        os.setsid()
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
        _close_all_but(reading, keep)
        _end(_read(reading))
    finally:
        os._exit(0)


def _close_all_but(*kept: int) -> None:
    """Close all descriptors except these, so that no pipe or terminal stays open."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in STANDARD_STREAMS:
        os.dup2(nowhere, standard)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number not in {*STANDARD_STREAMS, *kept}:
            with contextlib.suppress(OSError):
                os.close(number)


def _read(reading: int) -> dict[int, int]:
    """Return the groups that were watched when the pipe closed, with their signals."""
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
    """Signal all groups, then kill those that have not ended in time."""
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
