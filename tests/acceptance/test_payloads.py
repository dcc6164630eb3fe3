"""Payloads published singly or in batches arrive byte for byte, in order, numbered and signed."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from broker_project.stack.load.exchanges import is_signed
from broker_project.stack.load.receiver import Received, Receiver
from broker_project.stack.load.wait import wait_until
from tests.support.real_broker import Broker, Subscribed

pytestmark = [pytest.mark.faults, pytest.mark.behaviour("2.5")]

BATCH = 40
ENDPOINT = "/everything"
THROUGH_SECONDS = 60.0
JSON_BLANKS = b" \t\r\n"
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Payload:
    """One event to be published."""

    event_type: str
    body: bytes
    content_type: str = "application/json"


JSON_BODIES = {
    "keys that stand twice": b'{"a": 1, "b": {"c": 1, "c": 2}, "a": 2}',
    "a number beyond every float": b"1e400",
    "an integer of 5,000 digits": b'{"n": ' + b"9" * 5_000 + b"}",
    "numbers in many digits": b"[12345678901234567890123, 0.1000000000000000055511151231257827, -0, -0.0, 1E+2, 1.50]",
    "NUL as an escape": b'{"\\u0000": "a\\u0000b"}',
    "lone surrogates as escapes": b'["\\ud800", "\\udc00\\ud800", "\\uD83D\\uDE00"]',
    "odd white space": b'\t\r\n {\r\n\t"a"  :\t[ ]\n, "b":{ }  }\n\n',
    "needless escapes": b'"\\/\\u0041\\u00e9\\b\\f"',
    "characters of every length": '"é€😀\x7f\u2028"'.encode(),
    "a text": b'""',
    "null": b"null",
    "five hundred levels": b"[" * 500 + b"]" * 500,
    "the largest allowed body": b'"' + b"x" * (MEGABYTE - 2) + b'"',
}
OTHER_BODIES = {
    "nothing": b"",
    "every byte": bytes(range(256)),
    "no text": b"\x00\xff\xfe\xc3\x28\x00\r\n\r\n",
    "broken JSON": b'{"a": ',
    "form fields": b"a=1&b=%00&a=2",
    "NUL only": b"\x00" * 1_000,
}


@dataclass(slots=True)
class Way:
    """A subscriber of all event types, and what is published to it."""

    broker: Broker
    receiver: Receiver
    subscriber: Subscribed
    sent: list[Payload] = field(default_factory=list)

    def singly(self, payloads: Sequence[Payload]) -> None:
        """Publish one after the other."""
        for payload in payloads:
            self._post(payload.event_type, payload.body, payload.content_type)
            self.sent.append(payload)

    def in_batches(self, payloads: Sequence[Payload], item_of: Callable[[Payload], bytes]) -> None:
        """Publish many in a call."""
        for start in range(0, len(payloads), BATCH):
            batch = payloads[start : start + BATCH]
            self._post("", b'{"events": [' + b", ".join(map(item_of, batch)) + b"]}", "application/json")
            self.sent += batch

    def received(self) -> list[Received]:
        """Wait until everything has arrived; return the requests."""
        wait_until(lambda: len(self.receiver.of(ENDPOINT)) >= len(self.sent), THROUGH_SECONDS)
        wait_until(lambda: self.broker.has_finished([self.subscriber]))
        return self.receiver.of(ENDPOINT)

    def _post(self, path: str, body: bytes, content_type: str) -> None:
        answer = self.broker.publish(path, body, {"Content-Type": content_type})
        assert answer.status_code == 202, answer.text


def way_of(broker: Broker, receiver: Receiver, *event_types: str) -> Way:
    return Way(broker, receiver, broker.subscribe(receiver.url(ENDPOINT), *event_types))


@pytest.fixture(autouse=True)
def _leave_endpoints_alone(broker: Broker) -> Iterator[None]:
    yield
    broker.inactivate_all()


def with_text(payload: Payload) -> bytes:
    """Return a batch's item with the body as a JSON value, unchanged."""
    return b'{"event": "%s", "body": %s}' % (payload.event_type.encode(), payload.body)


def with_base64(payload: Payload) -> bytes:
    """Return a batch's item with the body's bytes."""
    encoded = base64.b64encode(payload.body).decode()
    item = {"event": payload.event_type, "body_base64": encoded, "content_type": payload.content_type}
    return json.dumps(item).encode()


def arrived(way: Way) -> list[Payload]:
    """Return the payloads in the order of arrival; check their numbers, ids and signatures."""
    came = way.received()
    assert [request.sequence for request in came] == [number + 1 for number in range(len(came))]
    assert len({request.headers["webhook-id"] for request in came}) == len(came)
    for request in came:
        secret = way.subscriber.secrets[request.headers["broker-event-type"]]
        assert is_signed(request.headers, request.body, secret)
    return [payload_of(request) for request in came]


def payload_of(request: Received) -> Payload:
    return Payload(request.headers["broker-event-type"], request.body, request.headers["content-type"])


@pytest.mark.behaviour("2.7", "4.10")
def test_real_payloads_arrive_unchanged(broker: Broker, receiver: Receiver, request: pytest.FixtureRequest) -> None:
    file: Path | None = request.config.getoption("--payloads")
    if file is None:
        pytest.skip("no --payloads FILE with real payloads was given")
    real = [payload_in(line) for line in file.read_bytes().splitlines()]
    names = {name: broker.event_type(name) for name in sorted({payload.event_type for payload in real})}
    payloads = [Payload(names[payload.event_type], payload.body) for payload in real]
    way = way_of(broker, receiver, *names.values())
    way.singly(payloads)
    way.in_batches(payloads, with_text)
    way.in_batches(payloads, with_base64)
    assert arrived(way) == way.sent
    for came in way.received():
        secret = way.subscriber.secrets[came.headers["broker-event-type"]]
        assert Webhook(secret).verify(came.body, dict(came.headers)) == json.loads(came.body)


def payload_in(line: bytes) -> Payload:
    """Return the payload of a line, with its body byte for byte."""
    text = line.decode()
    named = json.loads(text)
    begin = text.index('"body"') + len('"body"')
    begin += len(text[begin:]) - len(text[begin:].lstrip(" :\t"))
    body, end = json.JSONDecoder().raw_decode(text, begin)
    assert body == named["body"]
    return Payload(named["event"], text[begin:end].encode())


def test_unusual_json_arrives_unchanged(broker: Broker, receiver: Receiver) -> None:
    event_type = broker.event_type()
    payloads = [Payload(event_type, body) for body in JSON_BODIES.values()]
    way = way_of(broker, receiver, event_type)
    way.singly(payloads)
    way.in_batches([Payload(event_type, body.strip(JSON_BLANKS)) for body in JSON_BODIES.values()], with_text)
    way.in_batches(payloads, with_base64)
    assert arrived(way) == way.sent


def test_other_bytes_arrive_unchanged(broker: Broker, receiver: Receiver) -> None:
    content_type = "application/octet-stream"
    event_type = broker.event_type(content_type=content_type)
    payloads = [Payload(event_type, body, content_type) for body in OTHER_BODIES.values()]
    way = way_of(broker, receiver, event_type)
    way.singly(payloads)
    way.in_batches(payloads, with_base64)
    assert arrived(way) == way.sent
