"""Limits on how much is in use at a time, in all and for one owner."""

import threading
from collections import Counter
from collections.abc import Hashable


class FairShare:
    """An amount that is shared out: at most `limit` is in use, and at most `share` of it by one owner.

    For any number of threads.
    """

    def __init__(self, limit: int, share: int) -> None:
        self._limit = limit
        self._share = share
        self._total = 0
        self._by_owner: Counter[Hashable] = Counter()
        self._changed = threading.Condition()

    def take(self, owner: Hashable, amount: int = 1) -> bool:
        """Take `amount`; return False, with nothing taken, if that exceeds the limit or the owner's share."""
        with self._changed:
            if self._total + amount > self._limit or self._by_owner[owner] + amount > self._share:
                return False
            self._total += amount
            self._by_owner[owner] += amount
            return True

    def give_back(self, owner: Hashable, amount: int = 1) -> None:
        """Give back what was taken."""
        with self._changed:
            self._total -= amount
            self._by_owner[owner] -= amount
            if not self._by_owner[owner]:
                del self._by_owner[owner]
            if not self._total:
                self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether nothing is left for any owner."""
        return self._total >= self._limit

    def wait_until_unused(self, seconds: float) -> bool:
        """Wait until nothing is in use, for `seconds` at most; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._total, seconds)
