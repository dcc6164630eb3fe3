"""Slow, large and concurrent bodies, and idle connections."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from broker_project.stack.load.wait import wait_until
from tests.support.brokers import Brokers
from tests.support.raw_http import open_connection, read_until_closed, request_head
from tests.support.real_broker import TIMEOUT_SECONDS, Broker, WebProcess, another_web_process

pytestmark = pytest.mark.faults

MEBIBYTE = 1024 * 1024
QUOTA = 16 * MEBIBYTE
BATCH = 5 * MEBIBYTE
"""The largest allowed body, and here the whole quota of unauthenticated clients."""
SECONDS = 2
MAX_WAITING = 50


@pytest.fixture(scope="module")
def web(brokers: Brokers) -> Iterator[WebProcess]:
    """A web process with a small upload quota and a short time limit."""
    environment = {"BROKER_UPLOADS_MB": str(QUOTA // MEBIBYTE), "BROKER_UPLOAD_SECONDS": str(SECONDS)}
    with another_web_process(brokers.broker(), BROKER_FAILURES_PER_MINUTE="0", **environment) as running:
        yield running


@pytest.fixture
def until_the_end(web: WebProcess) -> Iterator[contextlib.ExitStack]:
    """Hold connections open until the test ends, then wait until their quota is returned."""
    with contextlib.ExitStack() as stack:
        yield stack
    wait_until(lambda: post(web, BATCH).status_code == 401)


def announced(size: int, *lines: str) -> bytes:
    return request_head("POST", "/api/v1/events", "Content-Type: application/json", f"Content-Length: {size}", *lines)


def post(web: WebProcess, size: int, key: str = "") -> requests.Response:
    """Post a batch of this size; the key is checked when the body has arrived."""
    body = b'"' + b"x" * (size - 2) + b'"'
    headers = {"Authorization": key} if key else {}
    return requests.post(f"{web.address}/api/v1/events", body, headers=headers, timeout=TIMEOUT_SECONDS)


def fill_quota(web: WebProcess, waiting: contextlib.ExitStack, key: str = "") -> requests.Response:
    """Leave more and more bodies half sent until another one is refused; return that answer.

    The order in which bodies arrive is unknown, so a half-sent one may be refused instead.
    """
    lines = [f"Authorization: {key}"] if key else []
    for _ in range(MAX_WAITING):
        connection = waiting.enter_context(open_connection(web.address))
        connection.sendall(announced(BATCH, *lines) + b" " * MEBIBYTE)
        answer = post(web, MEBIBYTE, key)
        if answer.status_code == 503:
            return answer
    raise AssertionError("the quota is never exhausted")


def known_key(web: WebProcess, broker: Broker) -> str:
    """Return the `Authorization` of a key that this process has accepted before."""
    key = str(broker.publisher().headers["Authorization"])
    assert post(web, 10, key).status_code != 401
    return key


def mebibytes_of(web: WebProcess) -> float:
    """Return the resident memory of the process and its children."""
    pids = Path(f"/proc/{web.process.pid}/task/{web.process.pid}/children").read_text().split()
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (web.process.pid, *pids)]
    return sum(int(status.partition("VmRSS:")[2].split()[0]) for status in statuses) / 1024


@pytest.mark.parametrize("size", [1000, BATCH, 100 * MEBIBYTE])
def test_a_stalled_body_ends_with_408_and_a_closed_connection(web: WebProcess, size: int) -> None:
    with open_connection(web.address) as connection:
        began = time.monotonic()
        connection.sendall(announced(size) + b'{"events"')
        answer = read_until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"body_too_slow"' in answer
    assert SECONDS <= time.monotonic() - began < SECONDS + TIMEOUT_SECONDS / 2


def test_a_dripping_body_ends_with_408(web: WebProcess) -> None:
    with open_connection(web.address) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(announced(BATCH))
        connection.settimeout(0.1)
        answer = b""
        until = time.monotonic() + TIMEOUT_SECONDS
        while not answer and time.monotonic() < until:
            connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_arrives_steadily_has_more_time(web: WebProcess) -> None:
    piece = b" " * 128 * 1024
    began = time.monotonic()

    def pieces() -> Iterator[bytes]:
        while time.monotonic() - began < 2 * SECONDS:
            yield piece
            time.sleep(0.2)

    answer = requests.post(f"{web.address}/api/v1/events", pieces(), timeout=TIMEOUT_SECONDS)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def test_large_bodies_share_a_quota(web: WebProcess, until_the_end: contextlib.ExitStack) -> None:
    refused = fill_quota(web, until_the_end)
    assert (refused.json()["code"], refused.headers["Retry-After"]) == ("no_room", "1")
    assert post(web, 60 * 1024).status_code == 401
    until_the_end.close()
    wait_until(lambda: post(web, BATCH).status_code == 401)


def test_the_quota_of_large_bodies_is_returned_after_the_answer(web: WebProcess) -> None:
    assert {post(web, BATCH).status_code for _ in range(10)} == {401}
    assert {post(web, BATCH + 1).status_code for _ in range(10)} == {413}
    assert post(web, BATCH).status_code == 401


def test_clients_without_a_key_leave_quota_for_those_with_one(
    web: WebProcess, broker: Broker, until_the_end: contextlib.ExitStack
) -> None:
    key = known_key(web, broker)
    for wrong in ("", "Bearer brk_", "Bearer " + "x" * 47):
        assert fill_quota(web, until_the_end, wrong).status_code == 503
    assert post(web, BATCH, key).json()["code"] == "malformed_body"


def test_one_key_leaves_quota_for_others(web: WebProcess, broker: Broker, until_the_end: contextlib.ExitStack) -> None:
    greedy, other = known_key(web, broker), known_key(web, broker)
    assert fill_quota(web, until_the_end, greedy).status_code == 503
    assert post(web, BATCH, other).json()["code"] == "malformed_body"
    assert post(web, MEBIBYTE).status_code == 401


@pytest.mark.lengthy
def test_a_refused_body_is_read_for_a_short_time_only(web: WebProcess, until_the_end: contextlib.ExitStack) -> None:
    assert post(web, BATCH + 1).status_code == 413
    assert {post(web, BATCH).status_code for _ in range(40)} == {401}
    before = mebibytes_of(web)
    dripping = [until_the_end.enter_context(open_connection(web.address)) for _ in range(40)]
    for connection in dripping:
        connection.sendall(announced(2 * BATCH) + b" " * (BATCH + MEBIBYTE))
        wait_until(lambda: post(web, BATCH).status_code == 401)
    assert mebibytes_of(web) - before < 40 * BATCH / MEBIBYTE / 4
    began = time.monotonic()
    assert {read_until_closed(connection)[:13] for connection in dripping} <= {b"HTTP/1.1 413 ", b"HTTP/1.1 503 "}
    assert time.monotonic() - began < TIMEOUT_SECONDS / 2


@pytest.mark.parametrize(
    "said", [b"", b"GET /li", announced(1000) + b"{", announced(BATCH) + b"{"], ids=["idle", "head", "small", "large"]
)
def test_silent_connections_block_nobody_else(broker: Broker, until_the_end: contextlib.ExitStack, said: bytes) -> None:
    for _ in range(600):
        until_the_end.enter_context(open_connection(broker.web)).sendall(said)
    assert requests.get(f"{broker.web}/livez", timeout=15).status_code == 200


def test_idle_used_connections_do_not_block_others(broker: Broker, until_the_end: contextlib.ExitStack) -> None:
    def used() -> socket.socket:
        connection = until_the_end.enter_context(open_connection(broker.web))
        connection.sendall(request_head("GET", "/livez"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        return connection

    assert len([used() for _ in range(600)]) == 600
    assert requests.get(f"{broker.web}/livez", timeout=15).status_code == 200
