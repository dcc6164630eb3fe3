"""Mailboxes over real HTTP: the client's reader and long polls."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
import requests

from broker_client import Mailbox, MailboxReader, Message
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.mailbox.long_poll import MAX_POLLS
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
class Read:
    """A mailbox, and what a reader has got from it."""

    broker: Broker
    name: str
    event_type: str
    mailbox: Mailbox
    seen: list[Message] = field(default_factory=list)

    def publish(self, count: int) -> None:
        session = self.broker.publisher()
        for number in range(count):
            address = f"{self.broker.web}/api/v1/events/{self.event_type}"
            session.post(address, json={"number": number}, timeout=PATIENCE_SECONDS).raise_for_status()

    def ended(self) -> list[tuple[str, int]]:
        return [(status, fetches) for status, fetches in self.broker.ask(ENDED, name=self.name)]

    @contextlib.contextmanager
    def by(self, work: Callable[[Message], object]) -> Iterator[MailboxReader]:
        """Read until the block ends."""

        def noted(message: Message) -> None:
            self.seen.append(message)
            work(message)

        reader = MailboxReader(self.mailbox, noted, wait_seconds=1)
        reader.start()
        try:
            yield reader
        finally:
            reader.stop()
            reader.join()


@pytest.fixture
def read(broker: Broker) -> Iterator[Read]:
    event_type = broker.event_type()
    name = broker.subscribe("", event_type, delivery_mode="PULL").name
    broker.change(f"subscribers/{name}", ack_seconds=LONG)
    token = broker.management.create("api-keys", kind="SUBSCRIBER", subscriber=name, label="test")["token"]
    yield Read(broker, name, event_type, Mailbox(broker.web, name, token))
    broker.inactivate_all()


@pytest.mark.behaviour("9.2")
def test_messages_are_delivered_when_their_handler_returns(read: Read) -> None:
    read.publish(25)
    with read.by(lambda _: None):
        wait_until(lambda: [status for status, _ in read.ended()] == ["DELIVERED"] * 25)
    assert [message.json()["number"] for message in read.seen] == [*range(25)]
    assert read.ended() == [("DELIVERED", 1)] * 25


@pytest.mark.behaviour("9.4")
def test_a_message_stays_in_flight_while_its_handler_works(read: Read) -> None:
    def work(message: Message) -> None:
        enough = message.in_flight_until.timestamp() + TIMES * TIME_OUT
        wait_until(lambda: read.broker.ask(HELD_UNTIL, delivery=message.delivery_id)[0][0] > enough)

    read.broker.change(f"subscribers/{read.name}", ack_seconds=TIME_OUT)
    read.publish(1)
    with read.by(work):
        wait_until(lambda: read.ended() == [("DELIVERED", 1)])
    assert len(read.seen) == 1


@pytest.mark.behaviour("9.4")
def test_a_message_whose_handler_raises_is_redelivered(read: Read) -> None:
    def fail_once(message: Message) -> None:
        if not message.redeliveries:
            raise ValueError("the first time")

    read.publish(1)
    with read.by(fail_once):
        wait_until(lambda: read.ended() == [("DELIVERED", 2)])
    assert [message.possible_duplicate for message in read.seen] == [False, True]
    assert len({message.id for message in read.seen}) == 1


@pytest.mark.behaviour("9.4")
def test_a_stopped_reader_returns_messages_that_it_has_not_started(read: Read) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work(_: Message) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_SECONDS)

    read.broker.change(f"subscribers/{read.name}", max_redeliveries=0)
    read.publish(5)
    wait_until(lambda: read.mailbox.status()["available"] == 5)
    with read.by(work) as reader:
        assert begun.wait(PATIENCE_SECONDS)
        reader.stop()
        may_end.set()
    assert len(read.seen) == 1
    status = read.mailbox.status()
    assert (status["available"], status["in_flight"], status["redelivered"]) == (4, 0, 4)


@dataclass(frozen=True, slots=True)
class PolledMailbox:
    """A subscriber's mailbox and a publisher."""

    broker: Broker
    name: str
    event_type: str
    publisher: requests.Session

    def publish(self, number: int = 0, web: str = "") -> None:
        """Publish one message, whose body is its number."""
        address = f"{web or self.broker.web}/api/v1/events/{self.event_type}"
        self.publisher.post(address, json=number, timeout=TIMEOUT_SECONDS).raise_for_status()

    def next(self, wait: float = 0, web: str = "") -> requests.Response:
        """Fetch one message."""
        address = f"{web or self.broker.web}/api/v1/mailboxes/{self.name}/next"
        return requests.post(
            address,
            json={"max_messages": 1, "wait_seconds": wait},
            headers=self._headers,
            timeout=POLL_PATIENCE_SECONDS,
        )

    def hanging(self) -> socket.socket:
        """Send a fetch with the longest wait on its own connection; return that."""
        address, body = urlsplit(self.broker.web), b'{"wait_seconds": %d}' % MAX_WAIT
        head = {
            "Host": address.netloc,
            **self._headers,
            "Content-Type": "application/json",
            "Content-Length": len(body),
        }
        lines = [f"POST /api/v1/mailboxes/{self.name}/next HTTP/1.1", *(f"{name}: {head[name]}" for name in head)]
        connection = socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS)
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return connection

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.broker.management.token}"}


