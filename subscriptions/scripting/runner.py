"""Run scripts in child processes for one event loop: jobs in, results out, without blocking (contract 8.3).

Turns are shared among owners by CPU time.
"""

import functools
import heapq
import itertools
import select
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog
from django.core.exceptions import ValidationError

from broker_project.core.cores import usable_cores
from subscriptions.scripting.jobs import (
    CPU_SECONDS,
    MAX_SOURCE_BYTES,
    TOO_MUCH_CPU,
    TRIAL_CPU_SECONDS,
    Failed,
    Job,
    Lost,
    NotRun,
    Result,
    is_well_formed,
)
from subscriptions.scripting.process import MIN_CHECK_SECONDS, ScriptProcess
from subscriptions.scripting.seccomp import is_possible

MIN_PROCESSES: Final = 2
START_AGAIN_SECONDS: Final = 1.0
"""After a process that did not become ready or could not be started."""
MAX_WAITING: Final = 8
"""Threads that may wait in `run_once`; the others are for publishing."""

COST_DECAY: Final = 0.9
"""Share of an owner's remembered cost that a cheaper run leaves: a slow owner must be quick 15 times to count so."""
MIN_COST: Final = 0.001
"""CPU seconds that a run is charged at least, for the exchange with the process."""
MAX_DEBT: Final = 1.0
"""Seconds by which an owner's clock is ahead of the virtual time at most: it may be quick again."""
MAX_CREDIT: Final = CPU_SECONDS
"""And behind it at most, the cost of a run: an owner whose job timed out keeps its place before quicker owners."""
MAX_OWNERS: Final = 16_384
MAX_WAITING_SECONDS: Final = 2.0
MAX_STALE_TICKETS: Final = 64
"""Tickets of jobs that have timed out, beyond one for each waiting job, before a heap is rebuilt."""

log = structlog.get_logger(__name__)
_waiting_threads: Final = threading.BoundedSemaphore(MAX_WAITING)
_one_at_a_time: Final = threading.Lock()


@dataclass(slots=True)
class QueuedScript:
    """A job that waits."""

    since: float
    is_slow: bool
    begins: float
    """Its owner's clock."""
    token: Hashable
    job: Job


class OwnerQueue:
    """The jobs for one kind of process; holds tickets only, so that a job that times out is freed at once."""

    def __init__(self) -> None:
        self.tickets: list[tuple[float, int]] = []
        """A heap of when a run would end by its owner's clock, and the number of its entry."""
        self.waiting = 0
        """Jobs, unlike tickets: a job that times out leaves its ticket."""
        self.now = 0.0
        """The virtual time: the clock of the owner that was served last."""

    def clock(self, owner_clock: float) -> float:
        """Return an owner's clock within this lane's bounds: an idle owner saves up little."""
        return min(max(owner_clock, self.now - MAX_CREDIT), self.now + MAX_DEBT)


