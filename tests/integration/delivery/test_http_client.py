"""The HTTP client: answers, deadlines, leases, hostile endpoints; `test_egress` has what it connects to."""

import itertools
import os
import socket
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.conf import settings

from broker_project.core import boot_clock
from broker_project.stack.load.receiver import Behaviour, Receiver, answer, hang, raw, running_receiver
from broker_project.stack.load.wait import wait_until
from delivery.http.client import HttpClient
from delivery.http.transfer import (
    LEASE_ENDED,
    TOO_LATE,
    Answer,
    EncodedRequest,
    Lease,
    RequestNotCompleted,
    Transfer,
)
from delivery.limits import MAX_ANSWER_BYTES, OVERDUE_SECONDS
from delivery.models import Attempt, Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import Subscription
from tests.support import broker
from tests.support.behaviours import LateBytes, close, dripping, endless, reset
from tests.support.broker import Worker
from tests.support.factories import subscription

LONG = 30.0
LEFT = 0.2
STALL = 0.5

NOT_TEXT = b"\xff\xfe\x00\xc3\x28"


@pytest.fixture
def http_client() -> Iterator[HttpClient]:
    client = HttpClient(egress=settings.EGRESS_POLICY, deadline_seconds=LONG)
    yield client
    client.close()


def send(client: HttpClient, receiver: Receiver, *paths: str) -> None:
    """Let requests go out together."""
    for path in paths:
        client.start(path, EncodedRequest("POST", receiver.url(path), [], b"{}"))
    client.begin()


