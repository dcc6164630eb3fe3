"""A QUEUE whose jobs are to be replied to, what does them and replies, and who waits for the replies."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import requests

from tests.faults.endpoints import Endpoint, body_of, number_in
from tests.faults.exchanges import Fault
from tests.faults.figures import Figures
from tests.faults.jobs import figures_of_jobs
from tests.faults.load import THROUGH_SECONDS
from tests.real_broker import TIMEOUT, Broker
from tests.receiver import Receiver, wait_until

AT_ONCE = 20
"""Posts side by side."""

OPEN = """
    SELECT count(*) FROM delivery_open delivery JOIN delivery_message message ON message.id = delivery.message_id
    JOIN subscriptions_eventtype event_type ON event_type.id = message.event_type_id
    WHERE event_type.name = %(event_type)s
"""
REPLIES = """
    SELECT (convert_from(reply.body, 'UTF8')::jsonb ->> 'number')::int,
           count(*) FILTER (WHERE delivery.status = 'DELIVERED')
    FROM delivery_message reply JOIN subscriptions_eventtype event_type ON event_type.id = reply.event_type_id
    LEFT JOIN delivery_delivery delivery ON delivery.message_id = reply.id
    WHERE event_type.name = %(event_type)s AND reply.answers IS NOT NULL
    GROUP BY 1
"""


@dataclass(slots=True)
class Replying:
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
            session.post(address, body_of(number), headers=headers, timeout=TIMEOUT).raise_for_status()
            self.published.append(number)
        wait_until(lambda: {*numbers} <= self.worker.accepted(), THROUGH_SECONDS)

    def addresses(self) -> dict[int, str]:
        """Return where the worker is to post its replies, by number."""
        requests_ = self.receiver.of(f"/{self.worker.name}")
        return {number_in(request.body): request.headers["callbackurl"] for request in requests_}

    def reply(self, number: int, times: int = AT_ONCE) -> list[tuple[int, str]]:
        """Post a reply so many times side by side; return each answer's status and text."""
        address = self.addresses()[number]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = [*pool.map(lambda _: post(address, body_of(number)), range(times))]
        if any(answer.ok for answer in answers):
            self.acknowledged.append(number)
        return [(answer.status_code, answer.text) for answer in answers]

    def wait_until_through(self) -> None:
        """Wait until every reply has been accepted and nothing is on its way any more."""
        wait_until(lambda: {*self.acknowledged} <= self.original.accepted(), THROUGH_SECONDS)
        wait_until(lambda: not self._open(), THROUGH_SECONDS)

    def figures(self) -> Figures:
        """Return what became of the replies."""
        return figures_of_jobs(
            self.acknowledged,
            self.published,
            self.original.exchanges,
            winners=dict(self.broker.ask(REPLIES, event_type=self.event_type)),
            faults=self.faults,
            unfinished=self._open(),
        )

    def _open(self) -> int:
        ((count,),) = self.broker.ask(OPEN, event_type=self.event_type)
        return int(count)


def post(address: str, body: bytes) -> requests.Response:
    """Post a reply, as a worker would."""
    return requests.post(address, body, headers={"Content-Type": "application/json"}, timeout=TIMEOUT)


@contextmanager
def replying_to(broker: Broker, receiver: Receiver) -> Iterator[Replying]:
    """Give a QUEUE with one worker; leave no work for the next test."""
    event_type = broker.event_type("Test.Job", "QUEUE")
    worker, original = Endpoint("worker", receiver), Endpoint("original", receiver)
    broker.subscribe(receiver.url("/worker"), event_type)
    try:
        yield Replying(broker, receiver, event_type, worker, original)
    finally:
        broker.inactivate_all()