class ScriptQueue:
    """All waiting jobs, slow ones apart; in each lane the owner that has used the least CPU is served first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, QueuedScript] = OrderedDict()
        """By number, the oldest first."""
        self.lanes = {False: OwnerQueue(), True: OwnerQueue()}
        """By whether they are for slow scripts."""
        self._numbers = itertools.count()
        self._owners: OrderedDict[int, tuple[float | None, float]] = OrderedDict()
        """Cost of a run in CPU seconds, None before the first, and clock."""

    def add(self, token: Hashable, job: Job, now: float) -> None:
        """Let a job wait."""
        if job.owner not in self._owners:
            self._remember(job.owner, None, self.lanes[False].now)
        cost, clock = self._owners[job.owner]
        is_slow = self.is_slow(job.owner)
        lane = self.lanes[is_slow]
        lane.waiting += 1
        entry = QueuedScript(now, is_slow, lane.clock(clock), token, job)
        number = next(self._numbers)
        self._entries[number] = entry
        heapq.heappush(lane.tickets, (entry.begins + (TRIAL_CPU_SECONDS if cost is None else cost), number))

    def is_slow(self, owner: int) -> bool:
        """Return whether an owner's scripts are known to be slow: they have their own lane and processes."""
        cost, _ = self._owners.get(owner, (None, 0.0))
        return (cost or 0.0) >= TRIAL_CPU_SECONDS

    def take(self, *, slow: bool) -> QueuedScript | None:
        """Remove and return the next job of a lane."""
        lane = self.lanes[slow]
        while lane.tickets:
            _, number = heapq.heappop(lane.tickets)
            if entry := self._entries.pop(number, None):
                lane.waiting -= 1
                lane.now = max(lane.now, entry.begins)
                return entry
        return None

    def charge(self, owner: int, cpu_seconds: float) -> None:
        """Remember the cost of a run and advance its owner's clock by it."""
        before, clock = self._owners.pop(owner, (None, 0.0))
        cost = max(cpu_seconds, (before or 0.0) * COST_DECAY, MIN_COST)
        lane = self.lanes[cost >= TRIAL_CPU_SECONDS]
        self._remember(owner, cost, lane.clock(clock) + max(cpu_seconds, MIN_COST))

    def expire(self, now: float) -> list[Hashable]:
        """Remove the jobs that have waited too long; return their tokens."""
        tokens = []
        while (oldest := self.oldest()) and now >= oldest.since + MAX_WAITING_SECONDS:
            tokens.append(oldest.token)
            self.lanes[oldest.is_slow].waiting -= 1
            self._entries.popitem(last=False)
        tickets = sum(len(lane.tickets) for lane in self.lanes.values())
        if tokens and tickets > 2 * len(self._entries) + MAX_STALE_TICKETS:
            for lane in self.lanes.values():
                lane.tickets = [ticket for ticket in lane.tickets if ticket[1] in self._entries]
                heapq.heapify(lane.tickets)
        return tokens

    def oldest(self) -> QueuedScript | None:
        """Return the job that has waited longest."""
        return next(iter(self._entries.values()), None)

    def _remember(self, owner: int, cost: float | None, clock: float) -> None:
        self._owners[owner] = cost, clock
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)


class ScriptRunner:
    """Runs scripts in processes that it starts on demand; belongs to one thread, whose event loop watches it.

    Scripts known to be slow have processes of their own, one fewer than the others. `fileno` is readable when a
    process has answered; `patience` says after how many seconds to call `finished` anyway.
    """

    def __init__(self, processes: int = 0) -> None:
        count = processes or max(MIN_PROCESSES, usable_cores())
        self._max_processes = {False: count, True: max(1, count - 1)}
        """By whether they are for slow scripts."""
        self._poll = select.epoll()
        self.processes: dict[int, ScriptProcess] = {}
        """By descriptor."""
        self._ending: list[ScriptProcess] = []
        """Killed, exit code not yet known."""
        self.queue = ScriptQueue()
        self._done: list[tuple[Hashable, Result]] = []
        self._start_at = 0.0
        self._may_start = True
        """At most one process is started in a call of `finished`, none if one has ended: either takes a moment."""

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._poll.fileno()

    def run(self, token: Hashable, job: Job) -> None:
        """Run a script when a process is free; `finished` returns its result under `token`."""
        now = time.monotonic()
        self.queue.add(token, job, now)
        self._assign(now)

    def finished(self) -> list[tuple[Hashable, Result]]:
        """Return the results since the last call, each once."""
        if self.processes or self._ending or self.queue.oldest():
            now = time.monotonic()
            self._may_start = True
            for process, result in self._answered():
                self._end_job(process, result, now)
            for process in self.processes.values():
                if process.job and (overdue := process.kill_if_overdue(now)):
                    self._end_job(process, overdue, now)
            self._reap(now)
            self._done += [(token, NotRun()) for token in self.queue.expire(now)]
            self._assign(now)
        done, self._done = self._done, []
        return done

    def patience(self) -> float | None:
        """Return the seconds until something is to be done even if no process answers, None if nothing is."""
        until = [process.next_check for process in self.processes.values() if process.job]
        if self._ending:
            until.append(time.monotonic() + MIN_CHECK_SECONDS)
        if oldest := self.queue.oldest():
            until.append(oldest.since + MAX_WAITING_SECONDS)
            if any(self._needs_process(slow=slow) for slow in self._max_processes):
                until.append(self._start_at)
        return max(0.0, min(until) - time.monotonic()) if until else None

    def close(self) -> None:
        """Kill every process and forget their jobs."""
        for process in self.processes.values():
            process.hang_up()
        for process in (*self.processes.values(), *self._ending):
            process.wait()
        self.processes.clear()
        self._ending.clear()
        self._poll.close()

    def _answered(self) -> Iterator[tuple[ScriptProcess, Result]]:
        for descriptor, events in self._poll.poll(0):
            process = self.processes[descriptor]
            if events & select.EPOLLOUT:
                process.send()
                self._watch(process)
            if events & ~select.EPOLLOUT:
                try:
                    result = process.receive()
                except EOFError:
                    self._poll.unregister(descriptor)
                    self._ending.append(self.processes.pop(descriptor))
                    process.hang_up()
                else:
                    if result:
                        yield process, result

    def _end_job(self, process: ScriptProcess, result: Result, now: float) -> None:
        """Report the result of a process's job, if not done before; a quick one that turns out slow restarts."""
        if process.job is None:  # it says that it is ready
            return
        is_trial = not process.is_for_slow and result == Failed(TOO_MUCH_CPU)
        self.queue.charge(process.job.owner, max(process.used_seconds, TRIAL_CPU_SECONDS if is_trial else 0.0))
        if is_trial:
            self.queue.add(process.token, process.job, now)
        else:
            self._done.append((process.token, result))
        process.token = process.job = None

    def _reap(self, now: float) -> None:
        for process in [*self._ending]:
            if result := process.reap():
                self._ending.remove(process)
                self._may_start = False
                if not process.is_ready:
                    log.error("scripts.process_failed", pid=process.pid)
                    self._start_at = now + START_AGAIN_SECONDS
                self._end_job(process, result, now)

    def _assign(self, now: float) -> None:
        """Give free processes work; start one if there are too few."""
        for process in self.processes.values():
            if process.is_free and (entry := self.queue.take(slow=process.is_for_slow)):
                process.begin(entry.token, entry.job)
                self._watch(process)
        if self._may_start and now >= self._start_at:
            for slow in self._max_processes:
                if self._needs_process(slow=slow):
                    self._start(now, slow=slow)
                    return

    def _needs_process(self, *, slow: bool) -> bool:
        count = sum(process.is_for_slow is slow for process in self.processes.values())
        return count < self._max_processes[slow] and self.queue.lanes[slow].waiting > 0

    def _start(self, now: float, *, slow: bool) -> None:
        self._may_start = False
        warn_if_unconfined()
        try:
            process = ScriptProcess(is_for_slow=slow)
        except OSError as failure:
            log.error("scripts.process_failed", reason=failure)  # noqa: TRY400 - the world's, not ours
            self._start_at = now + START_AGAIN_SECONDS
            return
        self.processes[process.fileno()] = process
        self._poll.register(process.fileno(), select.EPOLLIN)

    def _watch(self, process: ScriptProcess) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if process.wants_to_send else 0)
        self._poll.modify(process.fileno(), events)


