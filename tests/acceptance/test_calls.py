"""SYNC calls and volatile messages over the real web server."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from broker_project.stack.application import answers
from broker_project.stack.load.receiver import Receiver, answer, raw
from broker_project.stack.load.wait import wait_until
from tests.support.faults.breakage import restarted, send
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

pytestmark = pytest.mark.faults

MEBIBYTE = 1024 * 1024
MAX_WAITING = 64
MAX_WAITING_PER_OWNER = 16
PATH = "/sync"

COUNTS = """
    SELECT sum(accepted)::int, sum(delivered + lost)::int FROM delivery_volatilecount count
      JOIN subscriptions_eventtype event_type ON event_type.id = count.event_type_id
     WHERE event_type.name = %(event_type)s AND subscription_id IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Asking:
    """A SYNC event type with one endpoint."""

    broker: Broker
    event_type: str

    def ask(self, *, seconds: float = TIMEOUT_SECONDS) -> requests.Response:
        return self.broker.publish(self.event_type, seconds=seconds)

    def recorded(self, event_type: str = "") -> list[dict[str, Any]]:
        """Return the deliveries of all calls, or those of another event type, the newest first."""
        found = self.broker.get("messages", event_type=event_type or self.event_type)["items"]
        return [self.broker.get(f"messages/{one['id']}")["deliveries"][0] for one in found]


@pytest.fixture
def asking(broker: Broker, receiver: Receiver) -> Iterator[Asking]:
    event_type = broker.event_type("Test.Question", "SYNC")
    broker.subscribe(receiver.url(PATH), event_type)
    yield Asking(broker, event_type)
    broker.inactivate_all()


@pytest.mark.behaviour("7.1")
@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (200, b"x" * MEBIBYTE, "application/octet-stream"),
        (201, bytes(range(256)), "image/png"),
        (204, b"", None),
        (304, b"", None),
        (307, b"there", "text/plain"),
        (404, '{"n": "ä"}'.encode(), "application/problem+json"),
        (503, b"", None),
    ],
)
def test_the_caller_gets_the_answer_of_the_endpoint(
    asking: Asking, receiver: Receiver, status: int, body: bytes, content_type: str | None
) -> None:
    headers: dict[str, Any] = {"Content_Type": content_type} if content_type else {}
    receiver.on(PATH, answer(status, body, **headers))

    answered = asking.ask()

    assert (answered.status_code, answered.content) == (status, body)
    assert answered.headers.get("Content-Type") == content_type
    assert answered.headers["Broker-Outcome"] == "answered"
    assert asking.broker.get(f"messages/{answered.headers['Broker-Message-Id']}")["outcome"] == "ROUTED"


@pytest.mark.behaviour("7.2")
def test_unreadable_response_headers_are_dropped(asking: Asking, receiver: Receiver) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/\xff\r\nRetry-After: \x01\r\nContent-Length: 2\r\n\r\nok"
    receiver.on(PATH, raw(head, keep=True))

    answered = asking.ask()

    assert (answered.status_code, answered.content) == (200, b"ok")
    assert {"Content-Type", "Retry-After"}.isdisjoint(answered.headers)


@pytest.mark.behaviour("7.2", "10.3")
def test_an_abandoned_call_is_recorded(asking: Asking, receiver: Receiver) -> None:
    gate = receiver.gate(PATH, answer(200, b"too late"))
    with pytest.raises(requests.ReadTimeout):
        asking.ask(seconds=0.5)
    wait_until(lambda: len(receiver.of(PATH)) == 1)
    gate.open()
    wait_until(lambda: asking.broker.get("messages", event_type=asking.event_type)["items"])
    (delivery,) = asking.recorded()
    assert (delivery["status"], delivery["attempts"]) == ("DELIVERED", 1)


@pytest.mark.behaviour("7.2")
def test_publishing_continues_at_the_limit_of_waiting_calls(asking: Asking, receiver: Receiver) -> None:
    broker, topic = asking.broker, asking.broker.event_type()
    questions = [broker.event_type(f"Test.Question{n}", "SYNC") for n in range(MAX_WAITING // MAX_WAITING_PER_OWNER)]
    broker.subscribe(receiver.url(PATH), *questions)
    gate = receiver.gate(PATH, answer(200, b"at last"))
    receiver.on(PATH, gate)
    with ThreadPoolExecutor(MAX_WAITING) as threads:
        calls = [threads.submit(broker.publish, one) for one in questions * MAX_WAITING_PER_OWNER]
        wait_until(lambda: len(receiver.of(PATH)) == MAX_WAITING)
        published = {broker.publish(topic).status_code for _ in range(40)}
        refused = asking.ask()
        gate.open()
        answered = {(call.result().status_code, call.result().content) for call in calls}
    assert published == {202}
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json()["code"] == "too_many_calls"
    assert answered == {(200, b"at last")}
    recorded = [(one["status"], one["attempts"]) for question in questions for one in asking.recorded(question)]
    assert recorded == [("DELIVERED", 1)] * MAX_WAITING


@pytest.mark.behaviour("7.2")
def test_the_web_server_finishes_calls_before_it_stops(asking: Asking, receiver: Receiver) -> None:
    gate = receiver.gate(PATH, answer(200, b"done"))
    came: list[requests.Response] = []
    caller = threading.Thread(target=lambda: came.append(asking.ask()))
    caller.start()
    wait_until(lambda: len(receiver.of(PATH)) == 1)
    web = asking.broker.stack.supervisor["web"]
    with restarted(web):
        send(signal.SIGTERM, web)
        wait_until(lambda: not answers(f"{asking.broker.stack.web}/livez"))
        gate.open()
        caller.join()
    assert [(one.status_code, one.content) for one in came] == [(200, b"done")]
    assert [one["status"] for one in asking.recorded()] == ["DELIVERED"]
    assert asking.ask().status_code == 200


@pytest.mark.behaviour("2.9")
def test_counters_are_stored_when_processes_stop(broker: Broker, receiver: Receiver) -> None:
    event_type = broker.event_type()
    broker.subscribe(receiver.url("/hook"), event_type)
    answer = broker.publish(event_type, b"7", {"Broker-Durability": "volatile"})
    assert (answer.status_code, answer.json()["deliveries"]) == (202, 1)
    wait_until(lambda: receiver.bodies("/hook") == [b"7"])

    processes = [broker.stack.supervisor["web"], *broker.workers()]
    for process in processes:
        process.stop()
    counted = broker.ask(COUNTS, event_type=event_type)
    for process in processes:
        process.start()
        process.wait_until_ready()
    assert counted == [(1, 1)]
    broker.inactivate_all()
