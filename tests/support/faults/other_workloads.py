"""Other kinds of work: mailboxes, queues, callbacks, and edits by admins."""

import itertools
import queue
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import requests

from broker_project.stack.load.exchanges import Exchange
from broker_project.stack.load.publisher import REPEAT_SECONDS, Publisher
from broker_project.stack.load.receiver import Received, Receiver
from tests.support.faults.endpoints import Endpoint, body_of, exchange_of
from tests.support.faults.exchanges import Fault
from tests.support.faults.figures import UNDER_WAY, Figures, figures_of_jobs
from tests.support.faults.load import Load, open_deliveries, publisher_of, stop_all
from tests.support.faults.mailbox_clients import Client, acknowledge, give_back_some, never_acknowledge
from tests.support.faults.mailbox_load import MailboxLoad
from tests.support.faults.queue_load import QueueLoad
from tests.support.faults.workload import EVERY, FaultContext, Workload
from tests.support.real_broker import TIMEOUT_SECONDS, Broker, Subscribed

POSTING = 2
"""Threads that post replies."""
ENOUGH = ("", 0)
SERVER_ERRORS = 500
"""From here on an answer says to try again."""

EDIT_EVERY = 0.5
MANY = 5_000
"""More than the events published in a second."""


@dataclass(slots=True)
class MailboxWorkload(Workload):
    """Messages that are fetched; what was not acknowledged in time comes again, however often."""

    kind: ClassVar[str] = "mailbox"
    max_copies: ClassVar[int | None] = None
    box: MailboxLoad
    idle_client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.idle_client = self.box.client(never_acknowledge, most=2)

    def start(self) -> None:
        self.idle_client.start()
        self.box.read_by(acknowledge, acknowledge, give_back_some)
        for publisher in self.box.publishers:
            publisher.start()

    def done(self) -> int:
        return self.box.answers()

    def stop(self) -> None:
        self.box.stop_publishing(self.idle_client)

    def is_through(self) -> bool:
        return not self.box.open()

    def figures(self) -> Figures:
        self.box.read_records()
        return self.box.figures()


@dataclass(slots=True)
class QueueWorkload(Workload):
    """Jobs, each for one of the endpoints."""

    kind: ClassVar[str] = "queue"
    max_copies: ClassVar[int | None] = UNDER_WAY
    jobs: QueueLoad

    def start(self) -> None:
        for publisher in self.jobs.publishers:
            publisher.start()

    def endpoints(self) -> Collection[Endpoint]:
        return self.jobs.endpoints

    def done(self) -> int:
        return sum(len(endpoint.exchanges) for endpoint in self.jobs.endpoints)

    def stop(self) -> None:
        stop_all(self.jobs.publishers)

    def is_through(self) -> bool:
        return not self.jobs.open()

    def figures(self) -> Figures:
        self.jobs.read_records()
        return self.jobs.figures()


REPLIES = """
    SELECT (convert_from(reply.body, 'UTF8')::jsonb ->> 'number')::int,
           count(*) FILTER (WHERE delivery.status = 'DELIVERED')
    FROM delivery_message reply JOIN subscriptions_eventtype event_type ON event_type.id = reply.event_type_id
    LEFT JOIN delivery_delivery delivery ON delivery.message_id = reply.id
    WHERE event_type.name = %(event_type)s AND reply.answers IS NOT NULL
    GROUP BY 1
"""


