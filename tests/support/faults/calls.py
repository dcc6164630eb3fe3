"""Load that waits for answers: SYNC callers, and jobs with callbacks."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import requests

from broker_project.stack.load.exchanges import Call, number_in
from broker_project.stack.load.publisher import Caller
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from tests.support.faults.endpoints import Endpoint, body_of
from tests.support.faults.exchanges import Fault
from tests.support.faults.figures import Figures, figures_of_jobs
from tests.support.faults.load import THROUGH_SECONDS, open_deliveries
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

DOCUMENTED = frozenset({502, 503, 504})
"""What a call may be answered with where it cannot be passed on or recorded."""

CALLERS = 4
CALL_EVERY = 0.02
PATH = "/answering"

AT_ONCE = 20
"""Posts side by side."""

BOOKS = """
    SELECT (convert_from(message.body, 'UTF8')::jsonb ->> 'number')::int, delivery.status, attempt.status_code
    FROM delivery_message message JOIN subscriptions_eventtype event_type ON event_type.id = message.event_type_id
    LEFT JOIN delivery_delivery delivery ON delivery.message_id = message.id
    LEFT JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id
    WHERE event_type.name = %(event_type)s
"""


@dataclass(slots=True)
class SyncLoad:
    """Callers at work, and the answers that they got."""

    broker: Broker
    event_type: str
    callers: list[Caller]
    taken: list[int] = field(default_factory=list)
    """The numbers of the requests that the endpoint got."""
    cut: list[Fault] = field(default_factory=list)
    """When callers may have had no answer, because the web process was killed."""

    @property
    def calls(self) -> list[Call]:
        """Every call so far."""
        return [call for caller in self.callers for call in caller.calls]

    def start(self) -> None:
        """Call from now on, side by side."""
        for caller in self.callers:
            caller.start()

    def stop(self) -> None:
        """Let every caller finish its call."""
        for caller in self.callers:
            caller.enough.set()
        for caller in filter(Caller.is_alive, self.callers):
            caller.stop()

    def answered(self) -> list[Call]:
        return [call for call in self.calls if call.status == 200]

    def refused(self) -> int:
        """Return how many calls were answered with a problem document, as documented."""
        return sum(map(is_refused_as_documented, self.calls))

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
        """Return whether it was answered, or else cut off."""
        if call.status is None:
            return any(fault.begun <= call.ended and call.begun <= fault.ended for fault in self.cut)
        return call.status == 200 or is_refused_as_documented(call)


def is_refused_as_documented(call: Call) -> bool:
    """Return whether a call got a problem document with a status that says to try again."""
    return call.status in DOCUMENTED and bool(json.loads(call.body)["code"])


@contextmanager
def called(broker: Broker, receiver: Receiver, *, every: float = CALL_EVERY) -> Iterator[SyncLoad]:
    """Give a SYNC event type whose endpoint sends back what it gets; leave no caller for the next test."""

    event_type = broker.event_type("Test.Question", "SYNC")
    broker.subscribe(receiver.url(PATH), event_type)
    address, numbers = f"{broker.web}/api/v1/events/{event_type}", itertools.count(1)
    callers = [Caller(address, broker.publisher(), numbers, body_of, interval_seconds=every) for _ in range(CALLERS)]
    calling = SyncLoad(broker, event_type, callers)

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


REPLIES = """
    SELECT (convert_from(reply.body, 'UTF8')::jsonb ->> 'number')::int,
           count(*) FILTER (WHERE delivery.status = 'DELIVERED')
    FROM delivery_message reply JOIN subscriptions_eventtype event_type ON event_type.id = reply.event_type_id
    LEFT JOIN delivery_delivery delivery ON delivery.message_id = reply.id
    WHERE event_type.name = %(event_type)s AND reply.answers IS NOT NULL
    GROUP BY 1
"""


@dataclass(slots=True)
class ReplyLoad:
    """Jobs, the worker that does them, and the original URL, which gets each reply as body of its number."""

    broker: Broker
    receiver: Receiver
    event_type: str
    worker: Endpoint
    original: Endpoint
    published: list[int] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    """Jobs whose reply was answered 2xx."""
    faults: list[Fault] = field(default_factory=list)

    def publish(self, numbers: Sequence[int]) -> None:
        """Publish jobs; return when the worker has them."""
        session = self.broker.publisher()
        headers = {"Content-Type": "application/json", "CallbackURL": self.receiver.url(f"/{self.original.name}")}
        for number in numbers:
            address = f"{self.broker.web}/api/v1/events/{self.event_type}"
            session.post(address, body_of(number), headers=headers, timeout=TIMEOUT_SECONDS).raise_for_status()
            self.published.append(number)
        wait_until(lambda: {*numbers} <= self.worker.accepted(), THROUGH_SECONDS)

    def addresses(self) -> dict[int, str]:
        """Return where the worker is to post its replies, by number."""
        requests_ = self.receiver.of(f"/{self.worker.name}")
        return {number_in(request.body): request.headers["callbackurl"] for request in requests_}

    def reply(self, number: int, times: int = AT_ONCE) -> list[tuple[int, str]]:
        """Post a reply `times` times concurrently; return each answer's status and text."""
        address = self.addresses()[number]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = [*pool.map(lambda _: post(address, body_of(number)), range(times))]
        if any(answer.ok for answer in answers):
            self.acknowledged.append(number)
        return [(answer.status_code, answer.text) for answer in answers]

    def wait_until_through(self) -> None:
        """Wait until every reply has been accepted and nothing is on its way any more."""
        wait_until(lambda: {*self.acknowledged} <= self.original.accepted(), THROUGH_SECONDS)
        wait_until(lambda: not open_deliveries(self.broker, self.event_type), THROUGH_SECONDS)

    def figures(self) -> Figures:
        """Return what became of the replies."""
        return figures_of_jobs(
            self.acknowledged,
            self.published,
            self.original.exchanges,
            winners=dict(self.broker.ask(REPLIES, event_type=self.event_type)),
            faults=self.faults,
            unfinished=open_deliveries(self.broker, self.event_type),
        )


def post(address: str, body: bytes) -> requests.Response:
    """Post a reply, as a worker would."""
    return requests.post(address, body, headers={"Content-Type": "application/json"}, timeout=TIMEOUT_SECONDS)


@contextmanager
def replying_to(broker: Broker, receiver: Receiver) -> Iterator[ReplyLoad]:
    """Give a QUEUE with one worker; leave no work for the next test."""
    event_type = broker.event_type("Test.Job", "QUEUE")
    worker, original = Endpoint("worker", receiver), Endpoint("original", receiver)
    broker.subscribe(receiver.url("/worker"), event_type)
    try:
        yield ReplyLoad(broker, receiver, event_type, worker, original)
    finally:
        broker.inactivate_all()
