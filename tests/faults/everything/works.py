"""What every kind of work has: it is begun, stopped, waited for, and judged by itself."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

from tests.faults.endpoints import Endpoint
from tests.faults.exchanges import Fault
from tests.faults.figures import Figures

EVERY = 0.5
"""Seconds from one publish call to the next, of each publisher: many kinds share two cores."""
BATCH = 5
ANSWER_SECONDS = 0.02
"""How long endpoints take: each line has a request under way for more than half of the time."""


@dataclass(slots=True)
class Faults:
    """What has been broken so far, and when."""

    all: list[Fault] = field(default_factory=list)
    of_web: list[Fault] = field(default_factory=list)
    """Those of them that cut off whoever was asking something."""


class Work(ABC):
    """One kind of work under way, and what is known of it."""

    kind: ClassVar[str]
    most_copies: ClassVar[int | None] = 1
    """How many copies a fault may cause that repeats what was under way, in a line or by a sender; None: any number."""
    is_audited: ClassVar[bool] = True
    """Whether it leaves deliveries behind that the broker's own audit can judge."""

    @abstractmethod
    def start(self) -> None:
        """Go on from now."""

    @abstractmethod
    def done(self) -> int:
        """Return how much has been done so far."""

    @abstractmethod
    def stop(self) -> None:
        """Begin nothing more; what somebody has begun to say is said to its end."""

    @abstractmethod
    def is_through(self) -> bool:
        """Say whether everything is done; only asked once stopped."""

    @abstractmethod
    def figures(self) -> Figures:
        """Return what became of it all."""

    def endpoints(self) -> Collection[Endpoint]:
        """Return who gets its requests."""
        return ()

    def measured(self) -> dict[str, float]:
        """Return what only this kind measures."""
        return {}
