"""The processes that run scripts, and the queue in front of them: no owner keeps the others waiting."""

import heapq
import itertools
import select
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from subscriptions.scripting.jobs import CPU_SECONDS, TRIAL_CPU_SECONDS, Job, Result
from subscriptions.scripting.process import MIN_LOOK_SECONDS, ScriptProcess

FORGIVEN: Final = 0.9
"""What a run leaves of the remembered cost of those before it: a slow script must be quick 15 times to count so."""
MIN_COST: Final = 0.001
"""A run costs so much at least, in seconds: a process is asked and answers."""
MAX_DEBT: Final = 1.0
"""An owner's clock is ahead of the others' by so much at most, in seconds: it was slow once and is quick now."""
MAX_CREDIT: Final = CPU_SECONDS
"""And behind by so much, the cost of a run: who waited in vain must not lose its place to those that are quicker."""
MAX_OWNERS: Final = 16_384
"""So many are remembered."""
MAX_WAITING_SECONDS: Final = 2.0
SPARE_TICKETS: Final = 64
"""So many may be left of jobs that wait no more, before a heap is made anew."""


class Pace(IntEnum):
    """What is known of the scripts of an owner; the slow wait apart, for processes of their own."""

    QUICK = 0
    NEW = 1
    """They have never been run."""
    SLOW = 2


@dataclass(slots=True)
class QueuedScript:
    """A job that waits."""

    since: float
    pace: Pace
    begins: float
    """Its owner's clock."""
    token: Hashable
    job: Job


class Lane:
    """Those that wait for the same processes: tickets alone, so that a job that waits no more is let go at once."""

    def __init__(self) -> None:
        self.tickets: list[tuple[float, int]] = []
        """When a run would end by its owner's clock, and the number of its entry."""
        self.waiting = 0
        """How many there are; a job that waits no more leaves its ticket."""
        self.now = 0.0
        """The virtual time: the clock of the owner whose turn it was last."""

    def clock(self, owners: float) -> float:
        """Return an owner's clock as it counts here: who was away has saved up little."""
        return min(max(owners, self.now - MAX_CREDIT), self.now + MAX_DEBT)


class Waiting:
    """All that wait: the slow apart from the others, and of each those first whose owners have used the least."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, QueuedScript] = OrderedDict()
        """By number, the oldest first."""
        self._others, self._slow = Lane(), Lane()
        self._numbers = itertools.count()
        self._owners: OrderedDict[int, tuple[float | None, float]] = OrderedDict()
        """What a run costs each, in CPU seconds, None where there was none yet; and its clock."""

    def add(self, token: Hashable, job: Job, now: float) -> None:
        """Let a job wait."""
        if job.owner not in self._owners:
            self._remember(job.owner, None, self._others.now)
        cost, clock = self._owners[job.owner]
        pace = self.pace_of(job.owner)
        lane = self._lane(slow=pace is Pace.SLOW)
        lane.waiting += 1
        entry = QueuedScript(now, pace, lane.clock(clock), token, job)
        number = next(self._numbers)
        self._entries[number] = entry
        heapq.heappush(lane.tickets, (entry.begins + (TRIAL_CPU_SECONDS if cost is None else cost), number))

    def pace_of(self, owner: int) -> Pace:
        """Return what is known of the scripts of an owner."""
        cost, _ = self._owners.get(owner, (None, 0.0))
        if cost is None:
            return Pace.NEW
        return Pace.QUICK if cost < TRIAL_CPU_SECONDS else Pace.SLOW

    def has(self, *, slow: bool) -> bool:
        """Tell whether there is one to take."""
        return self._lane(slow=slow).waiting > 0

    def take(self, *, slow: bool) -> QueuedScript | None:
        """Take the one whose turn it is, of the slow or of the others."""
        lane = self._lane(slow=slow)
        while lane.tickets:
            _, number = heapq.heappop(lane.tickets)
            if entry := self._entries.pop(number, None):
                lane.waiting -= 1
                lane.now = max(lane.now, entry.begins)
                return entry
        return None

    def ran(self, owner: int, cpu_seconds: float) -> None:
        """Remember what a run cost, and let its owner's clock run by it."""
        before, clock = self._owners.pop(owner, (None, 0.0))
        cost = max(cpu_seconds, (before or 0.0) * FORGIVEN, MIN_COST)
        lane = self._lane(slow=cost >= TRIAL_CPU_SECONDS)
        self._remember(owner, cost, lane.clock(clock) + max(cpu_seconds, MIN_COST))

    def give_up(self, now: float) -> list[Hashable]:
        """Let go of those that have waited too long; return their tokens."""
        tokens = []
        while (oldest := self.oldest()) and now >= oldest.since + MAX_WAITING_SECONDS:
            tokens.append(oldest.token)
            self._lane(slow=oldest.pace is Pace.SLOW).waiting -= 1
            self._entries.popitem(last=False)
        if tokens:
            self._tidy()
        return tokens

    def oldest(self) -> QueuedScript | None:
        """Return the one that waits longest."""
        return next(iter(self._entries.values()), None)

    def _lane(self, *, slow: bool) -> Lane:
        return self._slow if slow else self._others

    def _remember(self, owner: int, cost: float | None, clock: float) -> None:
        self._owners[owner] = cost, clock
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)

    def _tidy(self) -> None:
        """Drop the tickets of those that wait no more where they are the greater part."""
        tickets = len(self._others.tickets) + len(self._slow.tickets)
        if tickets <= 2 * len(self._entries) + SPARE_TICKETS:
            return
        for lane in (self._others, self._slow):
            lane.tickets = [ticket for ticket in lane.tickets if ticket[1] in self._entries]
            heapq.heapify(lane.tickets)


