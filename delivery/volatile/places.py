"""How many requests may be under way at once, and how many of them to one subscription."""

import threading
from collections import Counter
from typing import Final

SHARE_OF_ONE: Final = 4
"""The part of all places that one subscription may have is one in so many: one that hangs leaves the others theirs."""


class Places:
    """So many places, taken and left by any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_for_one = max(1, most // SHARE_OF_ONE)
        self._taken: Counter[int] = Counter()
        self._all = 0
        self._changed = threading.Condition()

    def take(self, subscription_id: int) -> bool:
        """Take a place; tell whether there was one."""
        with self._changed:
            if self._all >= self._most or self._taken[subscription_id] >= self._most_for_one:
                return False
            self._all += 1
            self._taken[subscription_id] += 1
            return True

    def leave(self, subscription_id: int) -> None:
        """Leave a place that was taken."""
        with self._changed:
            self._all -= 1
            self._taken[subscription_id] -= 1
            if not self._taken[subscription_id]:
                del self._taken[subscription_id]
            self._changed.notify_all()

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait until all are left, for so long at most; tell whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._all, seconds)
