"""What only the real web server decides: header names with underscores, bodies in chunks, bodies that are too large."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
import requests

from tests.real_broker import TIMEOUT, Broker, Subscribed
from tests.receiver import Receiver, wait_until

pytestmark = pytest.mark.faults

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
JSON = {"Content-Type": "application/json"}
PROBLEM = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Regions:
    """An event type with three subscribers: two that want one region each, one that wants all."""

    broker: Broker
    receiver: Receiver
    publisher: requests.Session
    event_type: str
    subscribers: tuple[Subscribed, ...]

    def publish(
        self,
        body: bytes | Iterator[bytes] = b"{}",
        *,
        headers: Mapping[str, str] | None = None,
        path: str | None = None,
    ) -> requests.Response:
        """Publish to the event type, or elsewhere below the address of all events."""
        below = f"/{self.event_type}" if path is None else path
        address = f"{self.broker.web}/api/v1/events{below}"
        return self.publisher.post(address, body, headers=JSON | dict(headers or {}), timeout=TIMEOUT)

    def reached(self) -> dict[str, int]:
        """Return how many requests each endpoint got, once all are through."""
        wait_until(lambda: self.broker.has_finished(self.subscribers))
        return {path: len(self.receiver.of(f"/{path}")) for path in ("eu", "EU", "all")}


@pytest.fixture
def regions(broker: Broker, receiver: Receiver) -> Iterator[Regions]:
    event_type = broker.event_type()
    filters = {"eu": "eu", "EU": "EU", "all": ""}
    subscribers = [
        broker.subscribe(receiver.url(f"/{path}"), event_type, header_filter_string=wanted)
        for path, wanted in filters.items()
    ]
    yield Regions(broker, receiver, broker.publisher(), event_type, tuple(subscribers))
    broker.inactivate_all()


@pytest.mark.behaviour("2.3")
@pytest.mark.behaviour("2.2")
@pytest.mark.parametrize("headers", [{"FILTER_STRING": "eu"}, {"Filter-String": "eu"}, {"filter_string": "eu"}])
def test_the_filter_string_arrives_under_each_of_its_names(regions: Regions, headers: dict[str, str]) -> None:
    answer = regions.publish(headers=headers)
    assert (answer.status_code, answer.json()["deliveries"]) == (202, 2)
    assert regions.reached() == {"eu": 1, "EU": 0, "all": 1}


@pytest.mark.behaviour("2.2")
def test_the_filter_string_is_compared_in_its_case_and_whole(regions: Regions) -> None:
    for filter_string in ("EU", "Eu", "eu2", "e u"):
        assert regions.publish(headers={"FILTER_STRING": filter_string}).status_code == 202
    assert regions.publish().status_code == 202
    assert regions.reached() == {"eu": 0, "EU": 1, "all": 5}


@pytest.mark.behaviour("2.3")
def test_both_names_may_be_sent_with_the_same_value_only(regions: Regions) -> None:
    both = {"FILTER_STRING": "eu", "Filter-String": "eu"}
    assert regions.publish(headers=both).status_code == 202
    refused = regions.publish(headers=both | {"Filter-String": "EU"})
    assert (refused.status_code, refused.headers["Content-Type"]) == (400, PROBLEM)
    assert refused.json()["code"] == "invalid_metadata"
    assert regions.reached() == {"eu": 1, "EU": 0, "all": 1}


@pytest.mark.behaviour("2.5")
def test_a_body_in_chunks_is_taken_whole(regions: Regions) -> None:
    chunks = [b'{"a": ', b"1" * 70 * KIBIBYTE, b"}"]
    assert regions.publish(iter(chunks)).status_code == 202
    assert regions.reached()["all"] == 1
    assert regions.receiver.bodies("/all") == [b"".join(chunks)]


@pytest.mark.behaviour("2.1")
@pytest.mark.parametrize(
    ("framing", "part"),
    [
        ("Content-Length: 6", b"123"),
        ("Transfer-Encoding: chunked", b"3\r\n123\r\n"),
        ("Transfer-Encoding: chunked", b"6\r\n123"),
    ],
)
def test_a_body_that_breaks_off_is_not_published(regions: Regions, framing: str, part: bytes) -> None:
    address = urlsplit(regions.broker.web)
    head = (
        f"POST /api/v1/events/{regions.event_type} HTTP/1.1",
        f"Host: {address.netloc}",
        f"Authorization: {regions.publisher.headers['Authorization']!s}",
        *(f"{name}: {value}" for name, value in JSON.items()),
        framing,
        "\r\n",
    )
    with (
        socket.create_connection((address.hostname, address.port), TIMEOUT) as closed,
        socket.create_connection((address.hostname, address.port), TIMEOUT) as still_listening,
    ):
        for connection in (closed, still_listening):
            connection.sendall("\r\n".join(head).encode() + part)
        closed.close()
        still_listening.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: still_listening.recv(KIBIBYTE), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"incomplete_body"' in answer
    assert regions.publish(b"123456").status_code == 202
    assert regions.reached()["all"] == 1
    assert regions.receiver.bodies("/all") == [b"123456"]


@pytest.mark.parametrize(
    ("path", "size"),
    [(None, MEBIBYTE + 1), (None, 6 * MEBIBYTE), ("", 5 * MEBIBYTE + 1), ("", 16 * MEBIBYTE)],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_too_large_a_body_is_refused_as_json(regions: Regions, path: str | None, size: int, *, chunked: bool) -> None:
    body = b'"' + b"x" * (size - 2) + b'"'
    refused = regions.publish(iter([body]) if chunked else body, path=path)
    assert (refused.status_code, refused.headers["Content-Type"]) == (413, PROBLEM)
    assert refused.json()["code"] == "body_too_large"
    assert regions.publish().status_code == 202
    assert regions.reached()["all"] == 1
