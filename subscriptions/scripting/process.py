"""One child process that runs scripts one at a time: started, given jobs, watched, killed."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Final

from subscriptions.scripting.jobs import (
    CPU_SECONDS,
    MAX_HEAD_BYTES,
    MAX_OUTPUT_BYTES,
    TOO_LONG,
    TOO_MUCH_CPU,
    TOTAL_SECONDS,
    TRIAL_CPU_SECONDS,
    Failed,
    Job,
    Lost,
    Result,
    packed,
    result_of,
    take_frame,
)

PROGRAM: Final = Path(__file__).with_name("interpreter.py")
ROOT: Final = PROGRAM.parents[2]
CHUNK: Final = 1024 * 1024
GRACE_SECONDS: Final = 0.05
"""The interpreter itself enforces the CPU limit, except inside a regular expression; then the process is killed."""
MIN_CHECK_SECONDS: Final = 0.005
CRASHES: Final = {
    -number: number.name for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGXCPU, signal.SIGSYS)
}
"""Exit codes that the script has caused; any other end is a kill from outside."""


class ScriptProcess:
    """A child for slow or for other scripts, its job and that job's token; belongs to one thread and dies with it."""

    def __init__(self, *, is_for_slow: bool = False) -> None:
        self.is_for_slow = is_for_slow
        self.is_ready = False
        self.is_killed = False
        """The result of its job has been reported."""
        self.token: Hashable = None
        self.job: Job | None = None
        self.used_seconds = 0.0
        """CPU time of the last job, once that has ended."""
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        theirs.setblocking(True)  # a Celery worker that stops sets a default timeout for new sockets
        quickjs = importlib.util.find_spec("_quickjs")
        assert quickjs and quickjs.origin  # noqa: S101, PT018 - a dependency
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-S", "-P", str(PROGRAM), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={
                    "PYTHONPATH": f"{ROOT}:{Path(quickjs.origin).parent}",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "TZ": "UTC",
                },
                cwd="/",
                start_new_session=True,
            )
        self._out = b""
        self._in = bytearray()
        self._started_at = self._check_at = time.monotonic()
        self._cpu_before = self._max_cpu_seconds = 0.0

    def fileno(self) -> int:
        """Return the descriptor that is readable when it has answered or has ended."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        """Its process id."""
        pid: int = self._process.pid
        return pid

    @property
    def is_free(self) -> bool:
        """Whether it can be given a job."""
        return self.is_ready and not self.job and not self.is_killed

    @property
    def wants_to_send(self) -> bool:
        """Whether part of the job is still to be sent, when the descriptor is writable."""
        return bool(self._out)

    def begin(self, token: Hashable, job: Job) -> None:
        """Send it a job and start that job's clock."""
        cpu_seconds = CPU_SECONDS if self.is_for_slow else TRIAL_CPU_SECONDS
        self.token, self.job = token, job
        self._out = packed(job.head(cpu_seconds), job.body)
        self._max_cpu_seconds = cpu_seconds + GRACE_SECONDS
        self._started_at, self._cpu_before = time.monotonic(), self._cpu_clock()
        self._check_at = self._started_at + self._max_cpu_seconds
        self.send()

    def send(self) -> None:
        """Send as much of the job as the socket accepts now."""
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except (BlockingIOError, InterruptedError):
            return  # later
        except OSError:
            self._out = b""  # it has ended: reading reports that

    def receive(self) -> Result | None:
        """Return its answer, None while incomplete, the first when it is ready.

        Raise `EOFError` if it has ended, or says what our own program does not: a script may have broken out.
        """
        try:
            chunk = self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            chunk = b""
        is_asked = self.job or not self.is_ready
        if not (chunk and is_asked):
            raise EOFError
        self._in += chunk
        try:
            frame = take_frame(self._in, max_head=MAX_HEAD_BYTES, max_body=MAX_OUTPUT_BYTES)
            result = result_of(*frame) if frame else None
        except ValueError:
            raise EOFError from None
        if not result:
            return None
        if self._in:
            raise EOFError
        self.is_ready = True
        self.used_seconds = self._job_cpu()
        return result

    def kill_if_overdue(self, now: float) -> Result | None:
        """Kill it if its job has used up its time; return the job's result then."""
        result: Result | None = None
        if now >= self._started_at + TOTAL_SECONDS:
            result = Lost(TOO_LONG)
        elif now >= self._check_at:
            left = self._max_cpu_seconds - self._job_cpu()
            self._check_at = now + max(left, MIN_CHECK_SECONDS)
            result = Failed(TOO_MUCH_CPU) if left <= 0 else None
        if result:
            self.is_killed = True
            self.used_seconds = self._job_cpu()
            self._process.kill()  # that it has ended is noticed when reading
        return result

    @property
    def next_check(self) -> float:
        """When to call `kill_if_overdue`, monotonic."""
        return min(self._check_at, self._started_at + TOTAL_SECONDS)

    def hang_up(self) -> None:
        """Kill it and stop listening. A script that ends its process counts as slow."""
        self.used_seconds = max(self._job_cpu(), TRIAL_CPU_SECONDS)
        self._socket.close()
        self._process.kill()

    def reap(self) -> Result | None:
        """Return the result of its job after `hang_up`, None until the process has ended."""
        code = self._process.poll()
        if code is None:
            return None
        return Failed(f"it crashed its process ({CRASHES[code]})") if code in CRASHES else Lost("its process is gone")

    def wait(self) -> None:
        """Wait until it has ended."""
        self._process.wait()

    def _job_cpu(self) -> float:
        return self._cpu_clock() - self._cpu_before

    def _cpu_clock(self) -> float:
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the clock that Linux keeps of a process
        except OSError:
            return 0.0  # it has ended
