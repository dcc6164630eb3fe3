"""Heads of requests: what cannot be read, says two things or is too large is refused; nothing slips in behind it."""

import contextlib
import json
import socket
from typing import Any

import pytest
import requests

from tests.raw_http import LAST, answer_to, connected, head, until_closed
from tests.real_broker import TIMEOUT, Broker

pytestmark = pytest.mark.faults

PATH = "/api/v1/events"
SMUGGLED = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


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
    assert problem_of(answer_to(broker.web, head("POST", PATH, LAST, line))) == (400, "unreadable_header")


@pytest.mark.parametrize("name", ["Idempotency-Key", "authorization", "Content-Type", "FILTER_STRING", "ce-id"])
def test_what_says_one_thing_is_said_once(broker: Broker, name: str) -> None:
    assert problem_of(answer_to(broker.web, head("POST", PATH, LAST, f"{name}: a", f"{name}: b"))) == (
        400,
        "repeated_header",
    )


JSON = "Content-Type: application/json"


def key_of(broker: Broker) -> str:
    return str(broker.publisher().headers["Authorization"])


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Content_Type: text/plain", JSON), 202),
        (("Content_Encoding: gzip", JSON), 202),
        (("Broker_TTL: wrong", JSON), 202),
        (("Broker_TTL: wrong", "Broker-TTL: 60", JSON), 202),
        (("Broker_TTL: 60", "Broker-TTL: wrong", JSON), 400),
        (("Filter-String: a", "FILTER_STRING: a", JSON), 202),
        (("Filter-String: b", "FILTER_STRING: a", JSON), 400),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_name_with_an_underscore_says_nothing_except_filter_string(
    broker: Broker, lines: tuple[str, ...], status: int, order: int
) -> None:
    common = (LAST, f"Authorization: {key_of(broker)}", "Content-Length: 2")
    request = head("POST", f"{PATH}/{broker.event_type()}", *common, *lines[::order]) + b"{}"
    assert answer_to(broker.web, request).startswith(b"HTTP/1.1 %d " % status)


def test_a_key_with_an_underscore_is_no_idempotency_key(broker: Broker) -> None:
    def message(*lines: str) -> int:
        common = (LAST, f"Authorization: {key}", JSON, "Content-Length: 2")
        answer = answer_to(broker.web, head("POST", path, *common, *lines) + b"{}")
        return int(json.loads(answer.partition(b"\r\n\r\n")[2])["id"])

    key, path = key_of(broker), f"{PATH}/{broker.event_type()}"
    first = message("Idempotency_Key: a", "Idempotency-Key: b")
    assert message("Idempotency-Key: b") == first
    assert message("Idempotency-Key: a") != first


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n",
        head("GET", "http://elsewhere.example/livez", LAST),
        head("CONNECT", "elsewhere.example:443", LAST),
    ],
)
def test_there_is_one_host(broker: Broker, request_: bytes) -> None:
    assert problem_of(answer_to(broker.web, request_)) == (400, "ambiguous_host")


def test_two_hosts_are_refused(broker: Broker) -> None:
    assert problem_of(answer_to(broker.web, head("GET", "/livez", LAST, "Host: 127.0.0.1"))) == (400, "repeated_header")


def test_old_clients_send_no_host(broker: Broker) -> None:
    assert answer_to(broker.web, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")


def test_no_other_transfer_encoding_is_taken_for_the_body_itself(broker: Broker) -> None:
    request = head("POST", PATH, LAST, "Transfer-Encoding: gzip, chunked") + b"3\r\nabc\r\n0\r\n\r\n"
    assert problem_of(answer_to(broker.web, request)) == (501, "unknown_transfer_encoding")


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
    answer = answer_to(broker.web, head("POST", PATH, *lines) + b"abc" + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("order", [1, -1])
def test_a_length_beside_chunks_does_not_count_and_nothing_is_read_behind_them(broker: Broker, order: int) -> None:
    lines = ("Content-Length: 3", "Transfer-Encoding: chunked")[::order]
    answer = answer_to(broker.web, head("POST", PATH, *lines) + b"0\r\n\r\n" + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-3\r\nabc\r\n", b"fffffffffffffffff\r\nabc\r\n", b"3\nabc\n0\n\n"])
def test_broken_chunks_end_the_connection(broker: Broker, chunk: bytes) -> None:
    answer = answer_to(broker.web, head("POST", PATH, "Transfer-Encoding: chunked") + chunk + SMUGGLED)
    assert problem_of(answer) == (400, "incomplete_body")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_chunks_with_trailers_are_taken_for_broken_ones(broker: Broker) -> None:
    chunks = b"2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n"
    answer = answer_to(broker.web, head("POST", PATH, LAST, "Transfer-Encoding: chunked") + chunks)
    assert problem_of(answer) == (400, "incomplete_body")


def begun_at_least(connection: socket.socket) -> bytes:
    """Return how the answer begins; nothing if it is lost with the connection, which is reset."""
    with contextlib.suppress(ConnectionError):
        return until_closed(connection)[:13]
    return b""


def test_a_head_has_at_most_64_kibibytes(broker: Broker) -> None:
    def asked(size: int) -> bytes:
        return answer_to(broker.web, head("GET", PATH, LAST, f"X-Long: {'x' * size}"))

    assert asked(65_000).startswith(b"HTTP/1.1 401 ")
    assert problem_of(asked(65_600)) == (431, "head_too_large")
    with connected(broker.web) as connection:
        with contextlib.suppress(ConnectionError):  # closed while this still sends
            connection.sendall(head("GET", PATH, LAST, f"X-Long: {'x' * 2_000_000}"))
        assert begun_at_least(connection) in (b"HTTP/1.1 431 ", b"")


def test_a_head_has_at_most_a_hundred_headers(broker: Broker) -> None:
    def asked(number: int) -> bytes:
        return answer_to(broker.web, head("GET", "/livez", LAST, *(f"X-{n}: x" for n in range(number - 2))))

    assert asked(100).startswith(b"HTTP/1.1 200 ")
    assert asked(101).startswith(b"HTTP/1.1 431 ")


def test_an_address_has_at_most_8_kibibytes(broker: Broker) -> None:
    def asked(size: int) -> requests.Response:
        return requests.get(f"{broker.web}/livez?{'x' * (size - len('/livez'))}", timeout=TIMEOUT)

    assert asked(8 * 1024).status_code == 200
    refused = asked(8 * 1024 + 1)
    assert (refused.status_code, refused.json()["code"]) == (414, "address_too_long")
    assert asked(70_000).status_code == 414


@pytest.mark.parametrize(
    "request_", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/3.0\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"]
)
def test_what_is_no_request_of_ours_is_not_answered_as_one(broker: Broker, request_: bytes) -> None:
    assert not answer_to(broker.web, request_ + SMUGGLED).startswith(b"HTTP/1.1 200")
