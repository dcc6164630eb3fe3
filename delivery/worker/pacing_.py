"""When subscriptions with a rate limit may be sent next, as far as one process knows (behaviour 1.4).

The database decides, where each has its pace, over all processes and lines: this only spares asking it in vain.
"""

from typing import Final

from delivery.webhook.parts import Destination

ASKED_SECONDS: Final = 1.0
"""How long at most nobody else asks before the database has answered whoever asked first."""
LEAST_KEPT: Final = 1_000
"""Subscriptions of which all that is known is kept; beyond, what is past is forgotten now and then."""


class Paces:
    """By subscription, when it may be sent next; times are monotonic, in seconds. For one thread."""

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, float]] = {}
        """With the stamp that it is true for: a limit that has been changed counts at once."""
        self._most = LEAST_KEPT

    def wait(self, destination: Destination, now: float) -> float:
        """Return the seconds until it may be sent; 0: now, or nothing is known of it."""
        if destination.spacing is None:
            return 0.0
        stamp, until = self._next.get(destination.subscription_id, (destination.stamp, now))
        return max(0.0, until - now) if stamp == destination.stamp else 0.0

    def ask(self, destination: Destination, now: float) -> None:
        """Note that the database is asked, so that others wait for what it says."""
        if destination.spacing is not None:
            self.learn(destination, min(destination.spacing, ASKED_SECONDS), now)

    def learn(self, destination: Destination, seconds: float, now: float) -> None:
        """Note in how many seconds it may be sent."""
        self._next[destination.subscription_id] = destination.stamp, now + seconds
        if len(self._next) > self._most:
            self._next = {one: known for one, known in self._next.items() if known[1] > now}
            self._most = max(LEAST_KEPT, 2 * len(self._next))

    def __len__(self) -> int:
        return len(self._next)
