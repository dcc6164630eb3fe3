"""The real web server: request heads, header names, chunked and oversized bodies."""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from tests.support.raw_http import CONNECTION_CLOSE, open_connection, raw_answer, read_until_closed, request_head
from tests.support.real_broker import TIMEOUT_SECONDS, Broker, Subscribed

pytestmark = pytest.mark.faults

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
PROBLEM = "application/problem+json"

PATH = "/api/v1/events"
SMUGGLED = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


JSON_HEADER = "Content-Type: application/json"


@dataclass(frozen=True, slots=True)
class Regions:
    """An event type with two subscribers: one for a region, one for all."""

    broker: Broker
    receiver: Receiver
    event_type: str
    subscribers: tuple[Subscribed, ...]

    def publish(
        self, body: bytes | Iterator[bytes] = b"{}", headers: Mapping[str, str] | None = None, path: str | None = None
    ) -> requests.Response:
        """Publish to the event type, or to another path below `/events`."""
        return self.broker.publish(self.event_type if path is None else path, body, headers)

    def reached(self) -> dict[str, int]:
        """Return how many requests each endpoint got, after all deliveries have finished."""
        wait_until(lambda: self.broker.has_finished(self.subscribers))
        return {path: len(self.receiver.of(f"/{path}")) for path in ("eu", "all")}


@pytest.fixture
def regions(broker: Broker, receiver: Receiver) -> Iterator[Regions]:
    event_type = broker.event_type()
    filters = {"eu": "eu", "all": ""}
    subscribers = [
        broker.subscribe(receiver.url(f"/{path}"), event_type, header_filter_string=wanted)
        for path, wanted in filters.items()
    ]
    yield Regions(broker, receiver, event_type, tuple(subscribers))
    broker.inactivate_all()


@pytest.mark.behaviour("2.2", "2.3")
@pytest.mark.parametrize("headers", [{"FILTER_STRING": "eu"}, {"Filter-String": "eu"}, {"filter_string": "eu"}])
def test_the_filter_string_has_three_names(regions: Regions, headers: dict[str, str]) -> None:
    answer = regions.publish(headers=headers)
    assert (answer.status_code, answer.json()["deliveries"]) == (202, 2)
    assert regions.reached() == {"eu": 1, "all": 1}


@pytest.mark.behaviour("2.5")
def test_a_chunked_body_arrives_whole(regions: Regions) -> None:
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
def test_an_incomplete_body_is_not_published(regions: Regions, framing: str, part: bytes) -> None:
    web = regions.broker.web
    sent = request_head("POST", f"{PATH}/{regions.event_type}", key_of(regions.broker), JSON_HEADER, framing) + part
    with open_connection(web) as closed, open_connection(web) as still_listening:
        for connection in (closed, still_listening):
            connection.sendall(sent)
        closed.close()
        still_listening.shutdown(socket.SHUT_WR)
        answer = read_until_closed(still_listening)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"incomplete_body"' in answer
    assert regions.publish(b"123456").status_code == 202
    assert regions.reached()["all"] == 1
    assert regions.receiver.bodies("/all") == [b"123456"]


@pytest.mark.parametrize(
    ("path", "size"), [(None, MEBIBYTE + 1), (None, 6 * MEBIBYTE), ("", 5 * MEBIBYTE + 1), ("", 16 * MEBIBYTE)]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_an_oversized_body_is_refused(regions: Regions, path: str | None, size: int, *, chunked: bool) -> None:
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


def open_head(*lines: str, method: str = "POST", path: str = PATH) -> bytes:
    return request_head(method, path, *lines)


def head(*lines: str, method: str = "POST", path: str = PATH) -> bytes:
    return request_head(method, path, CONNECTION_CLOSE, *lines)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        *(
            (open_head(line), (400, "unreadable_header"))
            for line in (
                "Idempotency-Key: \xe4",
                "X-Anything: \x80",
                "Authorization: Bearer \xff",
                "FILTER_STRING: \u00b5",
                "Content-Type: application/json; charset*=utf-8''%00",
                "Content-Type: application/json; x*=foo''a",
                "Content-Type: application/json; charset=rot13",
                "Content-Type: application/json; charset=punycode",
                'Content-Type: application/json; a="' + ";" * 50_000,  # quadratic to read
            )
        ),
        (open_head("Content-Type: a/b; charset=utf-8", path="/livez?" + "a&" * 1000), (400, "invalid_query")),
        *(
            (open_head(f"{name}: a", f"{name}: b"), (400, "repeated_header"))
            for name in ("Idempotency-Key", "authorization", "Content-Type", "FILTER_STRING", "ce-id")
        ),
        (b"GET /livez HTTP/1.1\r\n\r\n", (400, "ambiguous_host")),
        (open_head(method="GET", path="http://elsewhere.example/livez"), (400, "ambiguous_host")),
        (open_head(method="CONNECT", path="elsewhere.example:443"), (400, "ambiguous_host")),
        (open_head("Host: 127.0.0.1", method="GET", path="/livez"), (400, "repeated_header")),
        *((open_head(method=method), (501, "unknown_method")) for method in ("post", "Post")),
        (open_head("Transfer-Encoding: gzip, chunked") + b"3\r\nabc\r\n0\r\n\r\n", (501, "unknown_transfer_encoding")),
        (open_head("Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n", (400, "incomplete_body")),
    ],
)
def test_refused_requests_end_the_connection(broker: Broker, request_: bytes, problem: tuple[int, str]) -> None:
    answer = raw_answer(broker.web, request_ + SMUGGLED)
    assert problem_of(answer) == problem
    assert answer.count(b"HTTP/1.1 ") == 1


