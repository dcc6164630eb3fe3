"""The reply to a callback on its way to the original URL: a line of its own, until it is taken (behaviour 6.8)."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client

from delivery.api.deliveries import AttemptSerializer
from delivery.dispatch.claim import end_leases_of
from delivery.dispatch.sweep import due_by_queue, still_due
from delivery.maintenance.expiry import expire_replies, remove_ended_lines
from delivery.models import Callback, Delivery, Lane, Line, Message
from delivery.operations import cancel_deliveries_of
from delivery.status.callback_status import CallbackState
from delivery.statuses import FINAL, DeliveryStatus
from delivery.worker.settle import settle
from subscriptions.models import EventType, Publisher, Subscription
from tests.calling_back import JOB, RESULT, called_back, job_type, post
from tests.driving import Worker, attempts_of, begin_and_vanish, expire_lease, make_due, settlement, working
from tests.publishing import publish
from tests.receiver import Behaviour, Receiver, answer, close, reset, wait_until

THERE = "/done"


@pytest.fixture
def job(storage: None, publisher: Publisher) -> EventType:
    return job_type()


@pytest.fixture
def callback(client: Client, job: EventType, receiver: Receiver) -> Callback:
    return a_callback(client, receiver)


def a_callback(client: Client, receiver: Receiver) -> Callback:
    """Return a callback to the receiver, whose job is nobody's work any more."""
    made = called_back(client, receiver.url(THERE))
    cancel_deliveries_of(Subscription.objects.get().pk, reason="done")
    return made


def reply_of(callback: Callback) -> Delivery:
    callback.refresh_from_db()
    return Delivery.objects.get(pk=callback.delivery_id or 0)


def line_of(callback: Callback) -> Line:
    return Line.objects.get(callback=callback)


def wait_until_ended(callback: Callback) -> Delivery:
    """Wait until the reply's delivery has ended, cutting every pause short; return it."""

    def ended() -> bool:
        make_due()
        return reply_of(callback).status in FINAL

    wait_until(ended, saying=lambda: reply_of(callback).__dict__)
    return reply_of(callback)


@pytest.mark.behaviour("6.8")
def test_a_reply_is_posted_as_it_came(callback: Callback, receiver: Receiver, worker: Worker) -> None:
    reply_id = post(callback, X_Trace="7").json()["id"]
    ended = wait_until_ended(callback)
    (request,) = receiver.of(THERE)
    assert (request.method, request.body) == ("POST", RESULT)
    named = {name: request.headers[name] for name in ("content-type", "x-trace", "webhook-id", "webhook-attempt")}
    assert named == {
        "content-type": "application/json",
        "x-trace": "7",
        "webhook-id": f"dlv_{ended.pk}",
        "webhook-attempt": "1",
    }
    assert (request.headers["broker-event-type"], request.headers["broker-message-id"]) == (JOB, str(reply_id))
    assert not request.headers.keys() & {"webhook-signature", "webhook-sequence", "webhook-possible-duplicate"}
    assert (ended.status, ended.sequence) == (DeliveryStatus.DELIVERED, None)
    assert attempts_of(ended.pk) == [(1, 200)]


def test_its_line_is_at_rest_afterwards_and_goes(callback: Callback, receiver: Receiver, worker: Worker) -> None:
    post(callback)
    wait_until_ended(callback)
    wait_until(lambda: remove_ended_lines() == 1)
    assert not Line.objects.filter(lane=Lane.CALLBACK).exists()


@pytest.mark.behaviour("6.8")
@pytest.mark.parametrize(
    ("status", "becomes"),
    [(204, "DELIVERED"), (302, "3xxNOTSUPPORTED"), (404, "REJECTED"), (429, "REJECTED"), (410, "REJECTED")],
)
def test_what_ends_a_reply(
    callback: Callback, receiver: Receiver, worker: Worker, client: Client, status: int, becomes: str
) -> None:
    receiver.on(THERE, answer(status), answer(200))
    post(callback)
    ended = wait_until_ended(callback)
    assert (ended.status, attempts_of(ended.pk)) == (becomes, [(1, status)])
    state = client.get(f"/api/v1/callbacks/{callback.pk}").json()["state"]
    assert state == (CallbackState.DELIVERED if becomes == "DELIVERED" else CallbackState.REFUSED)


@pytest.mark.behaviour("6.8")
@pytest.mark.parametrize("behaviour", [answer(500), answer(503), answer(599), answer(600), close, reset])
def test_whatever_else_happens_it_is_tried_again(
    callback: Callback, receiver: Receiver, worker: Worker, behaviour: Behaviour
) -> None:
    receiver.on(THERE, behaviour, behaviour, answer(200))
    post(callback)
    ended = wait_until_ended(callback)
    assert (ended.status, ended.attempts) == (DeliveryStatus.DELIVERED, 3)
    requests = receiver.of(THERE)
    assert {request.headers["webhook-id"] for request in requests} == {f"dlv_{ended.pk}"}
    assert [request.headers["webhook-attempt"] for request in requests] == ["1", "2", "3"]


