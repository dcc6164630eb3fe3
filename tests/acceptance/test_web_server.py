"""The real web server: request heads, header names, chunked and oversized bodies."""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from tests.support.raw_http import CONNECTION_CLOSE, open_connection, raw_answer, read_until_closed, request_head
from tests.support.real_broker import TIMEOUT_SECONDS, Broker, Subscribed

pytestmark = pytest.mark.faults

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
JSON = {"Content-Type": "application/json"}
PROBLEM = "application/problem+json"

PATH = "/api/v1/events"
SMUGGLED = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


JSON_HEADER = "Content-Type: application/json"


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
        return self.publisher.post(address, body, headers=JSON | dict(headers or {}), timeout=TIMEOUT_SECONDS)

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
        socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS) as closed,
        socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS) as still_listening,
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


def problem_of(answer: bytes) -> tuple[int, str]:
    """Return status and code of an answer that is a problem document."""
    top, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/problem+json" in top
    document: dict[str, Any] = json.loads(body)
    assert document["status"] == int(top.split()[1])
    assert document["detail"]
    return document["status"], document["code"]


@pytest.mark.parametrize(
    "line", ["Idempotency-Key: \xe4", "X-Anything: \x80", "Authorization: Bearer \xff", "FILTER_STRING: \u00b5"]
)
def test_a_value_that_cannot_be_read_is_not_left_out(broker: Broker, line: str) -> None:
    assert problem_of(raw_answer(broker.web, request_head("POST", PATH, CONNECTION_CLOSE, line))) == (
        400,
        "unreadable_header",
    )


@pytest.mark.parametrize("name", ["Idempotency-Key", "authorization", "Content-Type", "FILTER_STRING", "ce-id"])
def test_what_says_one_thing_is_said_once(broker: Broker, name: str) -> None:
    assert problem_of(
        raw_answer(broker.web, request_head("POST", PATH, CONNECTION_CLOSE, f"{name}: a", f"{name}: b"))
    ) == (
        400,
        "repeated_header",
    )


def key_of(broker: Broker) -> str:
    return str(broker.publisher().headers["Authorization"])


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Content_Type: text/plain", JSON_HEADER), 202),
        (("Content_Encoding: gzip", JSON_HEADER), 202),
        (("Broker_TTL: wrong", JSON_HEADER), 202),
        (("Broker_TTL: wrong", "Broker-TTL: 60", JSON_HEADER), 202),
        (("Broker_TTL: 60", "Broker-TTL: wrong", JSON_HEADER), 400),
        (("Filter-String: a", "FILTER_STRING: a", JSON_HEADER), 202),
        (("Filter-String: b", "FILTER_STRING: a", JSON_HEADER), 400),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_name_with_an_underscore_says_nothing_except_filter_string(
    broker: Broker, lines: tuple[str, ...], status: int, order: int
) -> None:
    common = (CONNECTION_CLOSE, f"Authorization: {key_of(broker)}", "Content-Length: 2")
    request = request_head("POST", f"{PATH}/{broker.event_type()}", *common, *lines[::order]) + b"{}"
    assert raw_answer(broker.web, request).startswith(b"HTTP/1.1 %d " % status)


def test_a_key_with_an_underscore_is_no_idempotency_key(broker: Broker) -> None:
    def message(*lines: str) -> int:
        common = (CONNECTION_CLOSE, f"Authorization: {key}", JSON_HEADER, "Content-Length: 2")
        answer = raw_answer(broker.web, request_head("POST", path, *common, *lines) + b"{}")
        return int(json.loads(answer.partition(b"\r\n\r\n")[2])["id"])

    key, path = key_of(broker), f"{PATH}/{broker.event_type()}"
    first = message("Idempotency_Key: a", "Idempotency-Key: b")
    assert message("Idempotency-Key: b") == first
    assert message("Idempotency-Key: a") != first


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n",
        request_head("GET", "http://elsewhere.example/livez", CONNECTION_CLOSE),
        request_head("CONNECT", "elsewhere.example:443", CONNECTION_CLOSE),
    ],
)
def test_there_is_one_host(broker: Broker, request_: bytes) -> None:
    assert problem_of(raw_answer(broker.web, request_)) == (400, "ambiguous_host")


def test_two_hosts_are_refused(broker: Broker) -> None:
    assert problem_of(raw_answer(broker.web, request_head("GET", "/livez", CONNECTION_CLOSE, "Host: 127.0.0.1"))) == (
        400,
        "repeated_header",
    )


