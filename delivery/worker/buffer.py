"""What a line holds and shares out: its page of deliveries, its slots, and when subscriptions may be sent to."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

from delivery.limits import ASKED_SECONDS, HANGING_SECONDS, REFILL_LEVEL, SMALL_BODY_BYTES, SMALL_BODY_RESERVE
from delivery.webhook.destination import Destination

MIN_KEPT: Final = 1_000
"""Rate limits that are remembered before those that are over are forgotten."""


class Sized(Protocol):
    """What a line can hold."""

    @property
    def size(self) -> int:
        """Bytes of its body."""


def any_may(_delivery: object) -> bool:
    """Return True: everything may be taken."""
    return True


KEY: Final = attrgetter("ordering_key")
Work = TypeVar("Work", bound=Sized)


class Buffer(Generic[Work]):
    """A page of deliveries, or of groups; gives them out in the line's order.

    The heads, which are held and due, go first. Then those never sent, oldest first, and deferred ones that are
    due, longest due first, take turns, so that neither starves the other.
    """

    def __init__(
        self,
        *,
        heads: Iterable[Work] = (),
        fresh: Iterable[Work] = (),
        deferred: Iterable[Work] = (),
        more: bool = False,
    ) -> None:
        self.heads = deque(heads)
        self.next_key = ""
        """The ordering key from which on the next page is read, if the line goes by keys."""
        self.gone: Sequence[int] = ()
        """Held deliveries that were to be read and may no longer be sent."""
        self._fresh = deque(fresh)
        self._aside: dict[str, list[Work]] = {}
        """By ordering key: what was met of it while the key was busy."""
        self.deferred = deque(deferred)
        self._more = more
        self._size_at_start = len(self)

    def __len__(self) -> int:
        return len(self._fresh) + len(self.deferred) + len(self.heads) + sum(map(len, self._aside.values()))

    @property
    def bytes(self) -> int:
        """Bytes of the bodies that are left."""
        aside = (work for works in self._aside.values() for work in works)
        return sum(work.size for work in (*self.heads, *self._fresh, *self.deferred, *aside))

    @property
    def has_next(self) -> bool:
        """Whether there may be something to take."""
        return bool(self.heads or self._fresh or self.deferred)

    @property
    def is_starved(self) -> bool:
        """Whether there is work, but none was read: the process held too many bodies."""
        return self._more and not self._size_at_start

    @property
    def is_low(self) -> bool:
        """Whether there is more to read and it is time to: at most 40 % of the page is left."""
        return self._more and len(self) <= self._size_at_start * REFILL_LEVEL

    def take(self, *, deferred_next: bool, may_go: Callable[[Work], bool] = any_may) -> Work | None:
        """Take what goes next of what may; `deferred_next` says whose turn it is if both kinds wait."""
        others = (self.deferred, self._fresh) if deferred_next else (self._fresh, self.deferred)
        for part in (self.heads, *others):
            for place, work in enumerate(part):
                if may_go(work):
                    del part[place]
                    return work
        return None

    def set_aside(self, is_busy: Callable[[Work], bool]) -> None:
        """Set aside what comes next and is of a busy key, so that nobody meets it again until the key is free."""
        while self._fresh and is_busy(self._fresh[0]):
            work = self._fresh.popleft()
            self._aside.setdefault(KEY(work), []).append(work)

    def free(self, key: str) -> None:
        """Put what was set aside of a key first, in its order."""
        self._fresh.extendleft(reversed(self._aside.pop(key, [])))


class BodyBudget:
    """The bytes of bodies that the lines of one process may hold; for any number of threads."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._reserve = int(limit * SMALL_BODY_RESERVE)
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take `size` bytes; return False, and take nothing, if there are not as many left."""
        reserve = 0 if size <= SMALL_BODY_BYTES else self._reserve
        with self._lock:
            if size > self._left - reserve:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        """Return `size` bytes."""
        with self._lock:
            self._left += size


@dataclass(slots=True)
class SlotShares:
    """How the slots of one line are shared among subscriptions; times are monotonic, in seconds."""

    slots: int = 1
    _since: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each request in flight to a subscription was decided on, oldest first."""
    _answered_at: dict[int, float] = field(default_factory=dict)

    def join(self, subscription_id: int, now: float) -> None:
        """Note that a slot is going to wait for a subscription."""
        self._since[subscription_id].append(now)

    def leave(self, subscription_id: int, since: float, now: float, *, answered: bool) -> None:
        """Note that a slot that joined at `since` no longer waits, and whether it got an answer."""
        self._since[subscription_id].remove(since)
        if answered:
            self._answered_at[subscription_id] = now

    def place(self, subscription_id: int, of: int) -> int:
        """Return when a subscription is tried in a group of `of`: 0, first; 1, if it has its share; 2, last, if full.

        It has its share if as many slots wait for it as there are for each.
        """
        has_share = len(self._since[subscription_id]) >= max(1, self.slots // of)
        return has_share + self.is_full(subscription_id)

    def is_full(self, subscription_id: int) -> bool:
        """Whether no other slot may wait for it: half of the slots do, and none got an answer since they began."""
        since = self._since[subscription_id]
        if 2 * len(since) < max(2, self.slots):
            return False
        return self._answered_at.get(subscription_id, float("-inf")) < since[0]

    def hanging(self, now: float) -> dict[int, float]:
        """Return the full subscriptions whose oldest request has hung for long, and for how long."""
        waits = {key: now - since[0] for key, since in self._since.items() if since and self.is_full(key)}
        return {subscription_id: wait for subscription_id, wait in waits.items() if wait >= HANGING_SECONDS}


class RateLimiter:
    """By subscription, when it may be sent to next; times are monotonic, in seconds. For one thread."""

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, float]] = {}
        """With the config version that it is true for: a changed limit counts at once."""
        self._most = MIN_KEPT

    def wait(self, destination: Destination, now: float) -> float:
        """Return the seconds until it may be sent to; 0: now, or nothing is known of it."""
        if destination.spacing is None:
            return 0.0
        version, until = self._next.get(destination.subscription_id, (destination.config_version, now))
        return max(0.0, until - now) if version == destination.config_version else 0.0

    def ask(self, destination: Destination, now: float) -> None:
        """Note that the database is asked for a rate slot, so that others wait for its answer."""
        if destination.spacing is not None:
            self.learn(destination, min(destination.spacing, ASKED_SECONDS), now)

    def learn(self, destination: Destination, seconds: float, now: float) -> None:
        """Note in how many seconds it may be sent to."""
        self._next[destination.subscription_id] = destination.config_version, now + seconds
        if len(self._next) > self._most:
            self._next = {key: known for key, known in self._next.items() if known[1] > now}
            self._most = max(MIN_KEPT, 2 * len(self._next))

    def __len__(self) -> int:
        return len(self._next)
