"""How long a delivery waits before each of its retries under a retry policy of its own (behaviour 5.1)."""

from dataclasses import dataclass
from math import log

from delivery.pauses import LONGEST_RETRY_AFTER_SECONDS


@dataclass(frozen=True, slots=True)
class Spacing:
    """The pauses between tries; all in seconds."""

    first: float
    factor: float
    """By which each pause is longer than the one before it."""
    longest: float
    jitter: float
    """The share by which a pause may be shorter."""
    schedule: tuple[float, ...] = ()
    """The pauses one by one, instead of `first`, `factor` and `longest`; empty: there is none."""
    respect_retry_after: bool = True

    def pause(self, retry: int, *, retry_after: float | None, holds: bool, chance: float) -> float:
        """Return the seconds before the `retry`-th try after the first one; `chance`, 0 to 1, shortens them by jitter.

        What the endpoint asks for only lengthens them: while it holds its line, by no more than a line waits at most.
        """
        pause = self._unshortened(retry) * (1.0 - self.jitter * chance)
        if retry_after is None or not self.respect_retry_after:
            return pause
        return max(pause, min(retry_after, LONGEST_RETRY_AFTER_SECONDS if holds else self.longest))

    def max_delay_seconds(self, *, chance: float) -> float:
        """Return the longest of the pauses, shortened like each of them."""
        return max(self.schedule, default=self.longest) * (1.0 - self.jitter * chance)

    def _unshortened(self, retry: int) -> float:
        if self.schedule:
            return self.schedule[min(retry, len(self.schedule)) - 1]
        # By logarithms: a pause that has long reached its longest might be no number any more.
        if (retry - 1) * log(self.factor) >= log(self.longest / self.first):
            return self.longest
        return min(self.longest, self.first * self.factor ** (retry - 1))
