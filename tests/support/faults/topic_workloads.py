"""Kinds of TOPIC work: strict order, several at a time, retries, scripts, dead letters, replays."""

import asyncio
import dataclasses
import itertools
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import psycopg
import requests

from broker_project.stack.load.exchanges import Exchange
from broker_project.stack.load.publisher import Caller, Publisher
from broker_project.stack.load.receiver import Received, Receiver, answer
from tests.support.faults.audit import by_status, set_aside
from tests.support.faults.endpoints import (
    APART,
    Endpoint,
    RefusingEndpoint,
    exchange_of,
    is_doomed,
    key_of,
    times_refused,
)
from tests.support.faults.exchanges import Fault, out_of_order, overlapping
from tests.support.faults.figures import Figures, figures_of_concurrent, figures_of_lanes
from tests.support.faults.figures import figures as figures_of
from tests.support.faults.load import Load, publisher_of, stop_all, volatile_caller
from tests.support.faults.other_workloads import SubscriberWorkload
from tests.support.faults.workload import BATCH, EVERY, Round, Workload
from tests.support.real_broker import Broker, Subscribed

AT_A_TIME = 8

SCRIPT = "$outmessage = {number: $inmessage.number, length: $inmessage.size.length, dice: [Math.random(), Date.now()]}"
"""What a repeated request has to say again, too (contract 8.3)."""

PATH = "/letters"

ROUND = 40
"""Events in each."""
PACE = 10
"""New deliveries a second."""
LOOK_EVERY = 0.3
REPLAYS = "SELECT state FROM delivery_replay WHERE subscription_id = %(subscription)s ORDER BY id"


@dataclass(slots=True)
class TopicWorkload(Workload):
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


class ConcurrentWorkload(SubscriberWorkload):
    """A `CONCURRENT` subscriber."""

    kind: ClassVar[str] = "concurrent"
    max_copies: ClassVar[int | None] = AT_A_TIME

    @classmethod
    def of(cls, load: Load) -> Self:
        return cls.made(load, Endpoint("several", load.receiver), concurrency=AT_A_TIME)

    def figures(self) -> Figures:
        load, requests = self.load, self.endpoint.exchanges
        return figures_of_concurrent(
            load.published(), load.begun(), requests, faults=load.faults, unfinished=self.unfinished()
        )


class KeyedWorkload(ConcurrentWorkload):
    """A `KEYED` subscriber, whose endpoint fails some events of each key at first."""

    kind: ClassVar[str] = "keyed"

    @classmethod
    def of(cls, load: Load) -> Self:
        endpoint = Endpoint("keyed", load.receiver, fails=lambda number: number % 21 == 0)
        return cls.made(load, endpoint, concurrency=AT_A_TIME, ordering_key="$$->'Body'->>'key'")

    def figures(self) -> Figures:
        events = self.load.published()
        by_key: dict[str, list[Exchange]] = defaultdict(list)
        for one in self.endpoint.exchanges:
            by_key[key_of(one.number)].append(one)
        return dataclasses.replace(
            super().figures(),
            inverted=sum(out_of_order(of_key, events) for of_key in by_key.values()),
            overlapping=sum(map(overlapping, by_key.values())),
        )


class RetryLaneWorkload(SubscriberWorkload):
    """A subscriber whose failed deliveries are tried again apart; some are never taken."""

    kind: ClassVar[str] = "retry-line"

    @classmethod
    def of(cls, load: Load) -> Self:
        endpoint = RefusingEndpoint("apart", load.receiver, times=times_refused)
        return cls.made(load, endpoint, retry_policy=load.broker.retry_policy(**APART))

    def ended(self) -> set[int]:
        return self.endpoint.accepted() | {one.number for one in self.endpoint.exchanges if is_doomed(one.number)}

    def figures(self) -> Figures:
        events, begun = self.load.published(), self.load.begun()
        doomed = {number for number in begun if is_doomed(number)}
        requests, faults = self.endpoint.exchanges, self.load.faults
        made = figures_of_lanes(events, begun, requests, doomed=doomed, faults=faults, unfinished=self.unfinished())
        books = by_status(self.load.broker, self.subscribed)
        wrong = books.pop("DELIVERED", set()) ^ self.endpoint.accepted()
        wrong |= books.pop("FAILED", set()) ^ {one.number for one in requests if one.number in doomed}
        return dataclasses.replace(made, misrecorded=len(wrong.union(*books.values())))


