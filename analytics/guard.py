"""The parent process of the Spark application, which ends all of its processes however it or the worker ends.

It is started by its path, in its own session. Its standard input is a pipe whose other end only the worker holds: when
that is closed, even by `kill -9` of the worker, everything in the session ends. A signal to the process group would
miss Spark's Python workers, which have their own.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from broker_project.core.subprocesses import die_with, lower_priority, running_processes

NICENESS: Final = 10
"""Publishing and delivering come first: on a core that another process keeps busy, niceness 10 gets a tenth of it.

Niceness 19 gets a seventieth and spares other processes no more: half a minute's work takes 35 minutes, not 5.
"""
OOM_ADJUSTMENT: Final = "800"
"""When memory runs out, Linux kills this before PostgreSQL or a worker: a run can be repeated."""
UMASK: Final = 0o077
"""The lake contains endpoint addresses, which may hold secrets."""
POLL_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 5.0
"""Processes that end in order take a second; after this they are killed."""
SIGNALLED: Final = 128
"""Added to the signal that ended the application, as in a shell."""


def main(folder: str, command: Sequence[str], kept_open: Sequence[int]) -> int:
    """Run a command with these descriptors; end all its processes, delete the folder and return its exit status."""
    os.umask(UMASK)
    lower_priority(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_ADJUSTMENT)
    application = subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=kept_open,
        preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - there are no threads
    )
    while application.poll() is None and not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        pass
    end_session(os.getsid(0))
    shutil.rmtree(folder, ignore_errors=True)
    code = application.wait()
    return code if code >= 0 else SIGNALLED - code


def end_session(session: int) -> None:
    """End every process of a session except this one: in order if they can, else by force."""
    asked: set[int] = set()
    deadline = time.monotonic() + GRACE_SECONDS
    while left := members(session):
        is_over = time.monotonic() > deadline
        for pid in left if is_over else left - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_over else signal.SIGTERM)
        asked |= left
        time.sleep(POLL_SECONDS)


def members(session: int) -> set[int]:
    """Return the processes of a session, without this one and zombies."""
    return {running.pid for running in running_processes() if running.session == session} - {os.getpid()}


if __name__ == "__main__":
    reports, its_folder, *its_command = sys.argv[1:]
    sys.exit(main(its_folder, its_command, [int(reports)]))
