"""Look-ups of host names: one whose name server does not answer delays no other."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from broker_project.core.egress import EgressPolicy, networks_in
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.http.client import NOT_FOUND_IN_TIME, HttpClient
from delivery.http.transfer import Answer, EncodedRequest, RequestNotCompleted, Transfer

HERE = "127.0.0.1"
HANGING = 40
"""More look-ups than libcurl has threads."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the names that were looked up; what begins with `hangs` is never answered, all others are this machine."""
    seen: list[str] = []
    is_over = threading.Event()
    real = socket.getaddrinfo

    def look_up(host: str, *given: Any, **options: Any) -> Any:
        seen.append(host)
        if host.startswith("hangs"):
            is_over.wait()
        return real(HERE, *given, **options)

    monkeypatch.setattr("delivery.http.resolver.socket.getaddrinfo", look_up)
    yield seen
    is_over.set()


@pytest.fixture
def client() -> Iterator[HttpClient]:
    client = HttpClient(egress=EgressPolicy(networks_in(HERE)))
    yield client
    client.close()


def ask(client: HttpClient, receiver: Receiver, *hosts: str) -> None:
    """Let a request to each host go out, under its name."""
    for host in hosts:
        client.start(host, EncodedRequest("POST", receiver.url("/").replace(HERE, host), [], b"{}"))
    client.begin()


def answers_of(client: HttpClient, count: int) -> list[Answer]:
    """Wait until there are `count` answers, and return them."""
    answers: list[Answer] = []

    def are_here() -> bool:
        answers.extend(client.wait(0))
        return len(answers) >= count

    wait_until(are_here)
    return answers


@pytest.mark.behaviour("4.1", "4.8")
@pytest.mark.parametrize("hosts", [[f"hangs-{n}.example" for n in range(HANGING)], ["hangs.example"] * HANGING])
def test_names_that_are_not_found_delay_no_other(
    client: HttpClient, receiver: Receiver, asked: list[str], monkeypatch: pytest.MonkeyPatch, hosts: list[str]
) -> None:
    monkeypatch.setattr(Transfer, "connect_ms", int(PATIENCE_SECONDS * 1000))
    ask(client, receiver, *hosts)
    wait_until(lambda: client.wait(0) or {*asked} == {*hosts})
    assert len(asked) == len({*hosts}), "one look-up of each name"
    ask(client, receiver, "quick.example")
    (answered,) = client.wait(PATIENCE_SECONDS)
    assert (answered.token, answered.status) == ("quick.example", 200)
    for transfer in client._in_flight:
        transfer.connect_ms = 1
    client._late_at = 0
    assert answers_of(client, HANGING)[0].failure == RequestNotCompleted(
        NOT_FOUND_IN_TIME, was_sent=False, timed_out=True
    )


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("host", ["abc.example", "abc.example.", "ABC.example"])
def test_what_was_found_is_used_by_all_that_wait_for_it(client: HttpClient, receiver: Receiver, host: str) -> None:
    ask(client, receiver, host, host)
    assert [(answered.status, answered.failure) for answered in answers_of(client, 2)] == [(200, None)] * 2


@pytest.mark.usefixtures("asked")
def test_what_was_found_is_judged(receiver: Receiver) -> None:
    client = HttpClient(egress=EgressPolicy())
    ask(client, receiver, "abc.example")
    (answered,) = client.wait(PATIENCE_SECONDS)
    assert answered.failure
    assert (answered.failure.is_refused, answered.failure.reason) == (True, "Address not allowed (loopback)")
    client.close()
    assert receiver.log == []


def test_nobody_waits_for_a_request_that_was_given_up(client: HttpClient, receiver: Receiver, asked: list[str]) -> None:
    ask(client, receiver, "hangs.example")
    wait_until(lambda: client.wait(0) or asked)
    client.abandon({"hangs.example"})
    ask(client, receiver, "quick.example")
    assert [answered.token for answered in client.wait(PATIENCE_SECONDS)] == ["quick.example"]


def test_without_a_thread_a_name_is_not_found(
    client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    ask(client, receiver, "abc.example")
    (answered,) = client.wait(PATIENCE_SECONDS)
    assert answered.failure
    assert answered.failure.reason == "Could not resolve host: abc.example (no thread)"