@pytest.mark.behaviour("6.8")
def test_a_reply_to_an_unreachable_url_waits_ever_longer_and_is_visible(
    callback: Callback, receiver: Receiver, worker: Worker, client: Client
) -> None:
    receiver.close_port()
    post(callback)
    wait_until(lambda: line_of(callback).failures >= 2)
    waiting = client.get(f"/api/v1/callbacks/{callback.pk}").json()
    assert waiting["state"] == CallbackState.REPLIED
    assert waiting["delivery"]["status"] == "PENDING"
    assert waiting["delivery"]["attempts"] >= 2
    assert "no answer" in waiting["delivery"]["reason"]
    assert {"number", "error"} <= waiting["delivery"]["history"][0].keys() == {*AttemptSerializer.Meta.fields}
    receiver.open_port()
    assert wait_until_ended(callback).status == DeliveryStatus.DELIVERED
    assert client.get(f"/api/v1/callbacks/{callback.pk}").json()["state"] == CallbackState.DELIVERED


@pytest.mark.behaviour("6.8")
def test_one_unreachable_url_holds_up_no_other(
    client: Client, callback: Callback, receiver: Receiver, worker: Worker
) -> None:
    gate = receiver.gate(THERE)
    other = a_callback(client, receiver)
    post(callback)
    wait_until(lambda: receiver.of(THERE))
    post(other, b"second")
    assert wait_until_ended(other).status == DeliveryStatus.DELIVERED
    gate.open()
    assert wait_until_ended(callback).status == DeliveryStatus.DELIVERED


@pytest.mark.behaviour("6.8")
def test_a_reply_under_way_when_a_worker_vanished_is_sent_again_and_flagged(
    callback: Callback, receiver: Receiver
) -> None:
    post(callback)
    begin_and_vanish(line_of(callback))
    assert reply_of(callback).status == DeliveryStatus.IN_FLIGHT
    assert due_by_queue() == {}
    expire_lease(line_of(callback))
    assert due_by_queue() == {"callbacks": [line_of(callback).pk]}
    with working():
        ended = wait_until_ended(callback)
    (request,) = receiver.of(THERE)
    assert request.is_flagged
    assert (request.delivery_id, ended.status) == (ended.pk, DeliveryStatus.DELIVERED)


def test_a_reply_whose_end_was_recorded_is_not_sent_again(callback: Callback, receiver: Receiver) -> None:
    post(callback)
    driven, delivery, _ = begin_and_vanish(line_of(callback))
    settle({driven.id: driven.claim.epoch}, settlements=[settlement(driven, delivery)])
    expire_lease(line_of(callback))
    with working():
        wait_until(lambda: remove_ended_lines() == 1)
    assert receiver.of(THERE) == []


@pytest.mark.behaviour("6.8")
def test_no_reply_is_lost_while_workers_come_and_go(client: Client, callback: Callback, receiver: Receiver) -> None:
    callbacks = [callback, *(a_callback(client, receiver) for _ in range(19))]
    for number, one in enumerate(callbacks):
        post(one, b"%d" % number)
        if number % 2:
            begin_and_vanish(line_of(one))
    assert end_leases_of("vanished") == 10
    for some in (1, 8, 15):
        with working():
            wait_until(lambda some=some: len(receiver.of(THERE)) >= some)  # type: ignore[misc]
    with working():
        assert {wait_until_ended(one).status for one in callbacks} == {DeliveryStatus.DELIVERED}
    assert {int(body) for body in receiver.bodies(THERE)} == {*range(20)}
    repeated = [one for one in receiver.of(THERE) if one.is_flagged]
    assert len(receiver.of(THERE)) == 20
    assert len(repeated) == 10


def test_a_reply_that_expired_while_it_waited_is_not_sent(
    callback: Callback, receiver: Receiver, worker: Worker
) -> None:
    receiver.close_port()
    post(callback)
    wait_until(lambda: line_of(callback).held_since)
    Callback.objects.update(expires_at=Now())
    wait_until(expire_replies)
    receiver.open_port()
    make_due()
    assert reply_of(callback).status == DeliveryStatus.EXPIRED
    wait_until(lambda: remove_ended_lines() == 1)
    assert receiver.of(THERE) == []


def test_a_reply_is_found_when_its_wake_was_lost_and_once_its_pause_is_over(callback: Callback) -> None:
    post(callback)
    line = line_of(callback)
    assert due_by_queue() == {"callbacks": [line.pk]}
    assert still_due([line.pk]) == [line.pk]
    Line.objects.filter(pk=line.pk).update(due_at=Now() + timedelta(hours=1))
    assert due_by_queue() == {}
    assert still_due([line.pk]) == []
    make_due()
    assert due_by_queue() == {"callbacks": [line.pk]}


def test_a_reply_is_no_published_message(callback: Callback, client: Client) -> None:
    reply_id = post(callback).json()["id"]
    listed = [one["id"] for one in client.get("/api/v1/messages").json()["items"]]
    assert listed == [callback.message_id]
    assert client.get(f"/api/v1/messages/{reply_id}").json()["answers"] == callback.message_id
    assert publish(client, b"{}", event=JOB).status_code == 202
    assert Message.objects.count() == 3
