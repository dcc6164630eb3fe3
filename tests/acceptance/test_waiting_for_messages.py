"""Clients that wait for a message at a real web server: seats, hang-ups, stops, several processes (contract 9.1)."""

import select
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
import requests

from delivery.mailbox.long_poll import MOST_SEATS
from tests.support.real_broker import TIMEOUT, Broker, another_web, now, wait_until_somebody_waits
from tests.support.receiver import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.behaviour("9.1")]

LONGEST_WAIT = 20
POLL_PATIENCE_SECONDS = LONGEST_WAIT + TIMEOUT
CLIENTS = 200
NOBODY = "redis://127.0.0.1:9/0"


@dataclass(frozen=True, slots=True)
class PolledMailbox:
    """A subscriber's mailbox at a broker, and whoever publishes for it."""

    broker: Broker
    name: str
    event_type: str
    publisher: requests.Session

    def publish(self, number: int = 0, web: str = "") -> None:
        """Publish one message, whose body is its number."""
        address = f"{web or self.broker.web}/api/v1/events/{self.event_type}"
        self.publisher.post(address, json=number, timeout=TIMEOUT).raise_for_status()

    def next(self, wait: float = 0, web: str = "") -> requests.Response:
        """Fetch one message."""
        address = f"{web or self.broker.web}/api/v1/mailboxes/{self.name}/next"
        return requests.post(
            address, json={"max": 1, "wait": wait}, headers=self._headers, timeout=POLL_PATIENCE_SECONDS
        )

    def hanging(self) -> socket.socket:
        """Ask for one message on a connection of its own, to wait for as long as one may."""
        address, body = urlsplit(self.broker.web), b'{"wait": %d}' % LONGEST_WAIT
        head = {
            "Host": address.netloc,
            **self._headers,
            "Content-Type": "application/json",
            "Content-Length": len(body),
        }
        lines = [f"POST /api/v1/mailboxes/{self.name}/next HTTP/1.1", *(f"{name}: {head[name]}" for name in head)]
        connection = socket.create_connection((address.hostname, address.port), TIMEOUT)
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
    """Return what the messages say that these were answered, which is one each."""
    return [int(message["body"]) for answer in answers for message in answer.json()["messages"]]


def is_turned_away(answer: requests.Response) -> bool:
    return answer.status_code == 204 and answer.headers.get("Retry-After") == "1"


def polling(mailbox: PolledMailbox, threads: ThreadPoolExecutor, web: str = "") -> "Future[requests.Response]":
    """Let a client wait; return once it has its seat."""
    since = now(mailbox.broker)
    waiting = threads.submit(mailbox.next, LONGEST_WAIT, web)
    wait_until_somebody_waits(mailbox.broker, since)
    return waiting


def test_of_200_clients_48_wait_and_the_others_are_answered_meanwhile(
    mailbox: PolledMailbox, threads: ThreadPoolExecutor
) -> None:
    clients = [threads.submit(mailbox.next, LONGEST_WAIT) for _ in range(CLIENTS)]
    wait_until(lambda: sum(one.done() for one in clients) == CLIENTS - MOST_SEATS)
    assert all(is_turned_away(one.result()) for one in clients if one.done())
    waiting = [one for one in clients if not one.done()]
    for number in range(MOST_SEATS):
        mailbox.publish(number)
    assert sorted(numbers([one.result(POLL_PATIENCE_SECONDS) for one in waiting])) == [*range(MOST_SEATS)]


def test_clients_that_hang_up_leave_their_seats_at_once(mailbox: PolledMailbox) -> None:
    with ExitStack() as hanging:
        clients = [hanging.enter_context(closing(mailbox.hanging())) for _ in range(MOST_SEATS + 1)]
        wait_until(lambda: select.select(clients, [], [], 0)[0])  # one has been turned away
        assert is_turned_away(mailbox.next(wait=LONGEST_WAIT))
    wait_until(lambda: not is_turned_away(mailbox.next(wait=0.01)), LONGEST_WAIT / 2)


@pytest.mark.parametrize("environment", [{}, {"REDIS_URL": NOBODY}], ids=["with Redis", "without Redis"])
def test_a_message_wakes_who_waits_whichever_process_either_came_to(
    mailbox: PolledMailbox, threads: ThreadPoolExecutor, environment: dict[str, str]
) -> None:
    with another_web(mailbox.broker, **environment) as other:
        for number, (to, of) in enumerate([("", other.address), (other.address, ""), (other.address, other.address)]):
            waiting = polling(mailbox, threads, web=of)
            mailbox.publish(number, web=to)
            assert numbers([waiting.result(POLL_PATIENCE_SECONDS)]) == [number]


def test_a_web_process_that_is_told_to_stop_lets_its_polls_go(
    mailbox: PolledMailbox, threads: ThreadPoolExecutor
) -> None:
    with another_web(mailbox.broker) as other:
        waiting = polling(mailbox, threads, web=other.address)
        other.process.terminate()
        answer = waiting.result(POLL_PATIENCE_SECONDS)
        assert (answer.status_code, other.process.wait(TIMEOUT)) == (204, 0), "it is killed if it does not end in time"