@dataclass(slots=True, eq=False)
class Seat:
    """A process that runs either what is known to be slow or all else, and what it runs now."""

    process: ScriptProcess
    is_for_slow: bool
    is_ready: bool = False
    token: Hashable = None
    job: Job | None = None
    is_killed: bool = False
    """Its job's result has been told."""
    used: float = 0.0
    """CPU seconds that its job has taken, once that has ended."""

    @property
    def is_free(self) -> bool:
        """Whether it may be given a job."""
        return self.is_ready and not self.job and not self.is_killed


class Seats:
    """All processes of a runner; nothing here waits for one of them."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._seats: dict[int, Seat] = {}
        self._ending: list[Seat] = []
        """Whose processes are gone but for their exit codes."""

    def __bool__(self) -> bool:
        return bool(self._seats or self._ending)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    def fileno(self) -> int:
        """Return the descriptor that is readable when one of them has something to say."""
        return self._poll.fileno()

    def start(self, *, is_for_slow: bool) -> None:
        """Start a process.

        Raises:
            OSError: there can be no more.

        """
        seat = Seat(ScriptProcess(), is_for_slow)
        self._seats[seat.process.fileno()] = seat
        self._poll.register(seat.process.fileno(), select.EPOLLIN)

    def begin(self, seat: Seat, entry: QueuedScript) -> None:
        """Give one that is free a job."""
        seat.token, seat.job = entry.token, entry.job
        seat.process.begin(entry.job, CPU_SECONDS if seat.is_for_slow else TRIAL_CPU_SECONDS)
        self._watch(seat)

    def answered(self) -> Iterator[tuple[Seat, Result]]:
        """Yield what has come of jobs; those that are ready are so from now on."""
        for descriptor, events in self._poll.poll(0):
            seat = self._seats[descriptor]
            if events & select.EPOLLOUT:
                seat.process.send()
                self._watch(seat)
            if events & ~select.EPOLLOUT and (result := self._heard(seat)):
                seat.is_ready = True
                seat.used = seat.process.used()
                yield seat, result

    def overdue(self, now: float) -> Iterator[tuple[Seat, Result]]:
        """Kill those that have used up their time, and yield what becomes of their jobs."""
        for seat in self._seats.values():
            if seat.job and (verdict := seat.process.overdue(now)):
                seat.is_killed = True
                seat.used = seat.process.used()
                seat.process.kill()
                yield seat, verdict

    def ended(self) -> Iterator[tuple[Seat, Result]]:
        """Yield those whose processes have ended, and why."""
        for seat in [*self._ending]:
            if result := seat.process.reap():
                self._ending.remove(seat)
                yield seat, result

    def next_looks(self) -> Iterator[float]:
        """Yield when to look at each of them though it says nothing, monotonic."""
        yield from (seat.process.next_look for seat in self._seats.values() if seat.job)
        if self._ending:
            yield time.monotonic() + MIN_LOOK_SECONDS

    def close(self) -> None:
        """End them all, and wait until they have."""
        for seat in self._seats.values():
            seat.process.hang_up()
        for seat in (*self._seats.values(), *self._ending):
            seat.process.wait()
        self._seats.clear()
        self._ending.clear()
        self._poll.close()

    def _heard(self, seat: Seat) -> Result | None:
        try:
            return seat.process.receive()
        except EOFError:
            self._poll.unregister(seat.process.fileno())
            del self._seats[seat.process.fileno()]
            seat.used = max(seat.process.used(), TRIAL_CPU_SECONDS)  # who ends its process is slow, however it did so
            seat.process.hang_up()
            self._ending.append(seat)
            return None

    def _watch(self, seat: Seat) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if seat.process.wants_to_send else 0)
        self._poll.modify(seat.process.fileno(), events)
