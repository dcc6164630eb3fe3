"""How much filters may do: what one reads of a message, and what all of a publish do together (behaviour 3.6)."""

from typing import Final

from subscriptions.filters.json_values import FilterFailed

MOST_WORK: Final = 16 * 2**20
"""Of all filters that look at the messages of one publish; a unit is a character walked through, some 0.3 µs."""
A_NODE: Final = 2
"""What evaluating one node of a filter costs beside what it reads."""
COMPARED: Final = 64
"""So many characters of a value are compared or searched, once it is walked through, in the time that one took."""
MOST_KEPT: Final = 4 * 2**20
"""What is made of messages is kept for other filters up to so much work: it takes many times the memory."""


class Work:
    """What the filters of one publish have done."""

    def __init__(self) -> None:
        self._done = 0

    @property
    def may_keep(self) -> bool:
        """Whether there is not yet much that is kept."""
        return self._done <= MOST_KEPT

    @property
    def is_used_up(self) -> bool:
        """Whether there may be no more of it."""
        return self._done > MOST_WORK

    def add(self, units: int) -> None:
        """Add what is about to be done.

        Raises:
            FilterFailed: it is too much.

        """
        self._done += units
        if self.is_used_up:
            raise FilterFailed("the filters that look at what was published together take too long")