class ScriptWorkload(SubscriberWorkload):
    """A subscriber that gets what a script makes of each event."""

    kind: ClassVar[str] = "scripts"

    @classmethod
    def of(cls, load: Load) -> Self:
        return cls.made(load, ScriptedEndpoint("scripted", load.receiver), script=SCRIPT)

    def figures(self) -> Figures:
        load, events, requests = self.load, self.load.published(), self.endpoint.exchanges
        made = figures_of(events, load.begun(), {"": requests}, faults=load.faults, unfinished=self.unfinished())
        aside = set_aside(load.broker, self.subscribed)  # since its script had no time, on a busy machine (8.3)
        straight = [one for one in requests if one.number not in aside]
        return dataclasses.replace(made, inverted=out_of_order(straight, events))


class ScriptedEndpoint(Endpoint):
    """Looks whether each request has the body that the script makes of its event, and the same each time."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        super().__init__(name, receiver)
        self._dice: dict[int, object] = {}

    def record(self, request: Received) -> Exchange:
        exchange = exchange_of(request)
        exchange.altered = not self._is_made_by_the_script(exchange.number, request.body)
        return exchange

    def _is_made_by_the_script(self, number: int, body: bytes) -> bool:
        try:
            made = json.loads(body)
        except ValueError:
            return False
        if not isinstance(made, dict):
            return False
        dice = self._dice.setdefault(number, made.get("dice"))
        return bool(dice) and made == {"number": number, "length": number % 700, "dice": dice}


@dataclass(slots=True)
class VolatileWorkload(Workload):
    """Numbered messages, and how often each has come."""

    kind: ClassVar[str] = "volatile"
    max_copies: ClassVar[int | None] = 0
    is_audited: ClassVar[bool] = False
    publishing: Caller
    came: Counter[int] = field(default_factory=Counter)

    def start(self) -> None:
        self.publishing.start()

    def done(self) -> int:
        return len(self.came)

    def stop(self) -> None:
        self.publishing.stop()

    def is_through(self) -> bool:
        return True

    def figures(self) -> Figures:
        came, promised = Counter(self.came), self._promised()
        return Figures(
            acknowledged=len(promised),
            delivered=len(came),
            recovered=len(came.keys() - promised),
            unexpected=sum(number >= len(self.publishing.calls) for number in came),
            duplicated=came.total() - len(came),
        )

    def measured(self) -> dict[str, float]:
        return {"volatile_lost": len(self._promised() - self.came.keys())}

    def _promised(self) -> set[int]:
        return {call.number for call in self.publishing.calls if call.status == requests.codes.accepted}


@contextmanager
def volatile_messages_to(broker: Broker, receiver: Receiver) -> Iterator[VolatileWorkload]:
    """Yield a subscriber to volatile messages; stop publishing afterwards."""
    event_type = broker.event_type("Test.Letter")
    broker.subscribe(receiver.url(PATH), event_type)
    made = VolatileWorkload(volatile_caller(broker, event_type, every=EVERY))

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        made.came[json.loads(receiver.log[-1].body)["number"]] += 1
        return await answer(200)(reader, writer)

    receiver.on(PATH, take)
    try:
        yield made
    finally:
        made.publishing.enough.set()


class Over(Exception):
    """Nobody waits any more for what was going on."""


@dataclass(slots=True)
class ReplayWorkload(Workload):
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
        """Replay the deliveries since then once, even if answers are lost; wait until it is done."""
        known = len(self._replays())
        sent: dict[str, object] = {"statuses": ["DELIVERED"], "from": since, "max_per_second": PACE}
        asked = {"subscription": self.subscription, **sent}
        while len(self._replays()) == known:
            with suppress(requests.RequestException):
                self.broker.management.create("replays", **asked)
        self._wait(lambda: self._replays()[-1] == "DONE")

    def _replays(self) -> Sequence[str]:
        """Return the state of each."""
        return [state for (state,) in self._asked(REPLAYS, subscription=self.subscription)]

    def _asked(self, query: str, **arguments: object) -> Sequence[tuple[Any, ...]]:
        """Return the rows of a query as soon as the database answers."""
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
def replays_to(broker: Broker, receiver: Receiver, faults: list[Fault]) -> Iterator[ReplayWorkload]:
    """Give a subscriber whose deliveries are replayed; begin no further round afterwards."""
    event_type, endpoint = broker.event_type("Test.Replayed"), Endpoint("replayed", receiver)
    subscribed = broker.subscribe(receiver.url("/replayed"), event_type)
    publisher = publisher_of(broker, [event_type], itertools.count(1), 1, every=EVERY)
    subscription_id = broker.subscription(subscribed.name)["id"]
    made = ReplayWorkload(broker, subscribed, subscription_id, endpoint, publisher, faults)
    try:
        yield made
    finally:
        made.give_up()
