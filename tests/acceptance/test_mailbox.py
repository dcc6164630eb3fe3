"""Mailboxes over real HTTP: the client's reader and long polls."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from broker_client import Mailbox, MailboxReader, Message
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.mailbox.long_poll import MAX_POLLS
from tests.support.raw_http import request_head
from tests.support.real_broker import TIMEOUT_SECONDS, Broker, another_web_process, database_now, wait_until_polling

pytestmark = pytest.mark.faults

TIME_OUT = 3
TIMES = 2
LONG = 600
"""Long enough that nothing times out on a busy machine."""
ENDED = """
    SELECT d.status, d.fetches FROM delivery_delivery d JOIN subscriptions_subscription s ON s.id = d.subscription_id
      JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
     WHERE u.name = %(name)s ORDER BY d.id
"""
HELD_UNTIL = """
    SELECT extract(epoch FROM d.fetched_until)::float8 FROM delivery_open d
     WHERE d.id = %(delivery)s AND d.fetches = 1
"""

MAX_WAIT = 20
POLL_PATIENCE_SECONDS = MAX_WAIT + TIMEOUT_SECONDS
CLIENTS = 200
NO_REDIS = "redis://127.0.0.1:9/0"


@dataclass(slots=True)
class RealMailbox:
    """A subscriber's mailbox, and what a reader has got from it."""

    broker: Broker
    name: str
    event_type: str
    client: Mailbox
    seen: list[Message] = field(default_factory=list)

    def publish(self, number: int = 0, web: str = "") -> None:
        """Publish one message, whose body is its number."""
        self.broker.publish(self.event_type, b"%d" % number, web=web).raise_for_status()

    def ended(self) -> list[tuple[Any, ...]]:
        return self.broker.ask(ENDED, name=self.name)

    @contextlib.contextmanager
    def reader(self, work: Callable[[Message], object]) -> Iterator[MailboxReader]:
        """Read until the block ends."""

        def noted(message: Message) -> None:
            self.seen.append(message)
            work(message)

        reader = MailboxReader(self.client, noted, wait_seconds=1)
        reader.start()
        try:
            yield reader
        finally:
            reader.stop()
            reader.join()

    def next(self, wait: float = 0, web: str = "") -> requests.Response:
        """Fetch one message."""
        address = f"{web or self.broker.web}/api/v1/mailboxes/{self.name}/next"
        asked = {"max_messages": 1, "wait_seconds": wait}
        headers = {"Authorization": f"Bearer {self.broker.management.token}"}
        return requests.post(address, json=asked, headers=headers, timeout=POLL_PATIENCE_SECONDS)

    def hanging(self) -> socket.socket:
        """Send a fetch with the longest wait on its own connection; return that."""
        address, body = urlsplit(self.broker.web), b'{"wait_seconds": %d}' % MAX_WAIT
        key = f"Authorization: Bearer {self.broker.management.token}"
        lines = (key, "Content-Type: application/json", f"Content-Length: {len(body)}")
        connection = socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS)
        connection.sendall(request_head("POST", f"/api/v1/mailboxes/{self.name}/next", *lines) + body)
        return connection


@pytest.fixture
def mailbox(broker: Broker) -> Iterator[RealMailbox]:
    event_type = broker.event_type()
    name = broker.subscribe("", event_type, delivery_mode="PULL").name
    broker.change(f"subscribers/{name}", ack_seconds=LONG)
    client = Mailbox(broker.web, name, broker.management.key("SUBSCRIBER", name))
    yield RealMailbox(broker, name, event_type, client)
    broker.inactivate_all()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        yield pool


@pytest.mark.behaviour("9.2")
def test_messages_are_delivered_when_their_handler_returns(mailbox: RealMailbox) -> None:
    for number in range(25):
        mailbox.publish(number)
    with mailbox.reader(lambda _: None):
        wait_until(lambda: [status for status, _ in mailbox.ended()] == ["DELIVERED"] * 25)
    assert [message.json() for message in mailbox.seen] == [*range(25)]
    assert mailbox.ended() == [("DELIVERED", 1)] * 25


