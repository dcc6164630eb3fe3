"""A further subscriber to what a load publishes, which is judged by itself."""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

from tests.faults.endpoints import Endpoint
from tests.faults.everything.works import Work
from tests.faults.load import Load
from tests.faults.publishers import published_by
from tests.real_broker import Subscribed


@dataclass(slots=True)
class Beside(Work):
    """One subscriber with one endpoint; whoever made the load begins and ends it."""

    load: Load
    subscribed: Subscribed
    endpoint: Endpoint

    def start(self) -> None:
        """Nothing is published for it alone."""

    def endpoints(self) -> Collection[Endpoint]:
        return [self.endpoint]

    def done(self) -> int:
        return len(self.endpoint.exchanges)

    def stop(self) -> None:
        """Nothing is published for it alone."""

    def is_through(self) -> bool:
        wanted = {event.number for event in published_by(self.load.publishers)}
        return wanted <= self.ended() and self.load.broker.has_finished([self.subscribed])

    @abstractmethod
    def ended(self) -> set[int]:
        """Return the events that need nothing more, as the endpoint knows them."""

    def unfinished(self) -> int:
        return self.load.broker.unfinished([self.subscribed])
