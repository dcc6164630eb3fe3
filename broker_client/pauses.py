"""How long to wait before the next call: while something goes on failing, and where there was nothing."""

import random
from dataclasses import dataclass, field
from typing import Final

LONGEST_PAUSE: Final = 10.0
"""However long the broker, or a proxy before it, asks for: whatever was the matter may be over."""
EMPTY_SECONDS: Final = 1.0
"""An empty mailbox is asked again no sooner than so long after it was asked."""


@dataclass(slots=True)
class Pauses:
    """From the first pause to the longest, each twice as long, less up to half by chance: not all come at once."""

    first: float
    longest: float = LONGEST_PAUSE
    _next: float = field(default=0.0, init=False)

    def next(self) -> float:
        """Return the seconds to pause after one more failure."""
        length = self._next or self.first
        self._next = min(2 * length, self.longest)
        return length * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Begin again with the first: it went well."""
        self._next = 0.0


def rest_of_nothing(took: float, wanted: float | None) -> float:
    """Return the seconds to wait after a call that took so long and brought nothing; the broker may want some.

    What it wants it wants of all that came in vain: so not all come again at once.
    """
    asked = (wanted or 0.0) * random.uniform(1.0, 1.5)  # noqa: S311 - no secret
    return min(max(asked, EMPTY_SECONDS - took, 0.0), LONGEST_PAUSE)
