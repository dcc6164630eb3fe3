"""The program that runs Spark's application and outlives the worker only to end it: nothing is left, however it ends.

It is started by its path in a session of its own. Its standard input is a pipe that only the worker holds the other
end of: when that is closed, by `kill -9` of the worker too, everything in the session ends. A signal to the process
group would miss Spark's Python workers, which have one of their own.
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
"""Publishing and delivering come first, and summaries come to an end all the same.

Linux gives a niceness of 10 a tenth (110 of 1,134) of a core that somebody else keeps busy, 19 a seventieth (15 of
1,039): half a minute's work takes five minutes, or 35. On two cores with ten times as much to do, tasks of 2 ms ended
no later beside it than without: their p95 was 0.8 and 1.0 times that.
"""
OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
FIRST_TO_GO: Final = "800"
"""Where memory runs out Linux ends this before PostgreSQL or a worker: a run can be done again."""
PRIVATE: Final = 0o077
"""What the umask takes away: endpoints' addresses, which may bear secrets, are in the lake."""
LIFELINE: Final = 0
"""The descriptor of the pipe."""
LOOK_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 5.0
"""What ends in order takes a second; then it is killed."""
SIGNALLED: Final = 128
"""Added to the number of the signal that ended the application, as in a shell."""


def main(folder: str, command: Sequence[str], kept_open: Sequence[int]) -> int:
    """Run a command with these descriptors; return its exit status when nothing is left of it, nor of the folder."""
    os.umask(PRIVATE)
    lower_priority(NICENESS)
    with contextlib.suppress(OSError):
        OOM_SCORE.write_text(FIRST_TO_GO)
    application = subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=kept_open,
        preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - there are no threads
    )
    while application.poll() is None and not select.select([LIFELINE], [], [], LOOK_SECONDS)[0]:
        pass
    end_session(os.getsid(0))
    shutil.rmtree(folder, ignore_errors=True)
    code = application.wait()
    return code if code >= 0 else SIGNALLED - code


def end_session(session: int) -> None:
    """End every process of a session but this one: in order if they can, else by force."""
    asked: set[int] = set()
    until = time.monotonic() + GRACE_SECONDS
    while left := members(session):
        is_over = time.monotonic() > until
        for pid in left if is_over else left - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_over else signal.SIGTERM)
        asked |= left
        time.sleep(LOOK_SECONDS)


def members(session: int) -> set[int]:
    """Return the processes of a session, this one aside; zombies do not count."""
    return {running.pid for running in running_processes() if running.session == session} - {os.getpid()}


if __name__ == "__main__":
    reports, its_folder, *its_command = sys.argv[1:]
    sys.exit(main(its_folder, its_command, [int(reports)]))
