"""Scripts that wait for a process, and whose turn it is: the slow may not keep the quick ones waiting."""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from subscriptions.scripts.jobs import Job
from subscriptions.scripts.limits import TRIAL_CPU_SECONDS

FORGIVEN: Final = 0.9
"""What a run leaves of the remembered cost of those before it: a slow script must be quick 15 times to count so."""
MOST_OWNERS: Final = 16_384
"""So many are remembered."""
MOST_WAITING_SECONDS: Final = 2.0


class Pace(IntEnum):
    """What is known of the scripts of an owner; the lower goes first."""

    QUICK = 0
    NEW = 1
    """They have never been run."""
    SLOW = 2


@dataclass(order=True, slots=True)
class Entry:
    """A job that waits; sorted by when its owner had its last turn, then by its own age."""

    last_turn: float
    number: int
    since: float = field(compare=False)
    pace: Pace = field(compare=False)
    token: Hashable = field(compare=False)
    job: Job = field(compare=False)
    is_over: bool = field(default=False, compare=False)


class Waiting:
    """All that wait: the quick before the new before the slow, and of each those whose last turn is longest ago."""

    def __init__(self) -> None:
        self._heaps: dict[Pace, list[Entry]] = {pace: [] for pace in Pace}
        self._by_age: deque[Entry] = deque()
        self._numbers = itertools.count()
        self._costs: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """By owner: CPU seconds, and when it had its last turn."""

    def add(self, token: Hashable, job: Job, now: float) -> None:
        """Let a job wait."""
        _, last_turn = self._costs.get(job.owner, (0.0, 0.0))
        pace = self.pace_of(job.owner)
        entry = Entry(last_turn, next(self._numbers), now, pace, token, job)
        heapq.heappush(self._heaps[pace], entry)
        self._by_age.append(entry)

    def pace_of(self, owner: int) -> Pace:
        """Return what is known of the scripts of an owner."""
        if owner not in self._costs:
            return Pace.NEW
        return Pace.QUICK if self._costs[owner][0] < TRIAL_CPU_SECONDS else Pace.SLOW

    def take(self, *, slow_too: bool) -> Entry | None:
        """Take the one whose turn it is."""
        for pace in Pace if slow_too else (Pace.QUICK, Pace.NEW):
            while self._heaps[pace]:
                entry = heapq.heappop(self._heaps[pace])
                if not entry.is_over:
                    entry.is_over = True
                    return entry
        return None

    def ran(self, owner: int, cpu_seconds: float, now: float) -> None:
        """Remember what a run cost."""
        before, _ = self._costs.pop(owner, (0.0, 0.0))
        self._costs[owner] = max(cpu_seconds, before * FORGIVEN), now
        if len(self._costs) > MOST_OWNERS:
            self._costs.popitem(last=False)

    def give_up(self, now: float) -> list[Hashable]:
        """Let go of those that have waited too long; return their tokens."""
        tokens = []
        while (oldest := self.oldest()) and now >= oldest.since + MOST_WAITING_SECONDS:
            oldest.is_over = True
            tokens.append(oldest.token)
        return tokens

    def oldest(self) -> Entry | None:
        """Return the one that waits longest."""
        while self._by_age and self._by_age[0].is_over:
            self._by_age.popleft()
        return self._by_age[0] if self._by_age else None