class Replier(Endpoint):
    """A worker that puts down where it is to reply to what, whenever it is asked to do a job."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        super().__init__(name, receiver)
        self.wanted: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()

    def record(self, request: Received) -> Exchange:
        exchange = exchange_of(request)
        self.wanted.put((request.headers["callbackurl"], exchange.number))
        return exchange


@dataclass(slots=True)
class CallbackWorkload(Workload):
    """Jobs whose replies are posted again until they are taken; judged by what arrives at the original address."""

    kind: ClassVar[str] = "callbacks"
    broker: Broker
    event_type: str
    worker: Replier
    original: Endpoint
    publisher: Publisher
    faults: list[Fault]
    taken: set[int] = field(default_factory=set)
    """Jobs whose reply was answered 2xx."""
    asked: set[int] = field(default_factory=set)
    """Jobs to which a reply was posted, taken or not."""
    refused: list[int] = field(default_factory=list)
    """Statuses with which one was refused for good."""
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self.threads += [threading.Thread(target=self._reply, daemon=True) for _ in range(POSTING)]
        for thread in (self.publisher, *self.threads):
            thread.start()

    def endpoints(self) -> Collection[Endpoint]:
        return [self.worker, self.original]

    def done(self) -> int:
        return len(self.original.exchanges)

    def stop(self) -> None:
        stop_all([self.publisher])

    def end(self) -> None:
        """Post nothing any more."""
        self.publisher.give_up()
        for _ in self.threads:
            self.worker.wanted.put(ENOUGH)

    def is_through(self) -> bool:
        published = {event.number for event in self.publisher.published}
        return published <= self.taken <= self.original.accepted() and not open_deliveries(self.broker, self.event_type)

    def figures(self) -> Figures:
        return figures_of_jobs(
            sorted(self.taken | {event.number for event in self.publisher.published}),
            self.asked.intersection(self.publisher.begun),
            self.original.exchanges,
            winners=dict(self.broker.ask(REPLIES, event_type=self.event_type)),
            faults=self.faults,
            unfinished=open_deliveries(self.broker, self.event_type),
        )

    def measured(self) -> dict[str, float]:
        return {"replies_refused": len(self.refused)}

    def _reply(self) -> None:
        """Post one reply after the other, each until it is taken or refused for good."""
        while (wanted := self.worker.wanted.get()) != ENOUGH:
            address, number = wanted
            self.asked.add(number)
            while not self._is_over(address, number):
                time.sleep(REPEAT_SECONDS)

    def _is_over(self, address: str, number: int) -> bool:
        headers = {"Content-Type": "application/json"}
        try:
            answer = requests.post(address, body_of(number), headers=headers, timeout=TIMEOUT_SECONDS)
        except requests.RequestException:
            return False
        if answer.ok:
            self.taken.add(number)
        elif answer.status_code < SERVER_ERRORS:
            self.refused.append(answer.status_code)
        return answer.status_code < SERVER_ERRORS


@contextmanager
def callbacks_to(broker: Broker, receiver: Receiver, faults: list[Fault]) -> Iterator[CallbackWorkload]:
    """Yield a QUEUE with a worker that replies; stop posting afterwards."""
    event_type = broker.event_type("Test.Job", "QUEUE")
    worker, original = Replier("replier", receiver), Endpoint("original", receiver)
    broker.subscribe(receiver.url("/replier"), event_type)
    terms = {"CallbackURL": receiver.url("/original")}
    publisher = publisher_of(broker, [event_type], itertools.count(1), 1, every=EVERY, headers=terms)
    replies = CallbackWorkload(broker, event_type, worker, original, publisher, faults)
    try:
        yield replies
    finally:
        replies.end()


@dataclass(slots=True)
class SubscriberWorkload(Workload):
    """One subscriber with one endpoint; the load starts and stops it."""

    load: Load
    subscribed: Subscribed
    endpoint: Endpoint

    @classmethod
    def made(cls, load: Load, endpoint: Endpoint, **terms: Any) -> Self:
        """Subscribe an endpoint to all that the load publishes."""
        address = load.receiver.url(f"/{endpoint.name}")
        return cls(load, load.broker.subscribe(address, *load.event_types, **terms), endpoint)

    def start(self) -> None:
        """Nothing is published for it alone."""

    def endpoints(self) -> Collection[Endpoint]:
        return [self.endpoint]

    def done(self) -> int:
        return len(self.endpoint.exchanges)

    def stop(self) -> None:
        """Nothing is published for it alone."""

    def is_through(self) -> bool:
        return self.load.published().keys() <= self.ended() and self.load.broker.has_finished([self.subscribed])

    def ended(self) -> set[int]:
        """Return the events that need nothing more, as the endpoint knows them."""
        return self.endpoint.accepted()

    def unfinished(self) -> int:
        return self.load.broker.unfinished([self.subscribed])


def edit(context: FaultContext, seconds: float) -> None:
    """Change one thing or another of some subscriber twice a second."""
    for _ in context.again_and_again(seconds, EDIT_EVERY):
        edit_something(context)


def edit_something(context: FaultContext) -> None:
    """Change headers, rate, signing secret, page size or description; something else may be broken meanwhile."""
    subscribed = context.random.choice([*context.load.endpoints])
    event_type = context.random.choice(context.load.event_types)
    number = context.random.randrange(1, MANY)
    subscriber = f"subscribers/{subscribed.name}"
    try:
        found = context.broker.subscription(subscribed.name, event_type=event_type)
        subscription = f"subscriptions/{found['id']}"
        edits: list[tuple[str, str, dict[str, Any]]] = [
            ("PATCH", subscription, {"headers": {"X-Edition": str(number)}}),
            ("PATCH", subscription, {"rate_limit": MANY + number}),
            ("POST", f"{subscription}/rotate-secret", {"overlap_seconds": 1}),  # more than a few may not sign
            ("PATCH", subscriber, {"max_queued_to_send": number}),
            ("PATCH", subscriber, {"description": f"Edition {number}."}),
        ]
        context.broker.management.send(*context.random.choice(edits))
    except requests.RequestException as problem:
        if problem.response is not None and problem.response.status_code != requests.codes.service_unavailable:
            raise
