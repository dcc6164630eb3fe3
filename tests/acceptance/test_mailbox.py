"""Mailboxes over real HTTP: the client's reader and long polls."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from broker_client import Mailbox, MailboxReader, Message
from tests.support.real_broker import Broker
from tests.support.receiver import PATIENCE, wait_until

pytestmark = pytest.mark.faults

TIME_OUT = 3
TIMES = 2
LONG = 600
"""Where nothing is to time out, however busy the machine is."""
ENDED = """
    SELECT d.status, d.fetches FROM delivery_delivery d JOIN subscriptions_subscription s ON s.id = d.subscription_id
      JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
     WHERE u.name = %(name)s ORDER BY d.id
"""
HELD_UNTIL = """
    SELECT extract(epoch FROM d.fetched_until)::float8 FROM delivery_open d
     WHERE d.id = %(delivery)s AND d.fetches = 1
"""


@dataclass(slots=True)
class Read:
    """A mailbox with a reader to come."""

    broker: Broker
    name: str
    event_type: str
    mailbox: Mailbox
    seen: list[Message] = field(default_factory=list)

    def publish(self, count: int) -> None:
        session = self.broker.publisher()
        for number in range(count):
            address = f"{self.broker.web}/api/v1/events/{self.event_type}"
            session.post(address, json={"number": number}, timeout=PATIENCE).raise_for_status()

    def ended(self) -> list[tuple[str, int]]:
        return [(status, fetches) for status, fetches in self.broker.ask(ENDED, name=self.name)]

    @contextlib.contextmanager
    def by(self, work: Callable[[Message], object]) -> Iterator[MailboxReader]:
        """Read until the block ends."""

        def noted(message: Message) -> None:
            self.seen.append(message)
            work(message)

        reader = MailboxReader(self.mailbox, noted, wait=1)
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
def test_everything_is_delivered_after_its_handler_has_returned(read: Read) -> None:
    read.publish(25)
    with read.by(lambda _: None):
        wait_until(lambda: [status for status, _ in read.ended()] == ["DELIVERED"] * 25)
    assert [message.json()["number"] for message in read.seen] == [*range(25)]
    assert read.ended() == [("DELIVERED", 1)] * 25


@pytest.mark.behaviour("9.4")
def test_a_message_is_held_for_as_long_as_its_handler_works(read: Read) -> None:
    def work(message: Message) -> None:
        enough = message.in_flight_until.timestamp() + TIMES * TIME_OUT
        wait_until(lambda: read.broker.ask(HELD_UNTIL, delivery=message.delivery_id)[0][0] > enough)

    read.broker.change(f"subscribers/{read.name}", ack_seconds=TIME_OUT)
    read.publish(1)
    with read.by(work):
        wait_until(lambda: read.ended() == [("DELIVERED", 1)])
    assert len(read.seen) == 1


@pytest.mark.behaviour("9.4")
def test_a_message_whose_handler_raises_is_handed_out_again(read: Read) -> None:
    def fail_once(message: Message) -> None:
        if not message.redeliveries:
            raise ValueError("the first time")

    read.publish(1)
    with read.by(fail_once):
        wait_until(lambda: read.ended() == [("DELIVERED", 2)])
    assert [message.possible_duplicate for message in read.seen] == [False, True]
    assert len({message.id for message in read.seen}) == 1


@pytest.mark.behaviour("9.4")
def test_what_a_reader_that_stops_has_not_begun_is_available_at_once(read: Read) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work(_: Message) -> None:
        begun.set()
        assert may_end.wait(PATIENCE)

    read.broker.change(f"subscribers/{read.name}", max_redeliveries=0)
    read.publish(5)
    wait_until(lambda: read.mailbox.status()["available"] == 5)
    with read.by(work) as reader:
        assert begun.wait(PATIENCE)
        reader.stop()
        may_end.set()
    assert len(read.seen) == 1
    status = read.mailbox.status()
    assert (status["available"], status["in_flight"], status["redelivered"]) == (4, 0, 4)


@pytest.mark.behaviour("9.7")
def test_a_purge_ends_what_is_there_and_leaves_to_its_client_what_is_in_flight(read: Read) -> None:
    read.publish(3)
    (message,) = read.mailbox.next(most=1).messages
    assert read.mailbox.purge() == {"cancelled": 2, "in_flight": 1, "complete": True}
    assert [result.code for result in read.mailbox.ack([message.receipt])] == ["acknowledged"]
    assert [status for status, _ in read.ended()] == ["DELIVERED", "CANCELLED", "CANCELLED"]
