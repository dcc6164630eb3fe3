"""Strands whose line goes on without them for now: the turn is over, and the last of its requests is waited for."""

from delivery.worker.line import HANGS_SECONDS, DrivenLine, Strand


class Resting:
    """Strands at rest, of lines that are not at rest wholly."""

    def __init__(self) -> None:
        self._lines: list[DrivenLine] = []

    def add(self, strand: Strand) -> bool:
        """Note that a strand rests; say whether its whole line does now."""
        line = strand.line
        line.resting.append(strand)
        if len(line.resting) == len(line.strands):
            self.lose(line)
            return True
        if len(line.resting) == 1:
            self._lines.append(line)
        return False

    def lose(self, line: DrivenLine) -> None:
        """Forget a line."""
        if len(line.strands) > 1:
            self._lines = [other for other in self._lines if other is not line]

    def take_called(self, now: float) -> list[Strand]:
        """Return the strands that go on: a request of their line hangs, and what others wait for must not (6.6)."""
        called: list[Strand] = []
        for line in self._lines:
            if line.hangs(now) and not line.must_stop():
                called += line.resting
                line.resting = []
        self._lines = [line for line in self._lines if line.resting]
        return called

    def patience(self) -> float | None:
        """Return the seconds after which one may be called, None where none rests."""
        return HANGS_SECONDS if self._lines else None
