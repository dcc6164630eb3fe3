"""What child processes of the broker do at their start, and which processes are running."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PR_SET_PDEATHSIG: Final = 1
AUTOGROUP: Final = Path("/proc/self/autogroup")
"""Where Linux first shares the CPU among sessions (sched(7)), niceness counts within a session only. So a process that
lowers its priority starts its own session and gives that session the same niceness."""
AUTOGROUP_SECONDS: Final = 2.0
"""Linux accepts one change of a session's niceness in 0.1 s, for all users together."""
RETRY_SECONDS: Final = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


class ProcessIds(NamedTuple):
    """The ids of a running process, its process group and its session."""

    pid: int
    group: int
    session: int


def die_with(parent: int, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel signal this process when its parent dies; exit at once if `parent` has already died."""
    _libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def lower_priority(niceness: int) -> None:
    """Raise the niceness of this process and of its session, which must be its own."""
    os.nice(niceness)
    deadline = time.monotonic() + AUTOGROUP_SECONDS
    while time.monotonic() < deadline:
        try:
            AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(RETRY_SECONDS)
        except OSError:
            return  # this kernel has no autogroups
        else:
            return


def running_processes() -> Iterator[ProcessIds]:
    """Yield all processes of this machine except zombies, which may never be reaped."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end at any moment
            state, _parent, group, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if state not in {"Z", "X"}:
                yield ProcessIds(int(process.name), int(group), int(session))