def key_of(broker: Broker) -> str:
    return f"Authorization: Bearer {broker.management.token}"


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
def test_filter_string_alone_has_underscores(broker: Broker, lines: tuple[str, ...], status: int, order: int) -> None:
    request = head(key_of(broker), "Content-Length: 2", *lines[::order], path=f"{PATH}/{broker.event_type()}") + b"{}"
    assert raw_answer(broker.web, request).startswith(b"HTTP/1.1 %d " % status)


def test_http_1_0_needs_no_host(broker: Broker) -> None:
    assert raw_answer(broker.web, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")


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
        ("Transfer-Encoding: gzip", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Content-Length: x", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding: \x0bchunked",),
        ("X-Folded: a", " b"),
        ("X-Anything: a\rb",),
        ("X-Anything: a\0b",),
        (": a",),
        ("no colon",),
    ],
)
def test_ambiguous_framing_ends_the_connection(broker: Broker, lines: tuple[str, ...]) -> None:
    answer = raw_answer(broker.web, request_head("POST", PATH, *lines) + b"abc" + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.behaviour("2.5")
@pytest.mark.parametrize("order", [1, -1])
def test_a_content_length_beside_chunks_is_ignored_and_ends_the_connection(regions: Regions, order: int) -> None:
    framing = ("Content-Length: 3", "Transfer-Encoding: chunked")[::order]
    head = request_head("POST", f"{PATH}/{regions.event_type}", key_of(regions.broker), JSON_HEADER, *framing)
    answer = raw_answer(regions.broker.web, head + b"2\r\n{}\r\n0\r\n\r\n" + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert regions.reached()["all"] == 1
    assert regions.receiver.bodies("/all") == [b"{}"]


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-3\r\nabc\r\n", b"fffffffffffffffff\r\nabc\r\n", b"3\nabc\n0\n\n"])
def test_broken_chunks_end_the_connection(broker: Broker, chunk: bytes) -> None:
    answer = raw_answer(broker.web, request_head("POST", PATH, "Transfer-Encoding: chunked") + chunk + SMUGGLED)
    assert problem_of(answer) == (400, "incomplete_body")
    assert answer.count(b"HTTP/1.1 ") == 1


def begun_at_least(connection: socket.socket) -> bytes:
    """Return the start of the answer; nothing if the connection is reset before it arrives."""
    with contextlib.suppress(ConnectionError):
        return read_until_closed(connection)[:13]
    return b""


def test_a_head_has_at_most_64_kibibytes(broker: Broker) -> None:
    def asked(size: int) -> bytes:
        return raw_answer(broker.web, head(f"X-Long: {'x' * size}", method="GET"))

    assert asked(65_000).startswith(b"HTTP/1.1 401 ")
    assert problem_of(asked(65_600)) == (431, "head_too_large")
    with open_connection(broker.web) as connection:
        with contextlib.suppress(ConnectionError):  # closed while this still sends
            connection.sendall(head(f"X-Long: {'x' * 2_000_000}", method="GET"))
        assert begun_at_least(connection) in (b"HTTP/1.1 431 ", b"")


def test_a_head_has_at_most_a_hundred_headers(broker: Broker) -> None:
    def asked(number: int) -> bytes:
        lines = (f"X-{n}: x" for n in range(number - 2))
        return raw_answer(broker.web, head(*lines, method="GET", path="/livez"))

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
def test_other_protocols_are_refused(broker: Broker, request_: bytes) -> None:
    assert not raw_answer(broker.web, request_ + SMUGGLED).startswith(b"HTTP/1.1 200")
