"""A QUEUE whose worker replies to each job through its callback, and the address that gets the replies."""

import itertools
import queue
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import requests

from tests.faults.endpoints import Endpoint, body_of, exchange_of
from tests.faults.everything.works import EVERY, Work
from tests.faults.exchanges import Exchange, Fault
from tests.faults.figures import Figures
from tests.faults.jobs import figures_of_jobs
from tests.faults.publishers import REPEAT_AFTER, Publisher, begun_by, stop_all
from tests.faults.replying import OPEN, REPLIES, post
from tests.real_broker import Broker
from tests.receiver import Received, Receiver

POSTING = 2
"""Threads that post replies."""
ENOUGH = ("", 0)
SERVER_ERRORS = 500
"""From here on an answer says to try again."""


class Replier(Endpoint):
    """A worker that puts down where it is to reply to what, whenever it is asked to do a job."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        super().__init__(name, receiver)
        self.wanted: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()

    def _noted(self, request: Received) -> Exchange:
        exchange = exchange_of(request)
        self.wanted.put((request.headers["callbackurl"], exchange.number))
        return exchange


@dataclass(slots=True)
class Replies(Work):
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
        return published <= self.taken <= self.original.accepted() and not self._open()

    def figures(self) -> Figures:
        return figures_of_jobs(
            sorted(self.taken | {event.number for event in self.publisher.published}),
            begun_by([self.publisher]) & self.asked,
            self.original.exchanges,
            winners=dict(self.broker.ask(REPLIES, event_type=self.event_type)),
            faults=self.faults,
            unfinished=self._open(),
        )

    def measured(self) -> dict[str, float]:
        return {"replies_refused": len(self.refused)}

    def _reply(self) -> None:
        """Post one reply after the other, each until it is taken or refused for good."""
        while (wanted := self.worker.wanted.get()) != ENOUGH:
            address, number = wanted
            self.asked.add(number)
            while not self._is_over(address, number):
                time.sleep(REPEAT_AFTER)

    def _is_over(self, address: str, number: int) -> bool:
        try:
            answer = post(address, body_of(number))
        except requests.RequestException:
            return False
        if answer.ok:
            self.taken.add(number)
        elif answer.status_code < SERVER_ERRORS:
            self.refused.append(answer.status_code)
        return answer.status_code < SERVER_ERRORS

    def _open(self) -> int:
        ((count,),) = self.broker.ask(OPEN, event_type=self.event_type)
        return int(count)


@contextmanager
def replies_to(broker: Broker, receiver: Receiver, faults: list[Fault]) -> Iterator[Replies]:
    """Give a QUEUE with a worker that replies; let nobody post any more afterwards."""
    event_type = broker.event_type("Test.Job", "QUEUE")
    worker, original = Replier("replier", receiver), Endpoint("original", receiver)
    broker.subscribe(receiver.url("/replier"), event_type)
    terms = {"CallbackURL": receiver.url("/original")}
    publisher = Publisher(broker, [event_type], itertools.count(1), 1, every=EVERY, terms=terms)
    replies = Replies(broker, event_type, worker, original, publisher, faults)
    try:
        yield replies
    finally:
        replies.end()
