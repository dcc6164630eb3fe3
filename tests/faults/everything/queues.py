"""A QUEUE with two endpoints that do their work and one that is down."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from tests.faults.endpoints import Endpoint
from tests.faults.everything.works import Work
from tests.faults.figures import Figures
from tests.faults.jobs import UNDER_WAY
from tests.faults.publishers import stop_all
from tests.faults.queue_load import Jobs


@dataclass(slots=True)
class Queue(Work):
    """Jobs, each for one of the endpoints."""

    kind: ClassVar[str] = "queue"
    most_copies: ClassVar[int | None] = UNDER_WAY
    jobs: Jobs

    def start(self) -> None:
        for publisher in self.jobs.publishers:
            publisher.start()

    def endpoints(self) -> Collection[Endpoint]:
        return self.jobs.endpoints

    def done(self) -> int:
        return sum(len(endpoint.exchanges) for endpoint in self.jobs.endpoints)

    def stop(self) -> None:
        stop_all(self.jobs.publishers)

    def is_through(self) -> bool:
        return not self.jobs.open()

    def figures(self) -> Figures:
        self.jobs.read_books()
        return self.jobs.figures()
