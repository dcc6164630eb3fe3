"""Endpoints that answer nonsense, without end, or not at all harm nobody but themselves."""

from typing import Any

import pytest

from delivery.http.transfer import MAX_ANSWER_BYTES
from delivery.models import Attempt, Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import Subscription
from tests.driving import (
    Worker,
    attempts_of,
    hurry_until_done,
    publish_numbered,
    statuses,
    wait_until_done,
    wait_until_held,
    working,
)
from tests.factories import subscription
from tests.receiver import Behaviour, Receiver, answer, dripping, endless, hang, raw, wait_until

NOT_TEXT = b"\xff\xfe\x00\xc3\x28"

ANSWERED = {
    "no reason": (raw(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), 200),
    "a reason that is no text": (raw(b"HTTP/1.1 200 " + NOT_TEXT[:2] + b"\r\nContent-Length: 0\r\n\r\n"), 200),
    "a reason of 50 KB": (raw(b"HTTP/1.1 200 " + b"x" * 50_000 + b"\r\nContent-Length: 0\r\n\r\n"), 200),
    "zero bytes in the body": (answer(404, b"a\x00b" + NOT_TEXT), 404),
    "a location that is no text": (raw(b"HTTP/1.1 302 x\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n"), 302),
    "a date no calendar has": (answer(400, Retry_After="1 Jan 99999999999999999999 0:0:0"), 400),
    "an interim answer first": (raw(b"HTTP/1.1 103 -\r\n\r\nHTTP/1.1 204 -\r\n\r\n"), 204),
    "a body without end": (endless, 200),
    "HTTP/1.0": (raw(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"), 200),
    "an encoding nobody knows": (raw(b"HTTP/1.1 200 -\r\nContent-Encoding: \xff\r\nContent-Length: 0\r\n\r\n"), 200),
    "a transfer encoding that is no text": (raw(b"HTTP/1.1 200 -\r\nTransfer-Encoding: \xff\xfe\x80\r\n\r\n"), 200),
    "a cookie": (answer(200, Set_Cookie="a=b"), 200),
}
UNANSWERED = {
    "zero bytes": raw(b"\x00" * 100),
    "a status that is no number": raw(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a status of four digits": raw(b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
    "a version that is none": raw(b"HTTP/9.9 200 OK\r\n\r\n"),
    "a zero byte in a header": raw(b"HTTP/1.1 200 -\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n"),
    "a negative length": raw(b"HTTP/1.1 200 -\r\nContent-Length: -1\r\n\r\n"),
    "two lengths": raw(b"HTTP/1.1 200 -\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
    "headers without end": raw(b"HTTP/1.1 200 -\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n"),
    "only an interim answer": raw(b"HTTP/1.1 103 -\r\n\r\n"),
    "a TLS alert": raw(b"\x15\x03\x01\x00\x02\x02\x46"),
}


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    return subscription(endpoint=receiver.url("/a"))


@pytest.mark.parametrize(("strange", "status"), ANSWERED.values(), ids=ANSWERED.keys())
def test_a_strange_answer_counts_by_its_status(
    receiver: Receiver, worker: Worker, wanted: Subscription, strange: Behaviour, status: int
) -> None:
    receiver.on("/a", strange, answer())
    publish_numbered(wanted.event_type, 2)
    wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1"]
    assert attempts_of(receiver.log[0].delivery_id) == [(1, status)]


@pytest.mark.behaviour("4.8")
@pytest.mark.parametrize("nonsense", UNANSWERED.values(), ids=UNANSWERED.keys())
def test_nonsense_is_no_answer(receiver: Receiver, worker: Worker, wanted: Subscription, nonsense: Behaviour) -> None:
    receiver.on("/a", nonsense, answer())
    publish_numbered(wanted.event_type, 2)
    hurry_until_done()
    assert receiver.bodies("/a") == [b"0", b"0", b"1"]
    assert attempts_of(receiver.log[0].delivery_id) == [(1, None), (2, 200)]
    assert Attempt.objects.earliest("id").error


@pytest.mark.behaviour("4.8", "4.11")
@pytest.mark.parametrize("slow", [hang, dripping(0.1)], ids=["hang", "drip"])
def test_a_request_ends_at_its_deadline_and_the_next_try_is_flagged(
    receiver: Receiver, wanted: Subscription, slow: Behaviour, long_pauses: None
) -> None:
    other = subscription(endpoint=receiver.url("/other"))
    receiver.on("/a", slow, answer())
    with working(deadline_seconds=2.0):
        publish_numbered(wanted.event_type, 2)
        publish_numbered(other.event_type, 1)
        line = wait_until_held(wanted.subscriber)
        assert (line.failures, Attempt.objects.get(status_code=None).duration_ms >= 2000) == (1, True)
        hurry_until_done()
    (beside,) = receiver.of("/other")
    assert beside.begun < (receiver.of("/a")[0].ended or 0.0), "while the slow one was waited for"
    assert receiver.bodies("/a") == [b"0", b"0", b"1"]
    assert [request.is_flagged for request in receiver.of("/a")] == [False, True, False]
    assert [request.sequence for request in receiver.of("/a")] == [1, 1, 2]


def test_no_more_of_an_answer_is_read_than_its_cap(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    receiver.on("/a", endless)
    publish_numbered(wanted.event_type, 1)
    wait_until_done()
    assert len(Attempt.objects.get().answer_excerpt) == 1024 < MAX_ANSWER_BYTES
    wait_until(lambda: receiver.log[0].ended)


@pytest.mark.parametrize(
    "fields",
    [{"endpoint": "not a URL"}, {"endpoint": "http://é/"}, {"signing_secret": "whsec_!"}],
    ids=["endpoint", "host", "secret"],
)
def test_a_destination_that_cannot_be_used_stops_its_own_line_only(
    receiver: Receiver, worker: Worker, wanted: Subscription, fields: dict[str, Any]
) -> None:
    unusable = subscription(**fields)
    publish_numbered(unusable.event_type, 2)
    line = wait_until_held(unusable.subscriber)
    publish_numbered(wanted.event_type, 1)
    wait_until(lambda: statuses(wanted) == [DeliveryStatus.DELIVERED])
    assert (statuses(unusable), line.last_sequence) == ([DeliveryStatus.PENDING] * 2, 0)
    assert not Delivery.objects.filter(subscription=unusable, sequence__isnull=False).exists()
