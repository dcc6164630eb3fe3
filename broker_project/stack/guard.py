"""A process that ends everything the supervisor started if the supervisor dies.

The kernel's parent-death signal reaches children, but not grandchildren such as granian's worker. The guard knows all
process groups. When the pipe to its standard input closes, which `kill -9` of the supervisor does too, it ends them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

from broker_project.core.subprocesses import running_processes
from broker_project.stack.folders import ROOT

CLEAN_END_SECONDS = 10.0
"""Time for a database to shut down before it is killed."""


class Guard:
    """The supervisor's side of the guard."""

    def __init__(self, *, keep: int) -> None:
        """Start the guard. It keeps the file `keep` open, so that a lock on it lasts until the guard has finished."""
        reading, self._pipe = os.pipe()
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "broker_project.stack.guard"),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(keep,),
        )
        os.close(reading)

    def watch(self, group: int, death_signal: signal.Signals) -> None:
        """Let the guard end this process group if the supervisor dies."""
        self._tell(f"{group} {int(death_signal)}\n")

    def forget(self, group: int) -> None:
        """Tell the guard that this process group has ended."""
        self._tell(f"{group} 0\n")

    def _tell(self, line: str) -> None:
        """Send a line to the guard; without effect if it was killed, because services must go on and restart."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())

    def dismiss(self) -> None:
        """Let the guard end the groups that are left, then exit."""
        os.close(self._pipe)
        self._process.wait()


def main() -> None:
    """Read process groups until the pipe closes; signal those that are left, and kill those that do not end in time."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    watched: dict[int, int] = {}
    for line in sys.stdin:
        group, death_signal = map(int, line.split())
        if death_signal:
            watched[group] = death_signal
        else:
            watched.pop(group, None)
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


if __name__ == "__main__":
    main()