def test_old_clients_send_no_host(broker: Broker) -> None:
    assert raw_answer(broker.web, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")


def test_no_other_transfer_encoding_is_taken_for_the_body_itself(broker: Broker) -> None:
    request = (
        request_head("POST", PATH, CONNECTION_CLOSE, "Transfer-Encoding: gzip, chunked") + b"3\r\nabc\r\n0\r\n\r\n"
    )
    assert problem_of(raw_answer(broker.web, request)) == (501, "unknown_transfer_encoding")


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 3", "Content-Length: 4"),
        ("Content-Length: 3, 3",),
        ("Content-Length: +3",),
        ("Content-Length: -3",),
        ("Content-Length: 0x3",),
        ("Content-Length: 99999999999999999999999",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding: \x0bchunked",),
        ("X-Folded: a", " b"),
        ("X-Anything: a\rb",),
        ("X-Anything: a\0b",),
        (": a",),
        ("no colon",),
    ],
)
def test_what_frames_a_request_two_ways_ends_the_connection(broker: Broker, lines: tuple[str, ...]) -> None:
    answer = raw_answer(broker.web, request_head("POST", PATH, *lines) + b"abc" + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("order", [1, -1])
def test_a_length_beside_chunks_does_not_count_and_nothing_is_read_behind_them(broker: Broker, order: int) -> None:
    lines = ("Content-Length: 3", "Transfer-Encoding: chunked")[::order]
    answer = raw_answer(broker.web, request_head("POST", PATH, *lines) + b"0\r\n\r\n" + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-3\r\nabc\r\n", b"fffffffffffffffff\r\nabc\r\n", b"3\nabc\n0\n\n"])
def test_broken_chunks_end_the_connection(broker: Broker, chunk: bytes) -> None:
    answer = raw_answer(broker.web, request_head("POST", PATH, "Transfer-Encoding: chunked") + chunk + SMUGGLED)
    assert problem_of(answer) == (400, "incomplete_body")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_chunks_with_trailers_are_taken_for_broken_ones(broker: Broker) -> None:
    chunks = b"2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n"
    answer = raw_answer(broker.web, request_head("POST", PATH, CONNECTION_CLOSE, "Transfer-Encoding: chunked") + chunks)
    assert problem_of(answer) == (400, "incomplete_body")


def begun_at_least(connection: socket.socket) -> bytes:
    """Return how the answer begins; nothing if it is lost with the connection, which is reset."""
    with contextlib.suppress(ConnectionError):
        return read_until_closed(connection)[:13]
    return b""


def test_a_head_has_at_most_64_kibibytes(broker: Broker) -> None:
    def asked(size: int) -> bytes:
        return raw_answer(broker.web, request_head("GET", PATH, CONNECTION_CLOSE, f"X-Long: {'x' * size}"))

    assert asked(65_000).startswith(b"HTTP/1.1 401 ")
    assert problem_of(asked(65_600)) == (431, "head_too_large")
    with open_connection(broker.web) as connection:
        with contextlib.suppress(ConnectionError):  # closed while this still sends
            connection.sendall(request_head("GET", PATH, CONNECTION_CLOSE, f"X-Long: {'x' * 2_000_000}"))
        assert begun_at_least(connection) in (b"HTTP/1.1 431 ", b"")


def test_a_head_has_at_most_a_hundred_headers(broker: Broker) -> None:
    def asked(number: int) -> bytes:
        return raw_answer(
            broker.web, request_head("GET", "/livez", CONNECTION_CLOSE, *(f"X-{n}: x" for n in range(number - 2)))
        )

    assert asked(100).startswith(b"HTTP/1.1 200 ")
    assert asked(101).startswith(b"HTTP/1.1 431 ")


def test_an_address_has_at_most_8_kibibytes(broker: Broker) -> None:
    def asked(size: int) -> requests.Response:
        return requests.get(f"{broker.web}/livez?{'x' * (size - len('/livez'))}", timeout=TIMEOUT_SECONDS)

    assert asked(8 * 1024).status_code == 200
    refused = asked(8 * 1024 + 1)
    assert (refused.status_code, refused.json()["code"]) == (414, "address_too_long")
    assert asked(70_000).status_code == 414


@pytest.mark.parametrize(
    "request_", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/3.0\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"]
)
def test_what_is_no_request_of_ours_is_not_answered_as_one(broker: Broker, request_: bytes) -> None:
    assert not raw_answer(broker.web, request_ + SMUGGLED).startswith(b"HTTP/1.1 200")
