"""Three subscribers sent one after the other: two that answer, one that answers 500 now and then."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from tests.faults.endpoints import Endpoint
from tests.faults.everything.works import BATCH, EVERY, Work
from tests.faults.figures import Figures
from tests.faults.load import Load
from tests.faults.publishers import stop_all


@dataclass(slots=True)
class Strict(Work):
    """The lines of TOPIC events, and the publishers of what all lines get."""

    kind: ClassVar[str] = "topic"
    load: Load

    def __post_init__(self) -> None:
        for name in ("steady-1", "steady-2"):
            self.load.subscribe(name)
        self.load.subscribe("failing", fails=lambda number: number % 20 == 0)

    def start(self) -> None:
        for size in (1, BATCH):
            self.load.publisher(size, EVERY).start()

    def endpoints(self) -> Collection[Endpoint]:
        return self.load.endpoints.values()

    def done(self) -> int:
        return min(len(endpoint.exchanges) for endpoint in self.load.endpoints.values())

    def stop(self) -> None:
        stop_all(self.load.publishers)

    def is_through(self) -> bool:
        return self.load.is_through()

    def figures(self) -> Figures:
        self.load.unfinished = self.load.broker.unfinished(self.load.endpoints.keys())
        return self.load.figures()
