"""Pauses that grow while something goes on failing."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pauses:
    """From the first pause to the longest, each twice as long, less up to half by chance: not all come at once."""

    first: float
    longest: float
    _next: float = field(default=0.0, init=False)

    def next(self) -> float:
        """Return the seconds to pause after one more failure."""
        length = self._next or self.first
        self._next = min(2 * length, self.longest)
        return length * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Begin again with the first: it went well."""
        self._next = 0.0
