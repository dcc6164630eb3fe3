"""Strands that wait until what they send next may be sent again (behaviour 1.4)."""

import time

from delivery.worker.line import DrivenLine, Strand


class Pacing:
    """The strands that wait for a rate, and until when; times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._strands: dict[Strand, float] = {}

    def add(self, strand: Strand, seconds: float) -> None:
        """Let a strand wait; nobody waits for its line meanwhile, unless another strand is under way."""
        if not strand.line.is_waiting:
            strand.line.run.idle(strand.line.id)
        self._strands[strand] = time.monotonic() + seconds

    def lose(self, line: DrivenLine) -> None:
        """Forget a line that is not ours any more."""
        self._strands = {strand: until for strand, until in self._strands.items() if strand.line is not line}

    def take_due(self, now: float) -> list[Strand]:
        """Return those that have waited long enough, and those of lines that stop."""
        due = [strand for strand, until in self._strands.items() if until <= now or strand.line.stopping]
        for strand in due:
            del self._strands[strand]
        return due

    def patience(self, now: float) -> float | None:
        """Return the seconds until the first one goes on, None where none waits."""
        return max(0.0, min(self._strands.values()) - now) if self._strands else None
