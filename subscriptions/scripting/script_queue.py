"""The queue in front of the script processes: turns are shared among owners by CPU time (contract 8.3)."""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from subscriptions.scripting.jobs import CPU_SECONDS, TRIAL_CPU_SECONDS, Job

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
