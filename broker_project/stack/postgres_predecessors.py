"""What is left of a PostgreSQL that ran on a folder before: ended if it still runs, waited for if it was killed."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = Path("/proc/sysvipc/shm")
"""Where Linux tells of each piece of shared memory its id and how many processes have it, in these columns:"""
ID, PROCESSES = 1, 6
NAMED: Final = slice(6, 7)
"""The line of `postmaster.pid` that names a server's shared memory, by key and id."""
LOOK_SECONDS: Final = 0.1


def end_predecessor(data: Path, seconds: float = 20.0) -> None:
    """End a server that still runs on this folder, and see the processes out that a killed one has left.

    Those end as soon as they notice, for which a busy machine may leave them no time; meanwhile PostgreSQL starts no
    other. A process id that is another program's by now is forgotten, and so is all of it after so many seconds: what
    keeps PostgreSQL from starting then it says itself.
    """
    pid_file = data / "postmaster.pid"
    deadline = time.monotonic() + seconds
    while (lines := _lines(pid_file)) is not None:
        pid, is_late = int("".join(lines[:1]) or 0), time.monotonic() >= deadline
        if _is_server(pid, data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGINT)
        elif is_late or not _has_processes(lines):
            pid_file.unlink(missing_ok=True)
            return
        time.sleep(LOOK_SECONDS)


def _lines(pid_file: Path) -> Sequence[str] | None:
    try:
        return pid_file.read_text().splitlines()
    except FileNotFoundError:
        return None


def _is_server(pid: int, data: Path) -> bool:
    try:
        return os.fsencode(data) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _has_processes(lines: Sequence[str]) -> bool:
    """Say whether somebody still has the server's shared memory, as PostgreSQL asks before it starts another."""
    ids = "".join(lines[NAMED]).split()[1:]
    try:
        rows = [row.split() for row in SHARED_MEMORY.read_text().splitlines()[1:]]
    except OSError:
        return False
    return any(row[ID] in ids and row[PROCESSES] != "0" for row in rows)
