"""One job in a process of its own, for a thread that waits for it: nobody else's scripts are kept waiting."""

import select
import threading
from typing import Final

from subscriptions.scripting.jobs import Job, NotRun, Result
from subscriptions.scripting.process_pool import MOST_WAITING_SECONDS
from subscriptions.scripting.runner import ScriptRunner

MOST_WAITING: Final = 8
"""Threads that wait for jobs of this kind at once; the others are for publishing."""

_places: Final = threading.BoundedSemaphore(MOST_WAITING)
_one_at_a_time: Final = threading.Lock()


def run_once(job: Job) -> Result:
    """Return what comes of a job; `NotRun` where too many wait already, or this one has for too long."""
    if not _places.acquire(blocking=False):
        return NotRun()
    try:
        return _run(job) if _one_at_a_time.acquire(timeout=MOST_WAITING_SECONDS) else NotRun()
    finally:
        _places.release()


def _run(job: Job) -> Result:
    runner = ScriptRunner(processes=1)
    try:
        runner.run(None, job)
        return _result_of(runner)
    finally:
        runner.close()
        _one_at_a_time.release()


def _result_of(runner: ScriptRunner) -> Result:
    poll = select.poll()
    poll.register(runner.fileno(), select.POLLIN)
    while not (done := runner.finished()):
        poll.poll((runner.patience() or 0.0) * 1000)
    ((_, result),) = done
    return result