@pytest.fixture
def mailbox(broker: Broker) -> Iterator[PolledMailbox]:
    event_type = broker.event_type("Waited.For")
    name = broker.subscribe("", event_type, delivery_mode="PULL").name
    yield PolledMailbox(broker, name, event_type, broker.publisher())
    broker.inactivate_all()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        yield pool


def numbers(answers: list[requests.Response]) -> list[int]:
    """Return the numbers of the messages in these answers."""
    return [int(message["body"]) for answer in answers for message in answer.json()["messages"]]


def is_turned_away(answer: requests.Response) -> bool:
    return answer.status_code == 204 and answer.headers.get("Retry-After") == "1"


def polling(mailbox: PolledMailbox, threads: ThreadPoolExecutor, web: str = "") -> "Future[requests.Response]":
    """Let a client wait; return when its poll has begun."""
    since = database_now(mailbox.broker)
    waiting = threads.submit(mailbox.next, MAX_WAIT, web)
    wait_until_polling(mailbox.broker, since)
    return waiting


@pytest.mark.behaviour("9.1")
def test_48_of_200_clients_wait_and_the_others_are_answered(
    mailbox: PolledMailbox, threads: ThreadPoolExecutor
) -> None:
    clients = [threads.submit(mailbox.next, MAX_WAIT) for _ in range(CLIENTS)]
    wait_until(lambda: sum(one.done() for one in clients) == CLIENTS - MAX_POLLS)
    assert all(is_turned_away(one.result()) for one in clients if one.done())
    waiting = [one for one in clients if not one.done()]
    for number in range(MAX_POLLS):
        mailbox.publish(number)
    assert sorted(numbers([one.result(POLL_PATIENCE_SECONDS) for one in waiting])) == [*range(MAX_POLLS)]


@pytest.mark.behaviour("9.1")
def test_a_closed_connection_ends_its_poll(mailbox: PolledMailbox) -> None:
    with ExitStack() as hanging:
        clients = [hanging.enter_context(closing(mailbox.hanging())) for _ in range(MAX_POLLS + 1)]
        wait_until(lambda: select.select(clients, [], [], 0)[0])  # one has been turned away
        assert is_turned_away(mailbox.next(wait=MAX_WAIT))
    wait_until(lambda: not is_turned_away(mailbox.next(wait=0.01)), MAX_WAIT / 2)


@pytest.mark.behaviour("9.1")
@pytest.mark.parametrize("environment", [{}, {"REDIS_URL": NO_REDIS}], ids=["with Redis", "without Redis"])
def test_a_message_wakes_polls_in_every_web_process(
    mailbox: PolledMailbox, threads: ThreadPoolExecutor, environment: dict[str, str]
) -> None:
    with another_web_process(mailbox.broker, **environment) as other:
        for number, (to, of) in enumerate([("", other.address), (other.address, ""), (other.address, other.address)]):
            waiting = polling(mailbox, threads, web=of)
            mailbox.publish(number, web=to)
            assert numbers([waiting.result(POLL_PATIENCE_SECONDS)]) == [number]


@pytest.mark.behaviour("9.1")
def test_a_stopping_web_process_ends_its_polls(mailbox: PolledMailbox, threads: ThreadPoolExecutor) -> None:
    with another_web_process(mailbox.broker) as other:
        waiting = polling(mailbox, threads, web=other.address)
        other.process.terminate()
        answer = waiting.result(POLL_PATIENCE_SECONDS)
        assert (answer.status_code, other.process.wait(TIMEOUT_SECONDS)) == (204, 0), (
            "it is killed if it does not end in time"
        )
