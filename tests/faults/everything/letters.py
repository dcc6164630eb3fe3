"""Volatile messages: lost they may be, twice they never come."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import requests

from tests.faults.everything.works import EVERY, Work
from tests.faults.figures import Figures
from tests.faults.volatile_load import Publishing
from tests.real_broker import Broker
from tests.receiver import Receiver, answer

PATH = "/letters"


@dataclass(slots=True)
class Letters(Work):
    """Numbered messages, and how often each has come."""

    kind: ClassVar[str] = "volatile"
    most_copies: ClassVar[int | None] = 0
    is_audited: ClassVar[bool] = False
    publishing: Publishing
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
            unexpected=sum(number >= len(self.publishing.answers) for number in came),
            duplicated=came.total() - len(came),
        )

    def measured(self) -> dict[str, float]:
        return {"volatile_lost": len(self._promised() - self.came.keys())}

    def _promised(self) -> set[int]:
        return {number for number, status in enumerate(self.publishing.answers) if status == requests.codes.accepted}


@contextmanager
def letters_to(broker: Broker, receiver: Receiver) -> Iterator[Letters]:
    """Give a subscriber to volatile messages; let nobody publish any more afterwards."""
    event_type = broker.event_type("Test.Letter")
    broker.subscribe(receiver.url(PATH), event_type)
    made = Letters(Publishing(broker, event_type, every=EVERY))

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        made.came[json.loads(receiver.log[-1].body)["number"]] += 1
        return await answer(200)(reader, writer)

    receiver.on(PATH, take)
    try:
        yield made
    finally:
        made.publishing.enough.set()
