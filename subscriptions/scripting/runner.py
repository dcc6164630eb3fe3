"""The processes that run scripts, for one event loop: jobs in, results out, nobody waits (contract 8.3)."""

import functools
import os
import select
import threading
import time
from collections.abc import Hashable
from typing import Final

import structlog

from subscriptions.scripting.jobs import TOO_MUCH_CPU, TRIAL_CPU_SECONDS, Failed, Job, NotRun, Result
from subscriptions.scripting.process_pool import MAX_WAITING_SECONDS, Seat, Seats, Waiting
from subscriptions.scripting.seccomp import is_possible

MIN_PROCESSES: Final = 2
START_AGAIN_SECONDS: Final = 1.0
"""After a process that did not get ready, or could not be started."""

log = structlog.get_logger(__name__)

MAX_WAITING: Final = 8
"""Threads that wait for jobs of this kind at once; the others are for publishing."""

_places: Final = threading.BoundedSemaphore(MAX_WAITING)
_one_at_a_time: Final = threading.Lock()


class ScriptRunner:
    """Runs scripts in processes, which it starts when there is work; belongs to one thread, whose loop watches it.

    Those known to be slow have processes of their own, one fewer than the others. `fileno` is readable when something
    has come; `patience` says after which time to look anyhow. Without scripts it does nothing.
    """

    def __init__(self, processes: int = 0) -> None:
        most = processes or max(MIN_PROCESSES, os.cpu_count() or 1)
        self._most = {False: most, True: max(1, most - 1)}
        """By whether they are for what is known to be slow."""
        self._seats = Seats()
        self._waiting = Waiting()
        self._done: list[tuple[Hashable, Result]] = []
        self._start_at = 0.0
        self._may_start = True
        """At most one process is started in a look, none where one has ended: either takes a moment."""

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._seats.fileno()

    def run(self, token: Hashable, job: Job) -> None:
        """Run a script when a process is free; its result comes from `finished` under `token`."""
        now = time.monotonic()
        self._waiting.add(token, job, now)
        self._assign(now)

    def finished(self) -> list[tuple[Hashable, Result]]:
        """Return what has come of the jobs since the last call, each once."""
        if self._seats or self._waiting.oldest():
            self._look(time.monotonic())
        done, self._done = self._done, []
        return done

    def patience(self) -> float | None:
        """Return the seconds until something is to be done even if nothing comes, None where nothing is."""
        until = [*self._seats.next_looks()]
        if oldest := self._waiting.oldest():
            until.append(oldest.since + MAX_WAITING_SECONDS)
            if any(self._is_short(slow=slow) for slow in self._most):
                until.append(self._start_at)
        return max(0.0, min(until) - time.monotonic()) if until else None

    def close(self) -> None:
        """End every process; what they were at is forgotten."""
        self._seats.close()

    def _look(self, now: float) -> None:
        self._may_start = True
        for came in (self._seats.answered(), self._seats.overdue(now)):
            for seat, result in came:
                self._end(seat, result, now)
        for seat, result in self._seats.ended():
            self._bury(seat, result, now)
        self._done += [(token, NotRun()) for token in self._waiting.give_up(now)]
        self._assign(now)

    def _end(self, seat: Seat, result: Result, now: float) -> None:
        """Tell what came of a job, unless it has been told, or was only that its process is ready."""
        if seat.job is None:
            return
        is_trial = not seat.is_for_slow and result == Failed(TOO_MUCH_CPU)
        self._waiting.ran(seat.job.owner, max(seat.used, TRIAL_CPU_SECONDS if is_trial else 0.0))
        if is_trial:
            self._waiting.add(seat.token, seat.job, now)  # among the slow now, with all the time there is
        else:
            self._done.append((seat.token, result))
        seat.token = seat.job = None

    def _bury(self, seat: Seat, result: Result, now: float) -> None:
        self._may_start = False
        if not seat.is_ready:
            log.error("scripts.process_failed", pid=seat.process.pid)
            self._start_at = now + START_AGAIN_SECONDS
        self._end(seat, result, now)

    def _assign(self, now: float) -> None:
        """Give free processes work; start one where there are too few."""
        for seat in self._seats:
            if seat.is_free and (entry := self._waiting.take(slow=seat.is_for_slow)):
                self._seats.begin(seat, entry)
        if self._may_start and now >= self._start_at:
            short = [slow for slow in self._most if self._is_short(slow=slow)]
            if short:
                self._start(now, slow=short[0])

    def _is_short(self, *, slow: bool) -> bool:
        there = sum(1 for seat in self._seats if seat.is_for_slow is slow)
        return there < self._most[slow] and self._waiting.has(slow=slow)

    def _start(self, now: float, *, slow: bool) -> None:
        self._may_start = False
        warn_if_open()
        try:
            self._seats.start(is_for_slow=slow)
        except OSError as failure:
            log.error("scripts.process_failed", reason=failure)  # noqa: TRY400 - the world's, not ours
            self._start_at = now + START_AGAIN_SECONDS


@functools.cache
def warn_if_open() -> None:
    """Say, once in a process, that nothing but limits holds who breaks out of the JavaScript engine."""
    if not is_possible():
        log.warning("scripts.not_confined", reason="this kernel has no seccomp filters for this kind of processor")


def run_once(job: Job) -> Result:
    """Return what comes of a job; `NotRun` where too many wait already, or this one has for too long."""
    if not _places.acquire(blocking=False):
        return NotRun()
    try:
        return _run(job) if _one_at_a_time.acquire(timeout=MAX_WAITING_SECONDS) else NotRun()
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
