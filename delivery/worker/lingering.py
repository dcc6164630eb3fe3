"""Strands that have nothing to send for now and stay a while: their lines are looked at for more, all together."""

import time
from typing import Final

from delivery.worker.line import DrivenLine, Strand

LINGER_SECONDS: Final = 0.01
"""How often lines without work look for more, until their turn ends."""
LINGER_SHARE: Final = 0.25
"""Of the time, spent on looking at most: the more lines linger, the more rarely they look."""


class Lingering:
    """The strands that linger, and when they look again."""

    def __init__(self) -> None:
        self.strands: list[Strand] = []
        self.until = 0.0
        """Monotonic time of the next look."""

    def add(self, strand: Strand) -> None:
        """Let a strand linger; nobody waits for its line meanwhile, unless another strand is under way."""
        if not strand.line.is_waiting:
            strand.line.run.idle(strand.line.id)
        self.strands.append(strand)

    def lose(self, line: DrivenLine) -> None:
        """Forget a line that is not ours any more."""
        self.strands = [strand for strand in self.strands if strand.line is not line]

    def take_due(self, now: float) -> list[Strand]:
        """Return all of them if it is time to look, for the caller to look at."""
        if now < self.until:
            return []
        strands, self.strands = self.strands, []
        return strands

    def looked(self, since: float) -> None:
        """Choose when to look again, after a look that began at `since`."""
        now = time.monotonic()
        self.until = now + max(LINGER_SECONDS, (now - since) / LINGER_SHARE)

    def patience(self, now: float) -> float | None:
        """Return the seconds to the next look, None where there is nothing to look for."""
        return max(0.0, self.until - now) if self.strands else None
