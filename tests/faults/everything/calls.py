"""SYNC calls, each answered by its endpoint or with a problem document."""

from dataclasses import dataclass
from typing import ClassVar

from tests.faults.calling import Calling
from tests.faults.everything.works import Work
from tests.faults.figures import Figures


@dataclass(slots=True)
class Calls(Work):
    """Callers side by side."""

    kind: ClassVar[str] = "sync"
    most_copies: ClassVar[int | None] = 0
    calling: Calling

    def start(self) -> None:
        self.calling.start()

    def done(self) -> int:
        return len(self.calling.answered())

    def stop(self) -> None:
        self.calling.stop()

    def is_through(self) -> bool:
        return True

    def figures(self) -> Figures:
        return self.calling.figures()

    def measured(self) -> dict[str, float]:
        unaccounted = self.calling.unaccounted().items()
        wrongly: dict[str, float] = {f"answered_{status or 'nothing'}": count for status, count in unaccounted}
        return wrongly | {"refused": self.calling.refused()}
