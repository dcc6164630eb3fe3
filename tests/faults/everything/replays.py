"""Rounds of events that are delivered and then replayed, at a pace that lets faults come upon many of the slices."""

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psycopg
import requests

from tests.faults.endpoints import Endpoint
from tests.faults.everything.works import EVERY, Work
from tests.faults.exchanges import Fault, most_of_a_fault, unexplained
from tests.faults.figures import Figures
from tests.faults.publishers import Publisher
from tests.faults.replayed import compared
from tests.real_broker import TIMEOUT, Broker, Subscribed
from tests.receiver import Receiver

ROUND = 40
"""Events in each."""
PACE = 10
"""New deliveries a second."""
LOOK_EVERY = 0.3
REPLAYS = """
    SELECT r.id, r.state FROM delivery_replay r JOIN subscriptions_subscription s ON s.id = r.subscription_id
     WHERE s.id = %(subscription)s ORDER BY r.id
"""


@dataclass(frozen=True, slots=True)
class Round:
    """What was published, and where in the endpoint's log the first time and the second time begin and end."""

    numbers: frozenset[int]
    begun: int
    asked: int
    ended: int


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

    def start(self) -> None:
        self.thread = threading.Thread(target=self._go_on, daemon=True)
        self.thread.start()

    def endpoints(self) -> Collection[Endpoint]:
        return [self.endpoint]

    def done(self) -> int:
        return len(self.endpoint.exchanges)

    def stop(self) -> None:
        self.enough.set()

    def is_through(self) -> bool:
        return not (self.thread and self.thread.is_alive()) and self.broker.has_finished([self.subscribed])

    def figures(self) -> Figures:
        return sum(map(self._judged, [*self.rounds]), Figures(unfinished=self.broker.unfinished([self.subscribed])))

    def measured(self) -> dict[str, float]:
        return {"replayed": sum(len(one.numbers) for one in self.rounds)}

    def _judged(self, one: Round) -> Figures:
        log = self.endpoint.exchanges
        first, second = log[one.begun : one.asked], log[one.asked : one.ended]
        again = compared(first, second)
        return Figures(
            acknowledged=len(one.numbers),
            delivered=len({each.number for each in second if each.status == 200}),
            lost=again.missing + len(one.numbers - {each.number for each in first}),
            unexpected=sum(each.number not in one.numbers for each in (*first, *second)),
            duplicated=again.copies,
            inverted=again.inverted,
            unflagged=again.unflagged,
            not_under_way=unexplained(second, self.faults),
            altered=sum(each.altered for each in second),
            misrecorded=again.doubled,
            most_of_a_fault=max(most_of_a_fault(each, self.faults) for each in (first, second)),
        )

    # --- one round ---------------------------------------------------------------

    def _go_on(self) -> None:
        while not self.enough.is_set():
            begun, since = len(self.endpoint.exchanges), self._asked("SELECT clock_timestamp()")[0][0]
            before = len(self.publisher.published)
            for _ in range(ROUND):
                self.publisher.publish()
            numbers = frozenset(event.number for event in self.publisher.published[before:])
            self._wait(lambda: self.broker.has_finished([self.subscribed]))
            asked = len(self.endpoint.exchanges)
            self._replay(since.isoformat())
            self._wait(lambda: self.broker.has_finished([self.subscribed]))
            self.rounds.append(Round(numbers, begun, asked, len(self.endpoint.exchanges)))

    def _replay(self, since: str) -> None:
        """Have what was delivered since then replayed, once, whatever answers are lost; wait until it is done."""
        known = self._asked(REPLAYS, subscription=self.subscription)
        asked = {"subscription": self.subscription, "statuses": ["DELIVERED"], "from": since, "pace": PACE}
        headers = {"Authorization": f"Bearer {self.broker.management.token}"}
        while len(self._asked(REPLAYS, subscription=self.subscription)) == len(known):
            try:
                requests.post(f"{self.broker.web}/api/v1/replays", json=asked, headers=headers, timeout=TIMEOUT)
            except requests.RequestException:
                time.sleep(LOOK_EVERY)
        self._wait(lambda: self._asked(REPLAYS, subscription=self.subscription)[-1][1] == "DONE")

    def _asked(self, query: str, **arguments: object) -> Sequence[tuple[Any, ...]]:
        """Return what stands in the books, as soon as anybody can read them."""
        while True:
            try:
                return self.broker.ask(query, **arguments)
            except psycopg.Error:
                time.sleep(LOOK_EVERY)

    def _wait(self, condition: Callable[[], object]) -> None:
        while not condition():
            time.sleep(LOOK_EVERY)


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
        made.stop()
