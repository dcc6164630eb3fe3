"""Lines that have nothing to send for now and stay a while: looked at for more, all together."""

import time
from typing import Final

from delivery.lines import DrivenLine

LINGER_SECONDS: Final = 0.01
"""How often lines without work look for more, until their turn ends."""
LINGER_SHARE: Final = 0.25
"""Of the time, spent on looking at most: the more lines linger, the more rarely they look."""


class Lingering:
    """The lines that linger, and when they look again."""

    def __init__(self) -> None:
        self.lines: list[DrivenLine] = []
        self.until = 0.0
        """Monotonic time of the next look."""

    def add(self, line: DrivenLine) -> None:
        """Let a line linger: nobody waits for it meanwhile."""
        line.run.idle(line.id)
        self.lines.append(line)

    def lose(self, line: DrivenLine) -> None:
        """Forget a line that is not ours any more."""
        self.lines = [other for other in self.lines if other is not line]

    def take_due(self, now: float) -> list[DrivenLine]:
        """Return all the lines if it is time to look, for the caller to look at."""
        if now < self.until:
            return []
        lines, self.lines = self.lines, []
        return lines

    def looked(self, since: float) -> None:
        """Choose when to look again, after a look that began at `since`."""
        now = time.monotonic()
        self.until = now + max(LINGER_SECONDS, (now - since) / LINGER_SHARE)

    def patience(self, now: float) -> float | None:
        """Return the seconds to the next look, None where there is nothing to look for."""
        return max(0.0, self.until - now) if self.lines else None
