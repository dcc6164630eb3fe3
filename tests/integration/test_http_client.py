"""What the driver's client gives back, and when: requests that went out together are answered together."""

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import requests
from django.conf import settings

from delivery.http.client import OVERDUE_SECONDS, HttpClient
from delivery.http.connection_gate import Gate
from delivery.http.headers import EncodedRequest
from delivery.http.transfer import TOO_LATE, Answer, RequestNotCompleted
from tests.receiver import Later, Receiver, answer, hang, raw, wait_until

LONG = 30.0
LEFT = 0.2


@pytest.fixture
def client() -> Iterator[HttpClient]:
    client = HttpClient(reach=settings.REACH, deadline_seconds=LONG)
    yield client
    client.close()


def send(client: HttpClient, receiver: Receiver, *paths: str) -> None:
    """Let requests go out together."""
    for path in paths:
        client.start(path, EncodedRequest("POST", receiver.url(path), [], b"{}"))
    client.begin()


def test_requests_that_went_out_together_are_answered_together(
    client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery.http.client.GATHER_SECONDS", LONG)
    paths = [f"/{number}" for number in range(20)]
    send(client, receiver, *paths)
    assert client.is_gathering

    answers = client.wait(LONG)

    assert sorted(str(answer.token) for answer in answers) == sorted(paths)
    assert all(isinstance(answer.result, requests.Response) for answer in answers)
    assert not client.is_gathering


def test_answers_wait_for_one_that_does_not_come_but_a_moment(client: HttpClient, receiver: Receiver) -> None:
    receiver.on("/hangs", hang)
    send(client, receiver, "/hangs", "/answers")

    assert [answer.token for answer in client.wait(LONG)] == ["/answers"]
    assert client.is_gathering, "it may still come"


def test_answers_do_not_wait_for_what_went_out_earlier(
    client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery.http.client.GATHER_SECONDS", LONG)
    receiver.on("/hangs", hang)
    send(client, receiver, "/hangs")
    send(client, receiver, "/answers")
    began = time.monotonic()

    assert [answer.token for answer in client.wait(LONG)] == ["/answers"]
    assert time.monotonic() < began + LONG / 2


def test_a_client_that_has_been_closed_can_be_interrupted_and_rings_nobody_elses_bell(client: HttpClient) -> None:
    other = HttpClient(reach=settings.REACH, deadline_seconds=LONG)
    bell = other._sockets._bell
    other.close()
    elsewhere = os.eventfd(0, os.EFD_NONBLOCK)
    os.dup2(elsewhere, bell)  # whatever is opened next may have the number of what was closed
    other.interrupt()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(elsewhere)
    os.close(elsewhere)
    os.close(bell)


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("is_kept", [False, True])
def test_what_its_process_was_stopped_with_is_not_sent_when_its_time_is_over(
    client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """Somebody else has the line by then, and has sent it."""
    lets_out, stopped_for = Gate.lets_out, 0.0

    def stopped(gate: Gate, address: str) -> bool:
        nonlocal stopped_for
        stopped_for = LONG
        return lets_out(gate, address)

    if is_kept:
        assert content_of(ask(client, receiver, "/")) == (200, b"")
    monkeypatch.setattr(Gate, "lets_out", stopped)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + stopped_for)
    monkeypatch.setattr("delivery.http.transfer.time", clock)
    result = ask(client, receiver, "/late").result
    assert isinstance(result, RequestNotCompleted)
    assert (result.reason, result.was_sent, result.timed_out) == (TOO_LATE, False, False)
    monkeypatch.undo()
    assert content_of(ask(client, receiver, "/")) == (200, b"")
    assert receiver.of("/late") == []


@pytest.mark.behaviour("4.11")
def test_a_requests_time_counts_from_when_it_was_sure_that_nobody_else_sends_it(
    client: HttpClient, receiver: Receiver
) -> None:
    receiver.on("/hangs", hang)
    began = time.monotonic()
    client.start("/hangs", EncodedRequest("POST", receiver.url("/hangs"), [], b"{}"), since=began - LONG + LEFT)
    (answered,) = client.wait(LONG)
    assert isinstance(answered.result, RequestNotCompleted)
    assert answered.result.timed_out
    assert LEFT <= time.monotonic() - began < LONG / 2


@pytest.mark.behaviour("4.11")
def test_a_request_that_is_begun_anew_has_what_is_left_of_its_time(
    client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(b"HTTP/1.1 200 -\r\nContent-Length: 0\r\n\r\n", b"\n")
    receiver.on("/first", later)
    receiver.on("/hangs", hang)
    assert content_of(ask(client, receiver, "/first")) == (200, b"")
    receiver.soon(later.say)
    assert later.has_said.wait(LONG)
    began = time.monotonic()
    send(client, receiver, "/hangs")
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + LONG - LEFT)
    monkeypatch.setattr("delivery.http.transfer.time", clock)
    (answered,) = client.wait(LONG)
    assert isinstance(answered.result, RequestNotCompleted)
    assert answered.result.timed_out
    assert time.monotonic() - began < LONG / 2


@pytest.mark.behaviour("4.11")
def test_libcurl_counting_from_too_late_does_not_keep_a_request_for_longer(
    client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the time when it begins, before which its process may have been stopped."""
    receiver.on("/hangs", hang)
    send(client, receiver, "/answers", "/hangs")
    assert [answer.token for answer in client.wait(LONG)] == ["/answers"]
    wait_until(lambda: receiver.of("/hangs"))
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + LONG + OVERDUE_SECONDS)
    monkeypatch.setattr("delivery.http.client.time", clock)
    (answered,) = client.wait(0)
    assert isinstance(answered.result, RequestNotCompleted)
    assert (answered.token, answered.result.was_sent, answered.result.timed_out) == ("/hangs", True, True)
    monkeypatch.undo()
    assert content_of(ask(client, receiver, "/")) == (200, b"")
    assert client.wait(0) == []


def ask(client: HttpClient, receiver: Receiver, path: str) -> Answer:
    """Send one request and return its answer."""
    send(client, receiver, path)
    (answered,) = client.wait(LONG)
    return answered


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("then_close", [False, True])
@pytest.mark.parametrize("more", [b"HTTP/1.1 408 -\r\nContent-Length: 0\r\n\r\n", b"\n"])
def test_what_nobody_asked_for_is_no_answer(
    client: HttpClient, receiver: Receiver, more: bytes, then_close: bool
) -> None:
    later = Later(b"HTTP/1.1 200 -\r\nContent-Length: 5\r\n\r\nfirst", more, then_close=then_close)
    receiver.on("/first", later)
    receiver.on("/second", answer(201, b"second"))
    assert content_of(ask(client, receiver, "/first")) == (200, b"first")
    receiver.soon(later.say)
    assert later.has_said.wait(LONG)
    assert content_of(ask(client, receiver, "/second")) == (201, b"second")
    assert content_of(ask(client, receiver, "/second")) == (201, b"second")
    assert len(receiver.of("/second")) == 2


def test_trailers_behind_a_body_are_no_headers(client: HttpClient, receiver: Receiver) -> None:
    trailers = b"Retry-After: 7\r\nHTTP/1.1 500 : -\r\n"
    head = b"HTTP/1.1 200 -\r\nTransfer-Encoding: chunked\r\n\r\n"
    receiver.on("/", raw(b"HTTP/1.1 100 -\r\n\r\n" + head + b"2\r\nok\r\n0\r\n" + trailers + b"\r\n"))
    answered = ask(client, receiver, "/")
    assert (content_of(answered), answered.head) == ((200, b"ok"), head)


def content_of(answered: Answer) -> tuple[int, bytes]:
    assert isinstance(answered.result, requests.Response)
    return answered.result.status_code, answered.result.content


def test_what_has_no_body_to_get_has_no_headers_of_one_either(client: HttpClient, receiver: Receiver) -> None:
    for method, body in [("GET", b""), ("POST", b"{}"), ("GET", b""), ("GET", b"{}")]:  # over the one handle
        client.start(method, EncodedRequest(method, receiver.url("/up"), [], body))
        assert client.wait(LONG)
    sent = [(one.method, one.body, one.headers.get("content-length")) for one in receiver.of("/up")]
    assert sent == [("GET", b"", None), ("POST", b"{}", "2"), ("GET", b"", None), ("GET", b"{}", "2")]
    assert "content-type" not in receiver.of("/up")[2].headers
