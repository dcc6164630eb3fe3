"""How many requests may be under way at once, with how much in them, and how much of that to one subscription."""

import threading
from collections import Counter
from typing import Final

SHARE_OF_ONE: Final = 4
"""The part of all that one subscription may have is one in so many: one that hangs leaves the others theirs."""
ALL: Final = None
"""Whose the places are that anybody has."""


class Places:
    """So many places, and bytes of bodies in them, taken and left by any thread."""

    def __init__(self, most: int, *, most_bytes: int) -> None:
        self._most, self._most_for_one = most, max(1, most // SHARE_OF_ONE)
        self._most_bytes, self._most_bytes_for_one = most_bytes, most_bytes // SHARE_OF_ONE
        self._taken: Counter[int | None] = Counter()
        self._bytes: Counter[int | None] = Counter()
        self._changed = threading.Condition()

    def take(self, subscription_id: int, size: int) -> bool:
        """Take a place for a body of `size` bytes; tell whether there was one."""
        with self._changed:
            if self._taken[ALL] >= self._most or self._bytes[ALL] + size > self._most_bytes:
                return False
            if self._taken[subscription_id] >= self._most_for_one:
                return False
            if self._bytes[subscription_id] + size > self._most_bytes_for_one:
                return False
            for whose in (ALL, subscription_id):
                self._taken[whose] += 1
                self._bytes[whose] += size
            return True

    def leave(self, subscription_id: int, size: int) -> None:
        """Leave a place that was taken, with as many bytes."""
        with self._changed:
            for whose in (ALL, subscription_id):
                self._taken[whose] -= 1
                self._bytes[whose] -= size
            if not self._taken[subscription_id]:
                del self._taken[subscription_id], self._bytes[subscription_id]
            self._changed.notify_all()

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait until all are left, for so long at most; tell whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._taken[ALL], seconds)
