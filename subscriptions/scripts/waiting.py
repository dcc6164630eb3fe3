"""Scripts that wait for a process, and whose turn it is: the slow may not keep the quick ones waiting."""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from subscriptions.scripts.jobs import Job

QUICK_SECONDS: Final = 0.05
"""A script that uses more CPU than this is slow."""
FORGIVEN: Final = 0.9
"""What a run leaves of the remembered cost of those before it: a slow script must be quick 15 times to count so."""
MOST_OWNERS: Final = 16_384
"""So many are remembered."""
MOST_WAITING_SECONDS: Final = 2.0


@dataclass(order=True, slots=True)
class Entry:
    """A job that waits; sorted by when its owner had its last turn, then by its own age."""

    last_turn: float
    number: int
    since: float = field(compare=False)
    token: Hashable = field(compare=False)
    job: Job = field(compare=False)
    is_over: bool = field(default=False, compare=False)


class Waiting:
    """All that wait: quick ones and slow ones, among each those first whose last turn is longest ago.

    A script that has never been run counts as slow, and comes first among those.
    """

    def __init__(self) -> None:
        self._quick: list[Entry] = []
        self._slow: list[Entry] = []
        self._by_age: deque[Entry] = deque()
        self._numbers = itertools.count()
        self._costs: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """By owner: CPU seconds, and when it had its last turn."""

    def add(self, token: Hashable, job: Job, now: float) -> None:
        """Let a job wait."""
        _, last_turn = self._costs.get(job.owner, (0.0, 0.0))
        entry = Entry(last_turn, next(self._numbers), now, token, job)
        heapq.heappush(self._quick if self.is_quick(job.owner) else self._slow, entry)
        self._by_age.append(entry)

    def is_quick(self, owner: int) -> bool:
        """Tell whether the scripts of an owner are known to be quick."""
        return self._costs.get(owner, (QUICK_SECONDS, 0.0))[0] < QUICK_SECONDS

    def take(self, *, slow_too: bool) -> Entry | None:
        """Take the one whose turn it is."""
        for heap in (self._quick, self._slow) if slow_too else (self._quick,):
            while heap:
                entry = heapq.heappop(heap)
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