@functools.cache
def warn_if_unconfined() -> None:
    """Log once per process that nothing but resource limits holds back an exploit of the JavaScript engine."""
    if not is_possible():
        log.warning("scripts.not_confined", reason="this kernel has no seccomp filters for this kind of processor")


def run_once(job: Job) -> Result:
    """Run a job in a process of its own; `NotRun` if too many threads wait already, or this one has for too long."""
    if not _waiting_threads.acquire(blocking=False):
        return NotRun()
    try:
        if not _one_at_a_time.acquire(timeout=MAX_WAITING_SECONDS):
            return NotRun()
        runner = ScriptRunner(processes=1)
        try:
            runner.run(None, job)
            poll = select.poll()
            poll.register(runner.fileno(), select.POLLIN)
            while not (done := runner.finished()):
                poll.poll((runner.patience() or 0.0) * 1000)
        finally:
            runner.close()
            _one_at_a_time.release()
    finally:
        _waiting_threads.release()
    ((_, result),) = done
    return result


def check_script(source: str) -> None:
    """Compile a script in another process; raise `ValidationError` with what is wrong and in which line."""
    if not source.strip():
        return
    check_text(source)
    match run_once(Job(source, only_check=True)):
        case Failed(reason):
            raise ValidationError(f"The script does not compile: {reason}.", code="script")
        case Lost() | NotRun():
            raise ValidationError("The script could not be checked now; try again in a moment.", code="script")


def check_text(source: str) -> None:
    """Raise `ValidationError` for text that is too large for a script, or has characters that cannot be stored."""
    text = ""
    if not is_well_formed(source):
        text = "The script has half of a surrogate pair; write it as an escape, such as \\ud83d."
    elif (size := len(source.encode())) > MAX_SOURCE_BYTES:
        text = f"A script has at most {MAX_SOURCE_BYTES // 1024} KiB; this one has {size:,} bytes."
    elif "\0" in source:
        text = "The script has a NUL character; write it as an escape: \\0."
    if text:
        raise ValidationError(text, code="script")
