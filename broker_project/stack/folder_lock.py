"""One stack at a time in a folder: a lock that ends with its process, however that ends."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LAST_WILL_SECONDS = 20.0
"""How long a killed stack's guard may take to end its processes."""


class AlreadyRunning(Exception):
    """Another process runs a stack in this folder."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[IO[str]]:
    """Hold the lock; wait for the guard of a killed predecessor, but not for a live one."""
    with path.open("a+") as lock:
        deadline = time.monotonic() + LAST_WILL_SECONDS
        while not _try(lock):
            holder = _holder(path)
            if is_alive(holder) or time.monotonic() > deadline:
                raise AlreadyRunning(f"a stack is running in {path.parent} (process {holder})")
            time.sleep(0.05)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield lock


def is_locked(path: Path) -> bool:
    """Say whether a stack is running there."""
    if not path.exists():
        return False
    with path.open() as lock:
        return not _try(lock)


def _try(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> int:
    text = path.read_text()
    return int(text) if text.isdigit() else 0


def is_alive(pid: int) -> bool:
    """Say whether there is such a process, and not only its remains."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}
