"""One process that runs scripts, one at a time: started, asked, watched, killed."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from subscriptions.scripting.jobs import (
    MAX_HEAD_BYTES,
    MAX_OUTPUT_BYTES,
    TOO_LONG,
    TOO_MUCH_CPU,
    TOTAL_SECONDS,
    Failed,
    Job,
    Lost,
    Result,
    packed,
    result_of,
    take_frame,
)

PROGRAM: Final = Path(__file__).with_name("child.py")
ROOT: Final = PROGRAM.parents[2]
CHUNK: Final = 1024 * 1024
GRACE_SECONDS: Final = 0.05
"""A process sees for itself that a script used too much CPU, but not inside a regular expression: then it is killed."""
MIN_LOOK_SECONDS: Final = 0.005
CRASHES: Final = {
    -number: number.name for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGXCPU, signal.SIGSYS)
}
"""What a script did to its process, by its exit code; what is killed from outside is lost."""


class ScriptProcess:
    """A process of ours; it tells when it is ready for its first job. Belongs to one thread, and dies with it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        theirs.setblocking(True)  # a Celery worker that stops lets every new socket of its process have a timeout
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-S", "-P", str(PROGRAM), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={"PYTHONPATH": f"{ROOT}:{_site()}", "PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC"},
                cwd="/",
                start_new_session=True,
            )
        self._out = b""
        self._in = bytearray()
        self._started_at = self._look_at = time.monotonic()
        self._cpu_before = self._cpu_most = 0.0

    def fileno(self) -> int:
        """Return the descriptor that is readable when it has answered or is gone."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        """Its process id."""
        pid: int = self._process.pid
        return pid

    @property
    def wants_to_send(self) -> bool:
        """Whether some of the job is still to be sent, when the descriptor is writable."""
        return bool(self._out)

    def begin(self, job: Job, cpu_seconds: float) -> None:
        """Give it a job that may use so much CPU; its time runs."""
        self._out = packed(job.head(cpu_seconds), job.body)
        self._cpu_most = cpu_seconds + GRACE_SECONDS
        self._started_at, self._cpu_before = time.monotonic(), self.cpu()
        self._look_at = self._started_at + self._cpu_most
        self.send()

    def send(self) -> None:
        """Send what it takes now."""
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except (BlockingIOError, InterruptedError):
            return  # later
        except OSError:
            self._out = b""  # it is gone: reading says so

    def receive(self) -> Result | None:
        """Return its answer, None where it is not complete yet.

        Raises:
            EOFError: the process is gone.

        """
        try:
            chunk = self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            chunk = b""
        if not chunk:
            raise EOFError
        self._in += chunk
        try:
            frame = take_frame(self._in, max_head=MAX_HEAD_BYTES, max_body=MAX_OUTPUT_BYTES)
        except ValueError:
            raise EOFError from None  # nothing that our program says: it is of no use any more
        return result_of(*frame) if frame else None

    def cpu(self) -> float:
        """Return the CPU time it has used, in seconds; 0 where it is gone."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the clock that Linux keeps of a process
        except OSError:
            return 0.0

    def used(self) -> float:
        """Return the CPU time it has used for its job, in seconds."""
        return self.cpu() - self._cpu_before

    def overdue(self, now: float) -> Result | None:
        """Return what becomes of its job if it has used up its time."""
        if now >= self._started_at + TOTAL_SECONDS:
            return Lost(TOO_LONG)
        if now < self._look_at:
            return None
        left = self._cpu_most - self.used()
        self._look_at = now + max(left, MIN_LOOK_SECONDS)
        return Failed(TOO_MUCH_CPU) if left <= 0 else None

    @property
    def next_look(self) -> float:
        """When to ask whether it is overdue, monotonic."""
        return min(self._look_at, self._started_at + TOTAL_SECONDS)

    def kill(self) -> None:
        """End it at once; that it is gone is seen when reading."""
        self._process.kill()

    def hang_up(self) -> None:
        """End it, and hear no more of it."""
        self._socket.close()
        self._process.kill()

    def reap(self) -> Result | None:
        """Return what became of its job, after `hang_up`; None while it is still ending, which others may delay."""
        code = self._process.poll()
        if code is None:
            return None
        if code in CRASHES:
            return Failed(f"it crashed its process ({CRASHES[code]})")
        return Lost("its process is gone")

    def wait(self) -> None:
        """Wait until it has ended."""
        self._process.wait()


def _site() -> str:
    """Return the folder that quickjs is installed in."""
    found = importlib.util.find_spec("_quickjs")
    assert found  # noqa: S101 - a dependency
    assert found.origin  # noqa: S101
    return str(Path(found.origin).parent)