@pytest.mark.behaviour("9.4")
def test_a_message_stays_in_flight_while_its_handler_works(mailbox: RealMailbox) -> None:
    def work(message: Message) -> None:
        enough = message.in_flight_until.timestamp() + TIMES * TIME_OUT
        wait_until(lambda: mailbox.broker.ask(HELD_UNTIL, delivery=message.delivery_id)[0][0] > enough)

    mailbox.broker.change(f"subscribers/{mailbox.name}", ack_seconds=TIME_OUT)
    mailbox.publish()
    with mailbox.reader(work):
        wait_until(lambda: mailbox.ended() == [("DELIVERED", 1)])
    assert len(mailbox.seen) == 1


@pytest.mark.behaviour("9.4")
def test_a_stopped_reader_returns_messages_that_it_has_not_started(mailbox: RealMailbox) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work(_: Message) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_SECONDS)

    mailbox.broker.change(f"subscribers/{mailbox.name}", max_redeliveries=0)
    for _ in range(5):
        mailbox.publish()
    wait_until(lambda: mailbox.client.status()["available"] == 5)
    with mailbox.reader(work) as reader:
        assert begun.wait(PATIENCE_SECONDS)
        reader.stop()
        may_end.set()
    assert len(mailbox.seen) == 1
    status = mailbox.client.status()
    assert (status["available"], status["in_flight"], status["redelivered"]) == (4, 0, 4)


def numbers(answers: list[requests.Response]) -> list[int]:
    """Return the numbers of the messages in these answers."""
    return [int(message["body"]) for answer in answers for message in answer.json()["messages"]]


def is_turned_away(answer: requests.Response) -> bool:
    return answer.status_code == 204 and answer.headers.get("Retry-After") == "1"


def polling(mailbox: RealMailbox, threads: ThreadPoolExecutor, web: str = "") -> "Future[requests.Response]":
    """Let a client wait; return when its poll has begun."""
    since = database_now(mailbox.broker)
    waiting = threads.submit(mailbox.next, MAX_WAIT, web)
    wait_until_polling(mailbox.broker, since)
    return waiting


@pytest.mark.behaviour("9.1")
def test_48_of_200_clients_wait_and_the_others_are_answered(mailbox: RealMailbox, threads: ThreadPoolExecutor) -> None:
    clients = [threads.submit(mailbox.next, MAX_WAIT) for _ in range(CLIENTS)]
    wait_until(lambda: sum(one.done() for one in clients) == CLIENTS - MAX_POLLS)
    assert all(is_turned_away(one.result()) for one in clients if one.done())
    waiting = [one for one in clients if not one.done()]
    for number in range(MAX_POLLS):
        mailbox.publish(number)
    assert sorted(numbers([one.result(POLL_PATIENCE_SECONDS) for one in waiting])) == [*range(MAX_POLLS)]


@pytest.mark.behaviour("9.1")
def test_a_closed_connection_ends_its_poll(mailbox: RealMailbox) -> None:
    with ExitStack() as hanging:
        clients = [hanging.enter_context(closing(mailbox.hanging())) for _ in range(MAX_POLLS + 1)]
        wait_until(lambda: select.select(clients, [], [], 0)[0])  # one has been turned away
        assert is_turned_away(mailbox.next(wait=MAX_WAIT))
    wait_until(lambda: not is_turned_away(mailbox.next(wait=0.01)), MAX_WAIT / 2)


@pytest.mark.behaviour("9.1")
@pytest.mark.parametrize("environment", [{}, {"REDIS_URL": NO_REDIS}], ids=["with Redis", "without Redis"])
def test_a_message_wakes_polls_in_every_web_process(
    mailbox: RealMailbox, threads: ThreadPoolExecutor, environment: dict[str, str]
) -> None:
    with another_web_process(mailbox.broker, **environment) as other:
        for number, (to, of) in enumerate([("", other.address), (other.address, ""), (other.address, other.address)]):
            waiting = polling(mailbox, threads, web=of)
            mailbox.publish(number, web=to)
            assert numbers([waiting.result(POLL_PATIENCE_SECONDS)]) == [number]


@pytest.mark.behaviour("9.1")
def test_a_stopping_web_process_ends_its_polls(mailbox: RealMailbox, threads: ThreadPoolExecutor) -> None:
    with another_web_process(mailbox.broker) as other:
        waiting = polling(mailbox, threads, web=other.address)
        other.process.terminate()
        answer = waiting.result(POLL_PATIENCE_SECONDS)
        assert (answer.status_code, other.process.wait(TIMEOUT_SECONDS)) == (204, 0), "it is killed if that takes long"
