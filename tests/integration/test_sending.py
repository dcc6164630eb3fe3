"""What an answer makes of its delivery, and of the line behind it (behaviour 4.3 to 4.8)."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models.functions import Now

from delivery.models import Attempt, Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import Subscriber, Subscription
from tests.driving import (
    Worker,
    attempts_of,
    hurry_until_done,
    line_of,
    make_due,
    publish_numbered,
    statuses,
    wait_until_done,
    wait_until_held,
    working,
)
from tests.factories import subscription
from tests.receiver import Behaviour, Receiver, answer, close, raw, reset, wait_until

DELIVERED, REJECTED, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.REJECTED, DeliveryStatus.PENDING
NOT_SUPPORTED = DeliveryStatus.NOT_SUPPORTED
LONGER = 30.0
"""So many times as long are the pauses of `long_pauses`."""


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    return subscription(endpoint=receiver.url("/a"))


@pytest.mark.behaviour("4.3")
@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_success_delivers(receiver: Receiver, worker: Worker, wanted: Subscription, status: int) -> None:
    receiver.on("/a", answer(status))
    publish_numbered(wanted.event_type, 1)
    wait_until_done()
    assert statuses(wanted) == [DELIVERED]
    assert attempts_of(Delivery.objects.get().pk) == [(1, status)]


@pytest.mark.behaviour("4.4")
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_neither_followed_nor_tried_again(
    receiver: Receiver, worker: Worker, wanted: Subscription, status: int
) -> None:
    receiver.on("/a", answer(status, Location=receiver.url("/elsewhere")), answer())
    publish_numbered(wanted.event_type, 2)
    wait_until_done()
    assert statuses(wanted) == [NOT_SUPPORTED, DELIVERED]
    assert [request.path for request in receiver.log] == ["/a", "/a"]


@pytest.mark.behaviour("4.5")
@pytest.mark.parametrize("status", [400, 401, 404, 408, 410, 425, 429, 499])
def test_a_client_error_rejects_and_the_next_goes(
    receiver: Receiver, worker: Worker, wanted: Subscription, status: int
) -> None:
    receiver.on("/a", answer(status, b"no, thanks"), answer())
    publish_numbered(wanted.event_type, 2)
    wait_until_done()
    assert statuses(wanted) == [REJECTED, DELIVERED]
    assert receiver.bodies("/a") == [b"0", b"1"]


def test_an_attempt_keeps_what_was_answered(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    receiver.on("/a", answer(404, b"x" * 2000, reason=b"Nobody", X_Who="me"))
    publish_numbered(wanted.event_type, 1)
    wait_until_done()
    attempt = Attempt.objects.get()
    assert (attempt.status_code, attempt.error, bytes(attempt.answer_excerpt)) == (404, "", b"x" * 1024)
    assert bytes(attempt.answer_headers) == b"HTTP/1.1 404 Nobody\r\nContent-Length: 2000\r\nX-Who: me\r\n\r\n"
    assert Delivery.objects.get().reason == "answered 404"


@pytest.mark.behaviour("4.6")
@pytest.mark.parametrize("status", [500, 501, 502, 504, 599, 600, 999])
def test_a_server_error_sets_aside_and_the_next_goes(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None, status: int
) -> None:
    receiver.on("/a", answer(status), answer())
    publish_numbered(wanted.event_type, 3)
    wait_until(lambda: statuses(wanted) == [PENDING, DELIVERED, DELIVERED])
    hurry_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2", b"0"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3, 1]


@pytest.mark.behaviour("4.6")
def test_the_pause_of_what_is_set_aside_doubles(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None
) -> None:
    receiver.on("/a", answer(500))
    publish_numbered(wanted.event_type, 1)
    for tries, pause in enumerate([1, 2, 4, 8, 16, 32, 60, 60], start=1):
        wait_until(lambda: Delivery.objects.get().times_set_aside == tries)  # noqa: B023 - called at once
        check_pause(Delivery.objects.get().due_at, LONGER * pause, LONGER * pause)
        make_due()


def check_pause(due_at: datetime | None, least: float, most: float) -> None:
    """Check that a pause, which began between the last request and now, has so many seconds."""
    assert due_at
    assert timedelta(seconds=least) <= due_at - Attempt.objects.latest("id").started_at
    assert due_at - datetime.now(UTC) <= timedelta(seconds=most)


@pytest.mark.behaviour("4.2", "4.6")
@pytest.mark.parametrize("queued", [1, 2, 500])
def test_neither_what_is_stuck_nor_what_is_new_starves_the_other(
    receiver: Receiver, wanted: Subscription, queued: int
) -> None:
    Subscriber.objects.filter(pk=wanted.subscriber.pk).update(max_queued_to_send=queued)
    stuck = subscription(subscriber=wanted.subscriber, endpoint=receiver.url("/stuck"))
    receiver.on("/stuck", answer(500))
    publish_numbered(stuck.event_type, 200)
    Delivery.objects.update(due_at=Now(), times_set_aside=5)  # due again now, and then after half a minute
    publish_numbered(wanted.event_type, 50)
    with working():
        wait_until(lambda: len(receiver.log) >= 130)
    assert [request.path for request in receiver.log[:100]] == ["/a", "/stuck"] * 50
    assert {request.path for request in receiver.log[100:]} == {"/stuck"}
    assert receiver.bodies("/stuck")[:80] == [b"%d" % number for number in range(80)]


@pytest.mark.behaviour("4.7")
def test_service_unavailable_holds_the_line(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None
) -> None:
    receiver.on("/a", answer(503), answer(503), answer(503), answer())
    publish_numbered(wanted.event_type, 2)
    for tries in range(1, 4):
        wait_until(lambda: len(receiver.log) == tries == line_of(wanted.subscriber).failures)  # noqa: B023 - at once
        make_due()
    hurry_until_done()
    assert receiver.bodies("/a") == [b"0", b"0", b"0", b"0", b"1"]
    assert [request.sequence for request in receiver.log] == [1, 1, 1, 1, 2]
    assert not any(request.is_flagged for request in receiver.log)
    assert [request.headers["webhook-attempt"] for request in receiver.log] == ["1", "2", "3", "4", "1"]


@pytest.mark.behaviour("4.7")
@pytest.mark.parametrize(("asked", "seconds"), [("120", 120), ("86400", 300), ("0", LONGER), ("soon", LONGER)])
def test_retry_after_is_honoured_up_to_a_cap(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None, asked: str, seconds: float
) -> None:
    receiver.on("/a", answer(503, Retry_After=asked), answer())
    publish_numbered(wanted.event_type, 1)
    check_pause(wait_until_held(wanted.subscriber).due_at, seconds, seconds)


@pytest.mark.behaviour("4.8")
def test_a_refused_connection_holds_the_line_until_it_is_reachable(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None
) -> None:
    receiver.close_port()
    publish_numbered(wanted.event_type, 3)
    line = wait_until_held(wanted.subscriber)
    assert (line.failures, line.last_sequence, statuses(wanted)) == (1, 0, [PENDING, PENDING, PENDING])
    assert "no answer" in line.held_reason
    receiver.open_port()
    hurry_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3]
    assert not any(request.is_flagged for request in receiver.log)
    wait_until(lambda: line_of(wanted.subscriber).held_since is None)


@pytest.mark.behaviour("4.8")
def test_the_pause_of_a_line_grows_and_starts_anew_after_success(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None
) -> None:
    receiver.close_port()
    publish_numbered(wanted.event_type, 1)
    for tries, longest in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60], start=1):
        check_hold(wanted, tries, LONGER * longest)
    receiver.open_port()
    make_due()
    wait_until_done()
    receiver.close_port()
    publish_numbered(wanted.event_type, 1)
    check_hold(wanted, 1, LONGER)


def check_hold(wanted: Subscription, tries: int, longest: float) -> None:
    """Wait until the line is held for the `tries`-th time; check its pause, and end it."""
    wait_until(lambda: line_of(wanted.subscriber).failures == tries)
    check_pause(line_of(wanted.subscriber).due_at, max(LONGER, 0.8 * longest), longest)
    make_due()


@pytest.mark.behaviour("4.8", "4.11")
@pytest.mark.parametrize(
    "broken",
    [
        close,
        reset,
        raw(b"good morning\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        raw(b"\x00\xff\xfe"),
    ],
    ids=["close", "reset", "no HTTP", "half a body", "broken chunks", "zero bytes"],
)
def test_an_incomplete_answer_holds_the_line_and_flags_the_next_try(
    receiver: Receiver, worker: Worker, wanted: Subscription, broken: Behaviour
) -> None:
    receiver.on("/a", broken, answer())
    publish_numbered(wanted.event_type, 2)
    hurry_until_done()
    assert receiver.bodies("/a") == [b"0", b"0", b"1"]
    assert [request.is_flagged for request in receiver.log] == [False, True, False]
    assert len({request.headers["webhook-id"] for request in receiver.log[:2]}) == 1
    assert attempts_of(receiver.log[0].delivery_id) == [(1, None), (2, 200)]


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("broken", [close, reset], ids=["close", "reset"])
def test_a_kept_connection_that_breaks_is_not_sent_on_again_unflagged(
    receiver: Receiver, worker: Worker, wanted: Subscription, broken: Behaviour
) -> None:
    receiver.on("/a", answer(), broken, answer())
    publish_numbered(wanted.event_type, 3)
    hurry_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"1", b"2"]
    assert [request.is_flagged for request in receiver.log] == [False, False, True, False]
    assert attempts_of(receiver.log[1].delivery_id) == [(1, None), (2, 200)]
