"""What a line holds and shares out: its page of deliveries, its slots, and when subscriptions may be sent to."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from delivery.limits import REFILL_LEVEL
from delivery.webhook.parts import Destination

SMALL_BODY: Final = 64 * 1024
KEPT_FOR_SMALL: Final = 1 / 8
"""The share of the budget that only small bodies may use, so that large ones under way cannot stop them all."""

HANGING_SECONDS: Final = 1.0
"""Once it has taken half of the slots for so long and answered none, what only it could take has to wait."""

ASKED_SECONDS: Final = 1.0
"""How long at most nobody else asks before the database has answered whoever asked first."""
MIN_KEPT: Final = 1_000
"""Subscriptions of which all that is known is kept; beyond, what is past is forgotten now and then."""


class Bodied(Protocol):
    """What a line can have in hand."""

    @property
    def size(self) -> int:
        """Bytes of its body."""


def any_may(_one: object) -> bool:
    """Whether it may go now: always."""
    return True


Work = TypeVar("Work", bound=Bodied)


class Buffer(Generic[Work]):
    """A page of deliveries, or of groups; gives them out in the line's order.

    The head, which must not be overtaken, goes first. Then those never sent, oldest first, and those set aside and
    due again, longest due first, take turns, so that neither starves the other.
    """

    def __init__(
        self,
        *,
        head: Work | None = None,
        fresh: Iterable[Work] = (),
        aside: Iterable[Work] = (),
        more: bool = False,
    ) -> None:
        self.head = head
        self._fresh = deque(fresh)
        self._aside = deque(aside)
        self._more = more
        self._size_at_start = len(self)

    def __len__(self) -> int:
        return len(self._fresh) + len(self._aside) + (self.head is not None)

    @property
    def bytes(self) -> int:
        """The bodies in hand, in bytes."""
        head = [self.head] if self.head else []
        return sum(one.size for one in (*head, *self._fresh, *self._aside))

    @property
    def is_starved(self) -> bool:
        """Whether there is work, but none of it in hand: the process held too many bodies."""
        return self._more and not self._size_at_start

    @property
    def is_low(self) -> bool:
        """Whether there is more to read and it is time to: at most 40 % of the page is left."""
        return self._more and len(self) <= self._size_at_start * REFILL_LEVEL

    def take(self, *, deferred_next: bool, may_go: Callable[[Work], bool] = any_may) -> Work | None:
        """Take what goes next of what may; `deferred_next` says whose turn it is where both kinds wait."""
        if self.head:
            head, self.head = self.head, None
            return head
        for part in (self._aside, self._fresh) if deferred_next else (self._fresh, self._aside):
            for place, one in enumerate(part):
                if may_go(one):
                    del part[place]
                    return one
        return None


class BodyBudget:
    """The bodies that one process may hold at a time, in bytes, over all its lines; for any number of threads."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._kept_for_small = int(limit * KEPT_FOR_SMALL)
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take `size` bytes; False, and nothing taken, where there are not so many left."""
        reserve = 0 if size <= SMALL_BODY else self._kept_for_small
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
class FairShare:
    """Who waits for which subscription, on one line; times are monotonic, in seconds."""

    slots: int = 1
    """How many the line has."""
    _since: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each request to a subscription that is under way was decided on, oldest first."""
    _answered_at: dict[int, float] = field(default_factory=dict)

    def join(self, subscription_id: int, now: float) -> None:
        """Note that a slot is going to wait for a subscription."""
        self._since[subscription_id].append(now)

    def leave(self, subscription_id: int, since: float, now: float, *, answered: bool) -> None:
        """Note that a slot that joined at `since` does not wait any more, and whether it got an answer."""
        self._since[subscription_id].remove(since)
        if answered:
            self._answered_at[subscription_id] = now

    def place(self, subscription_id: int, of: int) -> int:
        """Return when a subscription's turn comes in a group `of` so many: 1, after the others, if it has its share.

        That is, as many slots wait for it as there are for each; 2, last, where nobody else may wait for it.
        """
        has_share = len(self._since[subscription_id]) >= max(1, self.slots // of)
        return has_share + self.is_full(subscription_id)

    def is_full(self, subscription_id: int) -> bool:
        """Whether nobody else may wait for it: half of the slots do, and none has got an answer since they began."""
        since = self._since[subscription_id]
        if 2 * len(since) < max(2, self.slots):
            return False
        return self._answered_at.get(subscription_id, float("-inf")) < since[0]

    def hanging(self, now: float) -> dict[int, float]:
        """Return the subscriptions for which slots have waited in vain for long, and for how long."""
        waits = {one: now - since[0] for one, since in self._since.items() if since and self.is_full(one)}
        return {one: wait for one, wait in waits.items() if wait >= HANGING_SECONDS}


class RateLimiter:
    """By subscription, when it may be sent next; times are monotonic, in seconds. For one thread."""

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, float]] = {}
        """With the config_version that it is true for: a limit that has been changed counts at once."""
        self._most = MIN_KEPT

    def wait(self, destination: Destination, now: float) -> float:
        """Return the seconds until it may be sent; 0: now, or nothing is known of it."""
        if destination.spacing is None:
            return 0.0
        config_version, until = self._next.get(destination.subscription_id, (destination.config_version, now))
        return max(0.0, until - now) if config_version == destination.config_version else 0.0

    def ask(self, destination: Destination, now: float) -> None:
        """Note that the database is asked, so that others wait for what it says."""
        if destination.spacing is not None:
            self.learn(destination, min(destination.spacing, ASKED_SECONDS), now)

    def learn(self, destination: Destination, seconds: float, now: float) -> None:
        """Note in how many seconds it may be sent."""
        self._next[destination.subscription_id] = destination.config_version, now + seconds
        if len(self._next) > self._most:
            self._next = {one: known for one, known in self._next.items() if known[1] > now}
            self._most = max(MIN_KEPT, 2 * len(self._next))

    def __len__(self) -> int:
        return len(self._next)
