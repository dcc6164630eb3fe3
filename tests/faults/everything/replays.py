"""Rounds of events that are delivered and then replayed, at a pace that lets faults come upon many of the slices."""

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psycopg
import requests

from tests.faults.endpoints import Endpoint
from tests.faults.everything.rounds import Round
from tests.faults.everything.works import EVERY, Work
from tests.faults.exchanges import Fault
from tests.faults.figures import Figures
from tests.faults.publishers import Publisher
from tests.real_broker import TIMEOUT, Broker, Subscribed
from tests.receiver import Receiver

ROUND = 40
"""Events in each."""
PACE = 10
"""New deliveries a second."""
LOOK_EVERY = 0.3
REPLAYS = "SELECT state FROM delivery_replay WHERE subscription_id = %(subscription)s ORDER BY id"


class Over(Exception):
    """Nobody waits any more for what was going on."""


@dataclass(slots=True)
class Replays(Work):
    """One round after the other, each replayed once and to its end."""

    kind: ClassVar[str] = "replays"
    broker: Broker
    subscribed: Subscribed
    subscription: int
    endpoint: Endpoint
    publisher: Publisher
    faults: list[Fault]
    rounds: list[Round] = field(default_factory=list)
    thread: threading.Thread | None = None
    enough: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.thread = threading.Thread(target=self._go_on, daemon=True)
        self.thread.start()

    def endpoints(self) -> Collection[Endpoint]:
        return [self.endpoint]

    def done(self) -> int:
        return len(self.endpoint.exchanges)

    def stop(self) -> None:
        self.enough.set()

    def give_up(self) -> None:
        """End the round that is under way, too."""
        self.stop()
        self.publisher.give_up()
        self.is_over.set()

    def is_through(self) -> bool:
        return not (self.thread and self.thread.is_alive()) and self.broker.has_finished([self.subscribed])

    def figures(self) -> Figures:
        judged = [one.judged(self.endpoint.exchanges, self.faults) for one in [*self.rounds]]
        return sum(judged, Figures(unfinished=self.broker.unfinished([self.subscribed])))

    def measured(self) -> dict[str, float]:
        return {"replayed": sum(len(one.numbers) for one in self.rounds)}

    # --- one round ---------------------------------------------------------------

    def _go_on(self) -> None:
        with suppress(Over):
            while not self.enough.is_set():
                self.rounds.append(self._round())

    def _round(self) -> Round:
        begun, since = len(self.endpoint.exchanges), self._asked("SELECT clock_timestamp()")[0][0]
        before = len(self.publisher.published)
        for _ in range(ROUND):
            self.publisher.publish()
        numbers = frozenset(event.number for event in self.publisher.published[before:])
        self._wait(lambda: self.broker.has_finished([self.subscribed]))
        asked = len(self.endpoint.exchanges)
        self._replay(since.isoformat())
        self._wait(lambda: self.broker.has_finished([self.subscribed]))
        return Round(numbers, begun, asked, len(self.endpoint.exchanges))

    def _replay(self, since: str) -> None:
        """Have what was delivered since then replayed, once, whatever answers are lost; wait until it is done."""
        known = len(self._replays())
        asked = {"subscription": self.subscription, "statuses": ["DELIVERED"], "from": since, "pace": PACE}
        headers = {"Authorization": f"Bearer {self.broker.management.token}"}
        while len(self._replays()) == known:
            with suppress(requests.RequestException):
                requests.post(f"{self.broker.web}/api/v1/replays", json=asked, headers=headers, timeout=TIMEOUT)
        self._wait(lambda: self._replays()[-1] == "DONE")

    def _replays(self) -> Sequence[str]:
        """Return the state of each."""
        return [state for (state,) in self._asked(REPLAYS, subscription=self.subscription)]

    def _asked(self, query: str, **arguments: object) -> Sequence[tuple[Any, ...]]:
        """Return what stands in the books, as soon as anybody can read them."""
        while True:
            try:
                return self.broker.ask(query, **arguments)
            except psycopg.Error:
                self._wait_a_moment()

    def _wait(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._wait_a_moment()

    def _wait_a_moment(self) -> None:
        if self.is_over.wait(LOOK_EVERY):
            raise Over


@contextmanager
def replays_at(broker: Broker, receiver: Receiver, faults: list[Fault]) -> Iterator[Replays]:
    """Give a subscriber whose deliveries are replayed; begin no further round afterwards."""
    event_type, endpoint = broker.event_type("Test.Replayed"), Endpoint("replayed", receiver)
    subscribed = broker.subscribe(receiver.url("/replayed"), event_type)
    (subscription,) = broker.get("subscriptions", subscriber=subscribed.name)["items"]
    publisher = Publisher(broker, [event_type], itertools.count(1), 1, every=EVERY)
    made = Replays(broker, subscribed, int(subscription["id"]), endpoint, publisher, faults)
    try:
        yield made
    finally:
        made.give_up()
