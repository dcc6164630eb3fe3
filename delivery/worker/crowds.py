"""How a sender's strands are shared out, so that endpoints that hang leave some to the others (behaviour 6.4, 6.6)."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

HANGING_SECONDS: Final = 1.0
"""Once it has taken half of the strands for so long and answered none, what only it could take has to wait."""


@dataclass(slots=True)
class Crowds:
    """Who waits for which subscription, on one line; times are monotonic, in seconds."""

    strands: int = 1
    """How many the line has."""
    _since: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each request to a subscription that is under way was decided on, oldest first."""
    _answered_at: dict[int, float] = field(default_factory=dict)

    def join(self, subscription_id: int, now: float) -> None:
        """Note that a strand is going to wait for a subscription."""
        self._since[subscription_id].append(now)

    def leave(self, subscription_id: int, since: float, now: float, *, answered: bool) -> None:
        """Note that a strand that joined at `since` does not wait any more, and whether it got an answer."""
        self._since[subscription_id].remove(since)
        if answered:
            self._answered_at[subscription_id] = now

    def place(self, subscription_id: int, of: int) -> int:
        """Return when a subscription's turn comes in a group `of` so many: 1, after the others, if it has its share.

        That is, as many strands wait for it as there are for each; 2, last, where nobody else may wait for it.
        """
        has_share = len(self._since[subscription_id]) >= max(1, self.strands // of)
        return has_share + self.are_full(subscription_id)

    def are_full(self, subscription_id: int) -> bool:
        """Whether nobody else may wait for it: half of the strands do, and none has got an answer since they began."""
        since = self._since[subscription_id]
        if 2 * len(since) < max(2, self.strands):
            return False
        return self._answered_at.get(subscription_id, float("-inf")) < since[0]

    def hanging(self, now: float) -> dict[int, float]:
        """Return the subscriptions for which strands have waited in vain for long, and for how long."""
        waits = {one: now - since[0] for one, since in self._since.items() if since and self.are_full(one)}
        return {one: wait for one, wait in waits.items() if wait >= HANGING_SECONDS}
