"""What a line has in hand, and what it takes next (behaviour 4.2, 4.6)."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from delivery.webhook.parts import Content, Destination

REFILL_LEVEL: Final = 0.4
"""The share of its last page at which a line reads on (behaviour 11.1)."""
MAX_BYTES: Final = 1024 * 1024
"""Bodies that a line has in hand at most; one delivery is always allowed."""


@dataclass(frozen=True, slots=True)
class InHand:
    """A delivery that its line may send next."""

    id: int
    content: Content
    destination: Destination
    attempts: int
    """How many requests it has had."""
    sequence: int | None
    uncertain: bool
    size: int
    is_aside: bool
    """Whether it waits among those set aside."""
    times_set_aside: int
    group_id: int | None = None
    """The QUEUE group it is one of; attempts and uncertainty are then the group's."""
    callback_url: str = ""


class Bodied(Protocol):
    """What a line can have in hand."""

    @property
    def size(self) -> int:
        """Bytes of its body."""


def any_may(_one: object) -> bool:
    """Whether it may go now: always."""
    return True


Work = TypeVar("Work", bound=Bodied)


class Hand(Generic[Work]):
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

    def take(self, *, aside_next: bool, may_go: Callable[[Work], bool] = any_may) -> Work | None:
        """Take what goes next of what may; `aside_next` says whose turn it is where both kinds wait."""
        if self.head:
            head, self.head = self.head, None
            return head
        for part in (self._aside, self._fresh) if aside_next else (self._fresh, self._aside):
            for place, one in enumerate(part):
                if may_go(one):
                    del part[place]
                    return one
        return None


SMALL_BODY: Final = 64 * 1024
KEPT_FOR_SMALL: Final = 1 / 8
"""The share of the budget that only small bodies may use, so that large ones under way cannot stop them all."""


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
