"""SYNC work: callers side by side, and what they are answered."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from broker_project.stack.load.exchanges import Call, number_in
from broker_project.stack.load.publisher import Caller
from broker_project.stack.load.receiver import Receiver, answer
from tests.support.faults.endpoints import body_of
from tests.support.faults.exchanges import Fault
from tests.support.faults.figures import Figures
from tests.support.faults.workload import EVERY, Workload
from tests.support.real_broker import Broker

DOCUMENTED = frozenset({502, 503, 504})
"""What a call may be answered with where it cannot be passed on or recorded."""

CALLERS = 4
PATH = "/answering"


BOOKS = """
    SELECT (convert_from(message.body, 'UTF8')::jsonb ->> 'number')::int, delivery.status, attempt.status_code
    FROM delivery_message message JOIN subscriptions_eventtype event_type ON event_type.id = message.event_type_id
    LEFT JOIN delivery_delivery delivery ON delivery.message_id = message.id
    LEFT JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id
    WHERE event_type.name = %(event_type)s
"""


@dataclass(slots=True)
class SyncWorkload(Workload):
    """Callers at work, and the answers that they got."""

    kind: ClassVar[str] = "sync"
    max_copies: ClassVar[int | None] = 0
    broker: Broker
    event_type: str
    callers: list[Caller]
    cut: list[Fault]
    """When callers may have had no answer, because the web process was killed."""
    taken: list[int] = field(default_factory=list)
    """The numbers of the requests that the endpoint got."""

    @property
    def calls(self) -> list[Call]:
        """Every call so far."""
        return [call for caller in self.callers for call in caller.calls]

    def start(self) -> None:
        for caller in self.callers:
            caller.start()

    def done(self) -> int:
        return len(self.answered())

    def stop(self) -> None:
        for caller in self.callers:
            caller.enough.set()
        for caller in filter(Caller.is_alive, self.callers):
            caller.stop()

    def answered(self) -> list[Call]:
        return [call for call in self.calls if call.status == 200]

    def unaccounted(self) -> Counter[int | None]:
        """Return with which status calls were answered that should not have been answered so; None: not at all."""
        return Counter(call.status for call in self.calls if not self._is_accounted_for(call))

    def is_through(self) -> bool:
        return True

    def measured(self) -> dict[str, float]:
        wrongly: dict[str, float] = {f"answered_{key or 'nothing'}": value for key, value in self.unaccounted().items()}
        return wrongly | {"refused": sum(map(is_refused_as_documented, self.calls))}

    def figures(self) -> Figures:
        """Return what became of the calls: lost is what was answered neither by the endpoint nor as documented."""
        taken = [*self.taken]
        books: dict[int, list[tuple[str, int]]] = {}
        for number, status, status_code in self.broker.ask(BOOKS, event_type=self.event_type):
            books.setdefault(number, []).append((status, status_code))
        fine = {call.number for call in self.answered()}
        recorded = {call.number for call in self.answered() if call.message_id}
        return Figures(
            acknowledged=len(fine),
            delivered=len({*taken}),
            lost=self.unaccounted().total(),
            recovered=len({*taken} - fine),
            duplicated=len(taken) - len({*taken}),
            altered=sum(call.body != body_of(call.number) for call in self.answered()),
            misrecorded=sum(books.get(number) != [("DELIVERED", 200)] for number in recorded | books.keys()),
        )

    def _is_accounted_for(self, call: Call) -> bool:
        """Return whether it was answered, or else cut off."""
        if call.status is None:
            return any(fault.begun <= call.ended and call.begun <= fault.ended for fault in self.cut)
        return call.status == 200 or is_refused_as_documented(call)


def is_refused_as_documented(call: Call) -> bool:
    """Return whether a call got a problem document with a status that says to try again."""
    return call.status in DOCUMENTED and bool(json.loads(call.body)["code"])


@contextmanager
def called(broker: Broker, receiver: Receiver, cut: list[Fault]) -> Iterator[SyncWorkload]:
    """Give a SYNC event type whose endpoint sends back what it gets; leave no caller for the next test."""
    event_type = broker.event_type("Test.Question", "SYNC")
    broker.subscribe(receiver.url(PATH), event_type)
    address, numbers = f"{broker.web}/api/v1/events/{event_type}", itertools.count(1)
    callers = [Caller(address, broker.publisher(), numbers, body_of, interval_seconds=EVERY) for _ in range(CALLERS)]
    calling = SyncWorkload(broker, event_type, callers, cut)

    async def send_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        body = receiver.log[-1].body
        calling.taken.append(number_in(body))
        return await answer(200, body)(reader, writer)

    receiver.on(PATH, send_back)
    try:
        yield calling
    finally:
        calling.stop()
        broker.inactivate_all()
