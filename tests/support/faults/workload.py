"""What all kinds of work have: they start, stop, wait, and are judged by themselves."""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import ClassVar

from broker_project.stack.load.exchanges import Exchange
from broker_project.stack.supervisor import Child
from tests.support.faults.endpoints import Endpoint
from tests.support.faults.exchanges import Fault, extra_copies, first_sent, max_copies_of_a_fault, unexplained
from tests.support.faults.figures import Figures
from tests.support.faults.load import Load, noting_fault
from tests.support.real_broker import Broker

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
    """Those of them that cut off callers."""


class Workload(ABC):
    """One kind of work under way, and what is known of it."""

    kind: ClassVar[str]
    max_copies: ClassVar[int | None] = 1
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
        """Begin nothing more, but finish calls in progress."""

    @abstractmethod
    def is_through(self) -> bool:
        """Return whether everything is done; only asked once stopped."""

    @abstractmethod
    def figures(self) -> Figures:
        """Return the figures of everything."""

    def endpoints(self) -> Collection[Endpoint]:
        """Return the endpoints that get its requests."""
        return ()

    def measured(self) -> dict[str, float]:
        """Return what only this kind measures."""
        return {}


@dataclass(frozen=True, slots=True)
class Round:
    """What was published, and where in the endpoint's log the first time and the second time begin and end."""

    numbers: frozenset[int]
    begun: int
    asked: int
    ended: int

    def judged(self, log: Sequence[Exchange], faults: Collection[Fault]) -> Figures:
        """Judge the second time by the first: each event comes again, in the same order, under one webhook id."""
        first, second = log[self.begun : self.asked], log[self.asked : self.ended]
        before = {one.number: place for place, one in enumerate(first_sent(first))}
        ids: dict[int, set[str]] = {number: set() for number in before}
        for one in second:
            ids.setdefault(one.number, set()).add(one.webhook_id)
        places = [before[one.number] for one in first_sent(second) if one.number in before]
        copies = [copy.request for copy in extra_copies(second)]
        return Figures(
            acknowledged=len(self.numbers),
            delivered=len({one.number for one in second if one.status == 200}),
            lost=sum(not found for found in ids.values()) + len(self.numbers - before.keys()),
            unexpected=sum(one.number not in self.numbers for one in (*first, *second)),
            duplicated=len(copies),
            inverted=sum(after < earlier for earlier, after in pairwise(places)),
            unflagged=sum(not one.flagged for one in copies),
            not_under_way=unexplained(second, faults),
            altered=sum(one.altered for one in second),
            misrecorded=sum(len(found) > 1 for found in ids.values()),
            max_per_fault=max(max_copies_of_a_fault(time, faults) for time in (first, second)),
        )


def dice(seed: str) -> Random:
    """Return what falls the same way each time."""
    return Random(seed)  # noqa: S311 - nothing is to be kept secret


@dataclass(slots=True)
class FaultContext:
    """A broker under load."""

    broker: Broker
    load: Load
    """What admins edit the subscribers of."""
    faults: Faults
    random: Random

    def process(self, name: str) -> Child:
        return self.broker.stack.supervisor[name]

    @contextmanager
    def fault(self, *, of_web: bool = False) -> Iterator[None]:
        """Break something inside; `of_web` cuts off callers."""
        try:
            with noting_fault(self.faults.all):
                yield
        finally:
            if of_web:
                self.faults.of_web.append(self.faults.all[-1])

    def again_and_again(self, seconds: float, every: float) -> Iterator[None]:
        """Yield at once, and again every `every` seconds until `seconds` are over."""
        until = time.monotonic() + seconds
        yield
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(every, left))
            yield
