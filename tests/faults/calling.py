"""Publishers of SYNC events that note how each call was answered, and the endpoint that answers them."""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import requests

from tests.faults.endpoints import body_of, number_in
from tests.faults.exchanges import Fault
from tests.faults.figures import Figures
from tests.faults.sync_calls import Call
from tests.real_broker import TIMEOUT, Broker
from tests.receiver import Receiver, answer

CALLERS = 4
CALL_EVERY = 0.02
PATH = "/answering"
BOOKS = """
    SELECT (convert_from(message.body, 'UTF8')::jsonb ->> 'number')::int, delivery.status, attempt.status_code
    FROM delivery_message message JOIN subscriptions_eventtype event_type ON event_type.id = message.event_type_id
    LEFT JOIN delivery_delivery delivery ON delivery.message_id = message.id
    LEFT JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id
    WHERE event_type.name = %(event_type)s
"""


@dataclass(slots=True)
class Calling:
    """Callers at work, and what they were answered."""

    broker: Broker
    event_type: str
    calls: list[Call] = field(default_factory=list)
    every: float = CALL_EVERY
    taken: list[int] = field(default_factory=list)
    """The numbers of the requests that the endpoint got."""
    cut: list[Fault] = field(default_factory=list)
    """When whoever called may have had no answer, since the web process was killed."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _enough: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Call from now on, side by side."""
        self._threads += [threading.Thread(target=self._call_on, daemon=True) for _ in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every caller finish its call."""
        self._enough.set()
        for thread in self._threads:
            thread.join(TIMEOUT)

    def answered(self) -> list[Call]:
        return [call for call in self.calls if call.status == 200]

    def refused(self) -> int:
        """Return how many calls were answered with a problem document, as documented."""
        return sum(call.is_refused_as_documented for call in self.calls)

    def unaccounted(self) -> Counter[int | None]:
        """Return with which status calls were answered that should not have been answered so; None: not at all."""
        return Counter(call.status for call in self.calls if not self._is_accounted_for(call))

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
        """Say whether it was answered, or else cut off."""
        if call.status is None:
            return any(fault.begun <= call.ended and call.begun <= fault.ended for fault in self.cut)
        return call.status == 200 or call.is_refused_as_documented

    def _call_on(self) -> None:
        session = self.broker.publisher()
        while not self._enough.wait(self.every):
            call = Call(next(self._numbers))
            self.calls.append(call)
            self._make(call, session)

    def _make(self, call: Call, session: requests.Session) -> None:
        address = f"{self.broker.web}/api/v1/events/{self.event_type}"
        headers = {"Content-Type": "application/json"}
        try:
            answered = session.post(address, body_of(call.number), headers=headers, timeout=TIMEOUT)
        except requests.RequestException:
            return
        finally:
            call.ended = time.monotonic()
        call.status, call.body = answered.status_code, answered.content
        call.message_id = answered.headers.get("Broker-Message-Id", "")


@contextmanager
def called(broker: Broker, receiver: Receiver, *, every: float = CALL_EVERY) -> Iterator[Calling]:
    """Give a SYNC event type whose endpoint sends back what it gets; leave no caller for the next test."""

    event_type = broker.event_type("Test.Question", "SYNC")
    broker.subscribe(receiver.url(PATH), event_type)
    calling = Calling(broker, event_type, every=every)

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