def test_answers_are_gathered(http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.http.client.GATHER_SECONDS", LONG)
    paths = [f"/{number}" for number in range(20)]
    send(http_client, receiver, *paths)
    assert http_client.is_gathering

    answers = http_client.wait(LONG)

    assert sorted(str(answer.token) for answer in answers) == sorted(paths)
    assert all(answer.status and not answer.failure for answer in answers)
    assert not http_client.is_gathering


def test_answers_wait_for_one_that_does_not_come_but_a_moment(http_client: HttpClient, receiver: Receiver) -> None:
    receiver.on("/hangs", hang)
    send(http_client, receiver, "/hangs", "/answers")

    assert [answer.token for answer in http_client.wait(LONG)] == ["/answers"]
    assert http_client.is_gathering, "it may still come"


def test_requests_delay_no_other(http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.http.client.GATHER_SECONDS", LONG)
    receiver.on("/hangs", hang)
    send(http_client, receiver, "/hangs")
    send(http_client, receiver, "/answers")
    began = time.monotonic()

    assert [answer.token for answer in http_client.wait(LONG)] == ["/answers"]
    assert time.monotonic() < began + LONG / 2


def test_a_client_that_has_been_closed_can_be_interrupted_and_rings_nobody_elses_bell(http_client: HttpClient) -> None:
    other = HttpClient(egress=settings.EGRESS_POLICY, deadline_seconds=LONG)
    bell = other._sockets._bell
    other.close()
    elsewhere = os.eventfd(0, os.EFD_NONBLOCK)
    os.dup2(elsewhere, bell)  # the next file opened may have the number of the one closed
    other.interrupt()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(elsewhere)
    os.close(elsewhere)
    os.close(bell)


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_request_past_its_deadline_is_not_sent(
    http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """Somebody else has the line by then, and has sent it."""
    refusal, stopped_for = settings.EGRESS_POLICY.refusal, 0.0

    def stopped(address: str) -> str:
        nonlocal stopped_for
        stopped_for = LONG
        return refusal(address)

    if is_kept:
        assert content_of(ask(http_client, receiver, "/")) == (200, b"")
    monkeypatch.setattr(settings.EGRESS_POLICY, "refusal", stopped)
    real = boot_clock.since_boot
    monkeypatch.setattr(boot_clock, "since_boot", lambda: real() + stopped_for)
    assert ask(http_client, receiver, "/late").failure == RequestNotCompleted(TOO_LATE, was_sent=False)
    monkeypatch.undo()
    assert content_of(ask(http_client, receiver, "/")) == (200, b"")
    assert receiver.of("/late") == []


@pytest.mark.behaviour("4.11")
def test_a_request_ends_at_its_own_deadline(http_client: HttpClient, receiver: Receiver) -> None:
    receiver.on("/hangs", hang)
    began = time.monotonic()
    http_client.start("/hangs", EncodedRequest("POST", receiver.url("/hangs"), [], b"{}"), until=began + LEFT)
    (answered,) = http_client.wait(LONG)
    assert answered.failure
    assert answered.failure.timed_out
    assert LEFT <= time.monotonic() - began < LONG / 2


@pytest.mark.behaviour("4.11")
def test_restarts_keep_deadlines(http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    later = LateBytes(b"HTTP/1.1 200 -\r\nContent-Length: 0\r\n\r\n", b"\n")
    receiver.on("/first", later)
    receiver.on("/hangs", hang)
    assert content_of(ask(http_client, receiver, "/first")) == (200, b"")
    receiver.soon(later.send)
    assert later.has_sent.wait(LONG)
    began = time.monotonic()
    send(http_client, receiver, "/hangs")
    real = boot_clock.since_boot
    monkeypatch.setattr(boot_clock, "since_boot", lambda: real() + LONG - LEFT)
    (answered,) = http_client.wait(LONG)
    assert answered.failure
    assert answered.failure.timed_out
    assert time.monotonic() - began < LONG / 2


@pytest.mark.behaviour("4.11")
def test_a_late_timer_of_libcurl(http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the time when it begins, before which its process may have been stopped."""
    receiver.on("/hangs", hang)
    send(http_client, receiver, "/answers", "/hangs")
    assert [answer.token for answer in http_client.wait(LONG)] == ["/answers"]
    wait_until(lambda: receiver.of("/hangs"))
    real, act = boot_clock.since_boot, http_client._sockets.act

    def stopped_meanwhile(end: float) -> bool:
        monkeypatch.setattr(boot_clock, "since_boot", lambda: real() + LONG + OVERDUE_SECONDS)
        return act(end)

    monkeypatch.setattr(http_client._sockets, "act", stopped_meanwhile)
    (answered,) = http_client.wait(0)
    assert answered.failure
    assert (answered.token, answered.failure.was_sent, answered.failure.timed_out) == ("/hangs", True, True)
    monkeypatch.undo()
    assert content_of(ask(http_client, receiver, "/")) == (200, b"")
    assert http_client.wait(0) == []


@pytest.mark.behaviour("4.17")
def test_an_answer_that_came_in_time_counts_although_nobody_looked(http_client: HttpClient, receiver: Receiver) -> None:
    gate = receiver.gate("/waits")
    until = boot_clock.since_boot() + LEFT
    http_client.start("/waits", EncodedRequest("POST", receiver.url("/waits"), [], b"{}"), until=until)
    wait_until(lambda: http_client.wait(0) or receiver.log)
    gate.open()
    wait_until(lambda: receiver.log[0].ended)
    wait_until(lambda: boot_clock.since_boot() > until + 2 * OVERDUE_SECONDS)  # as for a database that hangs
    assert [content_of(answered) for answered in http_client.wait(LONG)] == [(200, b"")]


@pytest.mark.behaviour("4.17")
def test_an_endpoint_that_hangs_has_no_more_time_than_nobody_looked(
    http_client: HttpClient, receiver: Receiver
) -> None:
    receiver.on("/hangs", hang)
    until = boot_clock.since_boot() + LEFT
    http_client.start("/hangs", EncodedRequest("POST", receiver.url("/hangs"), [], b"{}"), until=until)
    wait_until(lambda: http_client.wait(0) or receiver.log)
    looked_at = boot_clock.since_boot()
    wait_until(lambda: boot_clock.since_boot() > looked_at + STALL)
    (answered,) = http_client.wait(LONG) or http_client.wait(0)
    assert answered.failure
    assert answered.failure.timed_out
    assert until + STALL <= boot_clock.since_boot() < until + STALL + 2 * OVERDUE_SECONDS


@pytest.mark.behaviour("4.17")
def test_the_time_to_connect_is_that_in_which_somebody_looked(
    http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transfer, "connect_ms", int(LEFT * 1000))
    secure = receiver.url("/").replace("http", "https")  # where nobody answers a handshake
    http_client.start("/", EncodedRequest("POST", secure, [], b"{}"))
    assert http_client.wait(0) == []
    began = boot_clock.since_boot()
    wait_until(lambda: boot_clock.since_boot() > began + STALL)  # as for a database that hangs
    assert http_client.wait(0) == http_client.wait(0) == []
    (answered,) = http_client.wait(LONG) or http_client.wait(0)
    assert answered.failure
    assert answered.failure.timed_out
    assert boot_clock.since_boot() < began + STALL + LONG / 2


@dataclass
class Leased:
    """A lease that ends when the test says."""

    lease_ends_at: float


@pytest.mark.behaviour("4.11", "4.16")
def test_a_request_ends_with_its_lease(http_client: HttpClient, receiver: Receiver) -> None:
    receiver.on("/hangs", hang)
    lease = Leased(boot_clock.since_boot() + LEFT)
    http_client.start("/hangs", EncodedRequest("POST", receiver.url("/hangs"), [], b"{}"), lease=lease)
    (ended,) = [*http_client.wait(LONG / 2), *http_client.wait(0)]
    assert ended.failure == RequestNotCompleted(LEASE_ENDED, was_sent=True, is_abandoned=True)
    wait_until(lambda: receiver.log[0].ended)
    assert content_of(ask(http_client, receiver, "/")) == (200, b"")


@pytest.mark.behaviour("4.16")
def test_a_request_goes_on_under_a_lease_that_is_renewed(http_client: HttpClient, receiver: Receiver) -> None:
    gate = receiver.gate("/waits")
    lease = Leased(boot_clock.since_boot() + LEFT)
    http_client.start("/waits", EncodedRequest("POST", receiver.url("/waits"), [], b"{}"), lease=lease)
    http_client.begin()
    lease.lease_ends_at += LONG
    began = time.monotonic()
    assert http_client.wait(LONG) == []
    assert time.monotonic() - began < LONG / 2, "it looks whether the lease was renewed"
    gate.open()
    assert [content_of(answered) for answered in http_client.wait(LONG)] == [(200, b"")]


@pytest.mark.behaviour("4.11", "4.16")
def test_an_answer_that_came_while_the_process_was_stopped_is_not_read(
    http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = receiver.gate("/waits")
    lease = Leased(boot_clock.since_boot() + LONG)
    http_client.start("/waits", EncodedRequest("POST", receiver.url("/waits"), [], b"{}"), lease=lease)
    wait_until(lambda: http_client.wait(0) or receiver.log)
    gate.open()
    wait_until(lambda: receiver.log[0].ended)
    real = boot_clock.since_boot
    monkeypatch.setattr(boot_clock, "since_boot", lambda: real() + LONG)
    (ended,) = http_client.wait(0)
    assert ended.failure == RequestNotCompleted(LEASE_ENDED, was_sent=True, is_abandoned=True)


@pytest.mark.behaviour("4.11", "4.16")
def test_what_was_not_sent_under_its_lease_is_not_sent(http_client: HttpClient, receiver: Receiver) -> None:
    lease = Leased(boot_clock.since_boot())
    http_client.start("/late", EncodedRequest("POST", receiver.url("/late"), [], b"{}"), lease=lease)
    http_client.begin()
    (ended,) = http_client.wait(LONG)
    assert ended.failure == RequestNotCompleted(TOO_LATE, was_sent=False)
    assert content_of(ask(http_client, receiver, "/")) == (200, b"")
    assert receiver.of("/late") == []


@pytest.mark.behaviour("4.16")
def test_what_nobody_waits_for_is_ended(http_client: HttpClient, receiver: Receiver) -> None:
    receiver.on("/hangs", hang)
    send(http_client, receiver, "/hangs")
    wait_until(lambda: http_client.wait(0) or receiver.log)
    send(http_client, receiver, "/answers")
    http_client.abandon({"/hangs"})
    wait_until(lambda: receiver.of("/hangs")[0].ended)
    assert [answer.token for answer in http_client.wait(LONG)] == ["/answers"]
    assert http_client.wait(0) == []


def ask(client: HttpClient, receiver: Receiver, path: str) -> Answer:
    """Send one request and return its answer."""
    send(client, receiver, path)
    (answered,) = client.wait(LONG)
    return answered


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("then_close", [False, True])
@pytest.mark.parametrize("more", [b"HTTP/1.1 408 -\r\nContent-Length: 0\r\n\r\n", b"\n"])
def test_unsolicited_bytes_ignored(http_client: HttpClient, receiver: Receiver, more: bytes, then_close: bool) -> None:
    later = LateBytes(b"HTTP/1.1 200 -\r\nContent-Length: 5\r\n\r\nfirst", more, then_close=then_close)
    receiver.on("/first", later)
    receiver.on("/second", answer(201, b"second"))
    assert content_of(ask(http_client, receiver, "/first")) == (200, b"first")
    receiver.soon(later.send)
    assert later.has_sent.wait(LONG)
    assert content_of(ask(http_client, receiver, "/second")) == (201, b"second")
    assert content_of(ask(http_client, receiver, "/second")) == (201, b"second")
    assert len(receiver.of("/second")) == 2


@pytest.mark.behaviour("4.11")
def test_unsolicited_bytes_are_ignored_on_connections_that_share_a_local_port(
    http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux uses one port for connections to several addresses."""
    unsolicited = LateBytes(
        b"HTTP/1.1 200 -\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 408 -\r\nContent-Length: 0\r\n\r\n"
    )
    receiver.on("/first", unsolicited)
    port, open_socket = 0, Transfer.open_socket

    def opened(transfer: Transfer, purpose: int, wanted: Any) -> "socket.socket | int":
        nonlocal port
        opened = open_socket(transfer, purpose, wanted)
        assert isinstance(opened, socket.socket)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(("127.0.0.1", port))
        port = opened.getsockname()[1]
        return opened

    with running_receiver() as other, monkeypatch.context() as sharing:
        sharing.setattr(Transfer, "open_socket", opened)
        assert content_of(ask(http_client, receiver, "/first")) == (200, b"")
        assert content_of(ask(http_client, other, "/")) == (200, b"")
        sharing.undo()  # what it would open next to the receiver has the same ends as the first one
        receiver.soon(unsolicited.send)
        assert unsolicited.has_sent.wait(LONG)
        assert content_of(ask(http_client, receiver, "/second")) == (200, b"")


def test_a_kept_connection_that_ends_is_noticed_once(
    http_client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = LateBytes(b"HTTP/1.1 200 -\r\nContent-Length: 0\r\n\r\n", b"\n", then_close=True)
    receiver.on("/first", later)
    assert content_of(ask(http_client, receiver, "/first")) == (200, b"")
    receiver.soon(later.send)
    assert later.has_sent.wait(LONG)
    act, acts = http_client._sockets.act, itertools.count()
    monkeypatch.setattr(http_client._sockets, "act", lambda end: (next(acts), act(end))[1])
    assert http_client.wait(LEFT) == []
    assert next(acts) < 5, "it would be looked at again and again"


def test_trailers_behind_a_body_are_no_headers(http_client: HttpClient, receiver: Receiver) -> None:
    trailers = b"Retry-After: 7\r\nHTTP/1.1 500 : -\r\n"
    head = b"HTTP/1.1 200 -\r\nTransfer-Encoding: chunked\r\n\r\n"
    receiver.on("/", raw(b"HTTP/1.1 100 -\r\n\r\n" + head + b"2\r\nok\r\n0\r\n" + trailers + b"\r\n"))
    answered = ask(http_client, receiver, "/")
    assert (content_of(answered), answered.head) == ((200, b"ok"), head)


def content_of(answered: Answer) -> tuple[int, bytes]:
    assert answered.failure is None
    return answered.status, answered.body


def test_requests_without_body_have_no_content_headers(http_client: HttpClient, receiver: Receiver) -> None:
    for method, body in [("GET", b""), ("POST", b"{}"), ("GET", b""), ("GET", b"{}")]:  # over the one handle
        http_client.start(method, EncodedRequest(method, receiver.url("/up"), [], body))
        assert http_client.wait(LONG)
    sent = [(one.method, one.body, one.headers.get("content-length")) for one in receiver.of("/up")]
    assert sent == [("GET", b"", None), ("POST", b"{}", "2"), ("GET", b"", None), ("GET", b"{}", "2")]
    assert "content-type" not in receiver.of("/up")[2].headers


ANSWERED = {
    "no reason": (raw(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), 200),
    "a reason that is no text": (raw(b"HTTP/1.1 200 " + NOT_TEXT[:2] + b"\r\nContent-Length: 0\r\n\r\n"), 200),
    "a reason of 50 KB": (raw(b"HTTP/1.1 200 " + b"x" * 50_000 + b"\r\nContent-Length: 0\r\n\r\n"), 200),
    "zero bytes in the body": (answer(404, b"a\x00b" + NOT_TEXT), 404),
    "a location that is no text": (raw(b"HTTP/1.1 302 x\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n"), 302),
    "a date no calendar has": (answer(400, Retry_After="1 Jan 99999999999999999999 0:0:0"), 400),
    "an interim answer first": (raw(b"HTTP/1.1 103 -\r\n\r\nHTTP/1.1 204 -\r\n\r\n"), 204),
    "HTTP/1.0": (raw(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"), 200),
    "an encoding nobody knows": (raw(b"HTTP/1.1 200 -\r\nContent-Encoding: \xff\r\nContent-Length: 0\r\n\r\n"), 200),
    "a transfer encoding that is no text": (raw(b"HTTP/1.1 200 -\r\nTransfer-Encoding: \xff\xfe\x80\r\n\r\n"), 200),
    "a cookie": (answer(200, Set_Cookie="a=b"), 200),
}
UNANSWERED = {
    "the end": close,
    "a reset": reset,
    "no HTTP": raw(b"good morning\r\n\r\n"),
    "half a body": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it"),
    "broken chunks": raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "zero bytes": raw(b"\x00" * 100),
    "a status that is no number": raw(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a status of four digits": raw(b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
    "an unknown version": raw(b"HTTP/9.9 200 OK\r\n\r\n"),
    "a zero byte in a header": raw(b"HTTP/1.1 200 -\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n"),
    "a negative length": raw(b"HTTP/1.1 200 -\r\nContent-Length: -1\r\n\r\n"),
    "two lengths": raw(b"HTTP/1.1 200 -\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
    "headers without end": raw(b"HTTP/1.1 200 -\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n"),
    "only an interim answer": raw(b"HTTP/1.1 103 -\r\n\r\n"),
    "a TLS alert": raw(b"\x15\x03\x01\x00\x02\x02\x46"),
}


@pytest.mark.parametrize(("strange", "status"), ANSWERED.values(), ids=ANSWERED.keys())
def test_odd_answers(receiver: Receiver, worker: Worker, wanted: Subscription, strange: Behaviour, status: int) -> None:
    receiver.on("/a", strange, answer())
    broker.publish_numbered(wanted.event_type, 2)
    broker.wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1"]
    assert broker.attempts_of(receiver.log[0].delivery_id) == [(1, status)]


@pytest.mark.behaviour("4.8", "4.11")
@pytest.mark.parametrize("nonsense", UNANSWERED.values(), ids=UNANSWERED.keys())
def test_nonsense_is_no_answer(receiver: Receiver, worker: Worker, wanted: Subscription, nonsense: Behaviour) -> None:
    receiver.on("/a", nonsense, answer())
    broker.publish_numbered(wanted.event_type, 2)
    broker.cut_pauses_until_done()
    assert receiver.bodies("/a") == [b"0", b"0", b"1"]
    assert [request.is_flagged for request in receiver.log] == [False, True, False]
    assert len({request.headers["webhook-id"] for request in receiver.log[:2]}) == 1
    assert broker.attempts_of(receiver.log[0].delivery_id) == [(1, None), (2, 200)]
    assert Attempt.objects.earliest("id").error


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EncodedRequest, float]]:
    """Return the requests that are started, each with its deadline."""
    seen: list[tuple[EncodedRequest, float]] = []
    start = HttpClient.start

    def noted(client: HttpClient, token: Hashable, request: EncodedRequest, *, until: float, lease: Lease) -> None:
        seen.append((request, until))
        start(client, token, request, until=until, lease=lease)

    monkeypatch.setattr(HttpClient, "start", noted)
    return seen


@pytest.mark.behaviour("4.8", "4.11", "4.17")
@pytest.mark.parametrize("slow", [hang, dripping(0.1)], ids=["hang", "drip"])
def test_deadline(
    receiver: Receiver,
    wanted: Subscription,
    slow: Behaviour,
    long_pauses: None,
    started: list[tuple[EncodedRequest, float]],
) -> None:
    other = subscription(endpoint=receiver.url("/other"))
    receiver.on("/a", slow, answer())
    Subscription.objects.update(timeout_seconds=2)
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 2)
        broker.publish_numbered(other.event_type, 1)
        hold = broker.wait_until_held(wanted.subscriber)
        (error,) = Attempt.objects.filter(status_code=None).values_list("error", flat=True)
        assert (hold.failures, error.startswith("no answer: Operation timed out after ")) == (1, True)
        broker.cut_pauses_until_done()
    until = next(until for request, until in started if request.url == receiver.url("/a"))
    first_ended, (beside,) = receiver.of("/a")[0].ended or 0.0, receiver.of("/other")
    assert first_ended >= until, "the deadline counts from the mark, before libcurl begins"
    assert beside.begun < first_ended, "while the slow one was waited for"
    assert receiver.bodies("/a") == [b"0", b"0", b"1"]
    assert [request.is_flagged for request in receiver.of("/a")] == [False, True, False]
    assert [request.sequence for request in receiver.of("/a")] == [1, 1, 2]


def test_no_more_of_an_answer_is_read_than_its_cap(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    receiver.on("/a", endless)
    broker.publish_numbered(wanted.event_type, 1)
    broker.wait_until_done()
    assert len(Attempt.objects.get().answer_excerpt) == 1024 < MAX_ANSWER_BYTES
    wait_until(lambda: receiver.log[0].ended)


@pytest.mark.parametrize(
    "fields",
    [{"endpoint": "not a URL"}, {"endpoint": "http://é/"}, {"signing_secret": "whsec_!"}],
    ids=["endpoint", "host", "secret"],
)
def test_a_broken_destination_stops_its_own_line_only(
    receiver: Receiver, worker: Worker, wanted: Subscription, fields: dict[str, Any]
) -> None:
    unusable = subscription(**fields)
    broker.publish_numbered(unusable.event_type, 2)
    line = broker.wait_until_held(unusable.subscriber).line
    broker.publish_numbered(wanted.event_type, 1)
    wait_until(lambda: broker.statuses(wanted) == [DeliveryStatus.DELIVERED])
    assert (broker.statuses(unusable), line.last_sequence) == ([DeliveryStatus.PENDING] * 2, 0)
    assert not Delivery.objects.filter(subscription=unusable, sequence__isnull=False).exists()
