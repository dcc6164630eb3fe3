"""Callbacks over the real web server: an address that works as it was given, and a token that is written nowhere."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import requests

from tests.real_broker import TIMEOUT, Broker
from tests.receiver import Receiver, wait_until

pytestmark = pytest.mark.faults

WORK, DONE = "/work", "/done"
AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Work:
    """A QUEUE event type with one endpoint, and somebody who publishes to it."""

    broker: Broker
    publisher: requests.Session
    event_type: str
    receiver: Receiver

    def publish(self) -> int:
        """Publish a job with a CallbackURL; return its message's id."""
        headers = {"CallbackURL": self.receiver.url(DONE), "Content-Type": "application/json"}
        address = f"{self.broker.web}/api/v1/events/{self.event_type}"
        answered = self.publisher.post(address, b"{}", headers=headers, timeout=TIMEOUT)
        answered.raise_for_status()
        return int(answered.json()["id"])

    def address(self) -> str:
        """Wait for the job; return the address that its endpoint was given."""
        wait_until(lambda: self.receiver.of(WORK))
        return self.receiver.of(WORK)[0].headers["callbackurl"]

    def state(self, message_id: int) -> str:
        """Return how the message's callback stands."""
        (shown,) = self.broker.get("callbacks", message=str(message_id))["items"]
        return str(shown["state"])


@pytest.fixture
def work(broker: Broker, receiver: Receiver) -> Iterator[Work]:
    event_type = broker.event_type("Test.Work", "QUEUE")
    broker.subscribe(receiver.url(WORK), event_type)
    with broker.publisher() as publisher:
        yield Work(broker, publisher, event_type, receiver)
    broker.inactivate_all()


def reply(address: str, body: bytes = b"done") -> requests.Response:
    return requests.post(address, body, headers={"Content-Type": "text/plain"}, timeout=TIMEOUT)


@pytest.mark.behaviour("6.8")
@pytest.mark.behaviour("6.10")
def test_of_twenty_posts_at_once_one_is_stored_and_delivered(work: Work) -> None:
    message_id = work.publish()
    address = work.address()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = [*threads.map(reply, [address] * AT_ONCE)]
    assert sorted(one.status_code for one in answers) == [200] * (AT_ONCE - 1) + [201]
    assert len({one.json()["id"] for one in answers}) == 1
    wait_until(lambda: work.state(message_id) == "DELIVERED")
    assert work.receiver.bodies(DONE) == [b"done"]
    assert reply(address, b"other").status_code == 409


@pytest.mark.behaviour("6.10")
def test_no_log_has_a_token_whatever_is_done_with_it(work: Work) -> None:
    message_id = work.publish()
    address = work.address()
    token = address.rpartition("/")[2]
    assert requests.get(address, timeout=TIMEOUT).status_code == 405
    assert reply(f"{address}x").status_code == 404
    assert reply(f"{address}/x").status_code == 404
    assert reply(address, b"x" * 2 * 1024 * 1024).status_code == 413
    assert reply(address).status_code == 201
    assert reply(address, b"other").status_code == 409
    wait_until(lambda: work.state(message_id) == "DELIVERED")
    logs = {path.name: path.read_text(errors="replace") for path in work.broker.stack.logs.iterdir()}
    assert "callbacks/" in "".join(logs.values()), "a refused request is logged"
    assert [name for name, text in logs.items() if token in text] == []
