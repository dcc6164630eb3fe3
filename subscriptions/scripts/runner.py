"""The processes that run scripts, for one event loop: jobs in, results out, nobody waits (behaviour 8.3)."""

import os
import select
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import structlog

from subscriptions.scripts.jobs import Failed, Job, NotRun, Result
from subscriptions.scripts.limits import CPU_SECONDS, TOO_MUCH_CPU, TRIAL_CPU_SECONDS
from subscriptions.scripts.processes import ScriptProcess
from subscriptions.scripts.waiting import MOST_WAITING_SECONDS, Pace, Waiting

LEAST_PROCESSES: Final = 2
"""One of them is always there for scripts that are not known to be slow."""
START_AGAIN_SECONDS: Final = 1.0
"""After a process that did not get ready, or could not be started."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Seat:
    """A process and what it is at."""

    process: ScriptProcess
    is_ready: bool = False
    token: Hashable = None
    job: Job | None = None
    pace: Pace = Pace.NEW
    is_killed: bool = False
    """Its job's result has been told."""


class ScriptRunner:
    """Runs scripts in processes, which it starts when there is work; belongs to one thread, whose loop watches it.

    `fileno` is readable when something has come; `patience` says after which time to look anyhow. Without scripts it
    does nothing.
    """

    def __init__(self, processes: int = 0) -> None:
        self._most = processes or max(LEAST_PROCESSES, os.cpu_count() or 1)
        self._poll = select.epoll()
        self._seats: dict[int, Seat] = {}
        self._waiting = Waiting()
        self._done: list[tuple[Hashable, Result]] = []
        self._start_at = 0.0
        self._may_start = True
        """At most one process is started, or given back, in a look: either takes a moment."""

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._poll.fileno()

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
        until = [seat.process.next_look for seat in self._seats.values() if seat.job]
        if oldest := self._waiting.oldest():
            until.append(oldest.since + MOST_WAITING_SECONDS)
            if len(self._seats) < self._most:
                until.append(self._start_at)
        return max(0.0, min(until) - time.monotonic()) if until else None

    def close(self) -> None:
        """End every process; what they were at is forgotten."""
        for seat in self._seats.values():
            seat.process.kill()
            seat.process.reap()
        self._seats.clear()
        self._poll.close()

    def _look(self, now: float) -> None:
        self._may_start = True
        for descriptor, events in self._poll.poll(0):
            seat = self._seats[descriptor]
            if events & select.EPOLLOUT:
                seat.process.send()
                self._watch(seat)
            if events & ~select.EPOLLOUT:
                self._hear(seat, now)
        for seat in self._seats.values():
            if seat.job and (verdict := seat.process.overdue(now)):
                self._end(seat, verdict, seat.process.used(), now)
                seat.is_killed = True
                seat.process.kill()
        self._done += [(token, NotRun()) for token in self._waiting.give_up(now)]
        self._assign(now)

    def _hear(self, seat: Seat, now: float) -> None:
        """Take what a process says: that it is ready, what came of its job, or that it is gone."""
        try:
            result = seat.process.receive()
        except EOFError:
            self._bury(seat, now)
            return
        if result and seat.job:
            self._end(seat, result, seat.process.used(), now)
        seat.is_ready |= result is not None

    def _end(self, seat: Seat, result: Result, used: float, now: float) -> None:
        assert seat.job  # noqa: S101 - it has one
        is_trial = seat.pace is not Pace.SLOW and result == Failed(TOO_MUCH_CPU)
        self._waiting.ran(seat.job.owner, max(used, TRIAL_CPU_SECONDS if is_trial else 0.0))
        if is_trial:
            self._waiting.add(seat.token, seat.job, now)  # among the slow now, with all the time there is
        else:
            self._done.append((seat.token, result))
        seat.token = seat.job = None

    def _bury(self, seat: Seat, now: float) -> None:
        self._poll.unregister(seat.process.fileno())
        del self._seats[seat.process.fileno()]
        used = max(seat.process.used(), TRIAL_CPU_SECONDS)  # who ends its process is slow, however it did so
        result = seat.process.reap()
        self._may_start = False
        if seat.job:
            self._end(seat, result, used, now)
        elif not seat.is_ready:
            log.error("scripts.process_failed", pid=seat.process.pid)
            self._start_at = now + START_AGAIN_SECONDS

    def _assign(self, now: float) -> None:
        """Give free processes work; start one where there are too few."""
        for seat in [*self._seats.values()]:
            if seat.is_ready and not seat.job and not seat.is_killed:
                slow = sum(1 for other in self._seats.values() if other.job and other.pace is Pace.SLOW)
                entry = self._waiting.take(slow_too=slow < max(1, self._most - 1))
                if entry is None:
                    break
                seat.token, seat.job, seat.pace = entry.token, entry.job, entry.pace
                seat.process.begin(entry.job, CPU_SECONDS if entry.pace is Pace.SLOW else TRIAL_CPU_SECONDS)
                self._watch(seat)
        is_short = self._waiting.oldest() is not None and len(self._seats) < self._most
        if is_short and self._may_start and now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        self._may_start = False
        try:
            seat = Seat(ScriptProcess())
        except OSError as failure:
            log.error("scripts.process_failed", reason=str(failure))  # noqa: TRY400 - the world's, not ours
            self._start_at = now + START_AGAIN_SECONDS
            return
        self._seats[seat.process.fileno()] = seat
        self._poll.register(seat.process.fileno(), select.EPOLLIN)

    def _watch(self, seat: Seat) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if seat.process.wants_to_send else 0)
        self._poll.modify(seat.process.fileno(), events)
