"""A reply on its way to the original URL (contract 6.8); `test_expiry` has its days."""

import os
from datetime import timedelta

import orjson
import pytest
from django.db.models.functions import Now
from django.test import Client

from broker_project.stack.load.receiver import Behaviour, Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.api.deliveries import AttemptSerializer
from delivery.dispatch.claim import end_leases_of
from delivery.dispatch.sweep import DueLine, due_lines
from delivery.maintenance import expiry
from delivery.maintenance.expiry import expire_overdue, remove_ended_lines
from delivery.models import Callback, ClockJump, Delivery, Hold, Line
from delivery.operations import cancel, cancel_deliveries_of
from delivery.status.callback_status import CallbackState
from delivery.statuses import FINAL, DeliveryStatus
from delivery.worker import leases
from subscriptions.models import EventType, Publisher, Subscription
from tests.support import broker, factories
from tests.support.api import (
    JOB_EVENT,
    RESULT_BODY,
    client_of,
    client_of_admin,
    create_callback,
    job_type,
    post_reply,
)
from tests.support.behaviours import close, kill_sender, noting, reset
from tests.support.broker import Worker
from tests.support.callbacks import DAY, KEPT_DAYS, THERE, grow_older, resubmit, state_of

POISON = "its request ended the process that sent nothing else (SIGKILL)"


@pytest.fixture
def pending(storage: None, publisher: Publisher, client: Client, receiver: Receiver) -> Callback:
    job_type()
    return a_callback(client, receiver)


def a_callback(client: Client, receiver: Receiver) -> Callback:
    """Return a callback to the receiver, whose job is cancelled."""
    made = create_callback(client, receiver.url(THERE))
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
        broker.make_due()
        return reply_of(callback).status in FINAL

    wait_until(ended, saying=lambda: reply_of(callback).__dict__)
    return reply_of(callback)


@pytest.mark.behaviour("6.8")
def test_a_reply_is_forwarded_unchanged(pending: Callback, receiver: Receiver, worker: Worker) -> None:
    reply_id = post_reply(pending, X_Trace="7").json()["id"]
    ended = wait_until_ended(pending)
    (request,) = receiver.of(THERE)
    assert (request.method, request.body) == ("POST", RESULT_BODY)
    named = {name: request.headers[name] for name in ("content-type", "x-trace", "webhook-id", "webhook-attempt")}
    ours = {"webhook-id": f"dlv_{ended.pk}", "webhook-attempt": "1"}
    assert named == {"content-type": "application/json", "x-trace": "7", **ours}
    assert (request.headers["broker-event-type"], request.headers["broker-message-id"]) == (JOB_EVENT, str(reply_id))
    assert not request.headers.keys() & {"webhook-signature", "webhook-sequence", "webhook-possible-duplicate"}
    assert (ended.status, ended.sequence) == (DeliveryStatus.DELIVERED, None)
    assert broker.attempts_of(ended.pk) == [(1, 200)]


@pytest.mark.behaviour("6.8")
@pytest.mark.parametrize(
    ("status", "becomes"),
    [(204, "DELIVERED"), (302, "3xxNOTSUPPORTED"), (404, "REJECTED"), (429, "REJECTED"), (410, "REJECTED")],
)
def test_answers_that_end_a_reply(
    pending: Callback, receiver: Receiver, worker: Worker, client: Client, status: int, becomes: str
) -> None:
    receiver.on(THERE, answer(status), answer(200))
    post_reply(pending)
    ended = wait_until_ended(pending)
    assert (ended.status, broker.attempts_of(ended.pk)) == (becomes, [(1, status)])
    state = client.get(f"/api/v1/callbacks/{pending.pk}").json()["state"]
    assert state == (CallbackState.DELIVERED if becomes == "DELIVERED" else CallbackState.REFUSED)


def announced_end(receiver: Receiver) -> tuple[str, int, int, str]:
    """Wait for the event about a reply that has ended; return its type, and the delivery, callback and reason in it."""
    wait_until(lambda: receiver.of("/ops"))
    (event,) = receiver.of("/ops")
    says = orjson.loads(event.body)
    return event.headers["broker-event-type"], says["delivery"], says["callback"], says["reason"]


@pytest.mark.behaviour("5.7", "6.8")
@pytest.mark.parametrize("has_type", [True, False])
def test_a_refused_reply_is_announced(pending: Callback, receiver: Receiver, worker: Worker, has_type: bool) -> None:
    if not has_type:
        Subscription.objects.all().delete()
        EventType.objects.filter(name=JOB_EVENT).delete()
    factories.subscription(endpoint=receiver.url("/ops"), event_pattern="Broker.Delivery.*")
    receiver.on(THERE, answer(404))
    post_reply(pending)
    refused = wait_until_ended(pending)
    assert announced_end(receiver) == ("Broker.Delivery.Rejected", refused.pk, pending.pk, "answered 404")


@pytest.mark.behaviour("6.8", "5.8")
@pytest.mark.parametrize(("status", "reason"), [(401, "REJECTED"), (302, "3xxNOTSUPPORTED")])
def test_a_refused_reply_is_a_dead_letter_that_can_be_resubmitted(
    pending: Callback, receiver: Receiver, worker: Worker, status: int, reason: str
) -> None:
    receiver.on(THERE, answer(status), answer(status), answer(200))
    reply_id = post_reply(pending, X_Trace="7").json()["id"]
    dead = [wait_until_ended(pending)]
    for _ in range(2):
        (listed, *_) = client_of().get(f"/api/v1/dead-letters?reason={reason}").json()["items"]
        assert (listed["id"], state_of(pending)) == (dead[-1].pk, "REFUSED")
        code, made = resubmit(dead[-1])
        assert (code, made["resubmit_of"], made["message_id"]) == (201, dead[-1].pk, reply_id)
        dead.append(wait_until_ended(pending))
    assert [one.status for one in dead] == [reason, reason, "DELIVERED"]
    assert state_of(pending) == "DELIVERED"
    refused = client_of().get("/api/v1/callbacks?state=REFUSED").json()["items"]
    assert refused == [], "its first deliveries were refused, its last was not"
    sent = receiver.of(THERE)
    assert [(one.body, one.headers["x-trace"]) for one in sent] == [(RESULT_BODY, "7")] * 3
    assert [one.delivery_id for one in sent] == [one.pk for one in dead]


@pytest.mark.behaviour("6.8")
def test_a_reply_is_not_sent_again_once_it_was_taken_or_resubmitted(pending: Callback, receiver: Receiver) -> None:
    receiver.on(THERE, answer(404), answer(200))
    post_reply(pending)
    broker.run_worker_until_done()
    dead = reply_of(pending)
    code, refused = resubmit(dead, body="{}")
    assert (code, "leave the body out" in refused["detail"]) == (409, True)
    assert resubmit(dead)[0] == 201
    for resubmitted, word in ((dead, "resubmitted already"), (reply_of(pending), "It is PENDING")):
        code, refused = resubmit(resubmitted)
        assert (code, word in refused["detail"]) == (409, True)
    broker.run_worker_until_done()
    code, refused = resubmit(reply_of(pending))
    assert (code, "gets once" in refused["detail"]) == (409, True)
    assert len(receiver.of(THERE)) == 2


@pytest.mark.behaviour("6.8")
def test_a_resubmitted_reply_has_fourteen_days_again(pending: Callback, receiver: Receiver) -> None:
    receiver.on(THERE, answer(404))
    post_reply(pending)
    broker.run_worker_until_done()
    grow_older(KEPT_DAYS)
    assert resubmit(reply_of(pending))[0] == 201
    grow_older(KEPT_DAYS - 1)
    assert (expire_overdue(), resubmit(reply_of(pending))[0]) == (0, 409)
    grow_older(1)
    assert (expire_overdue(), resubmit(reply_of(pending))[0]) == (1, 201)


@pytest.mark.behaviour("6.8")
def test_the_line_of_a_resubmitted_reply_is_not_deleted(
    pending: Callback, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.on(THERE, answer(404), answer(200))
    post_reply(pending)
    broker.run_worker_until_done()
    with monkeypatch.context() as before_the_resubmission:
        before_the_resubmission.setattr(expiry, "ENDED_LINES", f"SELECT {line_of(pending).pk} WHERE %s = 0")
        assert resubmit(reply_of(pending))[0] == 201
        assert remove_ended_lines() == 0
    broker.run_worker_until_done()
    assert (reply_of(pending).status, remove_ended_lines()) == (DeliveryStatus.DELIVERED, 1)


def test_a_reply_whose_line_is_gone_is_resubmitted_in_the_admin(pending: Callback, receiver: Receiver) -> None:
    receiver.on(THERE, answer(404), answer(200))
    post_reply(pending)
    broker.run_worker_until_done()
    dead, admin = reply_of(pending), client_of_admin()
    assert remove_ended_lines() == 1
    page = f"/admin/delivery/delivery/{dead.pk}/resubmit/"
    assert "the reply to a callback" in admin.get(page).content.decode()
    admin.post(page, {"body": ""})
    broker.run_worker_until_done()
    assert reply_of(pending).status == DeliveryStatus.DELIVERED
    shown = admin.get(f"/admin/delivery/delivery/{dead.pk}/change/").content.decode()
    assert f"callback {pending.pk}" in admin.get("/admin/delivery/deadletter/").content.decode()
    assert str(reply_of(pending).pk) in shown


@pytest.mark.behaviour("6.8")
@pytest.mark.parametrize("behaviour", [answer(500), answer(503), answer(599), answer(600), close, reset])
def test_other_answers_are_retried(pending: Callback, receiver: Receiver, worker: Worker, behaviour: Behaviour) -> None:
    receiver.on(THERE, behaviour, behaviour, answer(200))
    post_reply(pending)
    ended = wait_until_ended(pending)
    assert (ended.status, ended.attempts) == (DeliveryStatus.DELIVERED, 3)
    requests = receiver.of(THERE)
    assert {request.headers["webhook-id"] for request in requests} == {f"dlv_{ended.pk}"}
    assert [request.headers["webhook-attempt"] for request in requests] == ["1", "2", "3"]


@pytest.mark.behaviour("6.8")
def test_unreachable_url_waits(pending: Callback, receiver: Receiver, worker: Worker, client: Client) -> None:
    receiver.close_port()
    post_reply(pending)
    wait_until(Hold.objects.filter(line__callback=pending, failures__gte=2).exists)
    waiting = client.get(f"/api/v1/callbacks/{pending.pk}").json()
    assert waiting["state"] == CallbackState.REPLIED
    assert waiting["delivery"]["status"] == "PENDING"
    assert waiting["delivery"]["attempts"] >= 2
    assert "no answer" in waiting["delivery"]["reason"]
    assert {"number", "error"} <= waiting["delivery"]["history"][0].keys() == {*AttemptSerializer.Meta.fields}
    receiver.open_port()
    assert wait_until_ended(pending).status == DeliveryStatus.DELIVERED
    assert client.get(f"/api/v1/callbacks/{pending.pk}").json()["state"] == CallbackState.DELIVERED


@pytest.mark.behaviour("6.8")
def test_a_cancelled_reply_is_on_its_way_no_more(pending: Callback, client: Client) -> None:
    post_reply(pending)
    cancelled = reply_of(pending).pk
    assert cancel([cancelled], reason="by hand") == [cancelled]
    found = {state: len(client.get(f"/api/v1/callbacks?state={state}").json()["items"]) for state in CallbackState}
    assert {state for state, number in found.items() if number} == {CallbackState.CANCELLED}
    assert client.get(f"/api/v1/callbacks/{pending.pk}").json()["state"] == CallbackState.CANCELLED


@pytest.mark.behaviour("6.8", "5.8")
@pytest.mark.parametrize("has_ended", [True, False])
def test_a_cancelled_reply_can_be_resubmitted(pending: Callback, receiver: Receiver, has_ended: bool) -> None:
    post_reply(pending)
    cancelled = reply_of(pending)
    cancel([cancelled.pk], reason="by hand")
    if has_ended:
        with broker.running_worker():
            wait_until(lambda: not line_of(pending).holds.exists())
        assert remove_ended_lines() == 1
    assert "resubmit/" in client_of_admin().get(f"/admin/delivery/delivery/{cancelled.pk}/change/").content.decode()
    assert resubmit(cancelled)[0] == 201
    broker.run_worker_until_done()
    assert (state_of(pending), receiver.bodies(THERE)) == (CallbackState.DELIVERED, [RESULT_BODY])
    code, refused = resubmit(cancelled)
    assert (code, "resubmitted already" in refused["detail"]) == (409, True)


@pytest.mark.behaviour("5.12", "6.8")
def test_a_cancelled_reply_can_be_resubmitted_from_the_list(pending: Callback) -> None:
    post_reply(pending)
    cancelled = reply_of(pending)
    cancel([cancelled.pk], reason="by hand")
    chosen = {"action": "resubmit_chosen", "_selected_action": [cancelled.pk], "confirmed": "yes"}
    client_of_admin().post("/admin/delivery/delivery/", chosen)
    assert (reply_of(pending).resubmit_of, state_of(pending)) == (cancelled.pk, "REPLIED")


@pytest.mark.behaviour("6.8")
def test_urls_are_independent(client: Client, pending: Callback, receiver: Receiver, worker: Worker) -> None:
    gate = receiver.gate(THERE)
    other = a_callback(client, receiver)
    post_reply(pending)
    wait_until(lambda: receiver.of(THERE))
    post_reply(other, b"second")
    assert wait_until_ended(other).status == DeliveryStatus.DELIVERED
    gate.open()
    assert wait_until_ended(pending).status == DeliveryStatus.DELIVERED


@pytest.mark.behaviour("6.8")
def test_a_crash_in_flight_repeats_and_flags_the_reply(pending: Callback, receiver: Receiver) -> None:
    post_reply(pending)
    crashed, *_ = broker.crash_while_sending(line_of(pending))
    assert reply_of(pending).status == DeliveryStatus.IN_FLIGHT
    assert due_lines() == []
    broker.expire_lease(line_of(pending))
    assert due_lines() == [DueLine(crashed.id, "callbacks", crashed.claim.epoch, "vanished")]
    with broker.running_worker():
        ended = wait_until_ended(pending)
    (request,) = receiver.of(THERE)
    assert request.is_flagged
    assert (request.delivery_id, ended.status) == (ended.pk, DeliveryStatus.DELIVERED)


@pytest.mark.behaviour("4.19", "5.7", "6.8")
def test_a_reply_that_ends_the_process_that_sends_it_is_a_dead_letter(pending: Callback, receiver: Receiver) -> None:
    senders: list[int] = []
    factories.subscription(endpoint=receiver.url("/ops"), event_pattern="Broker.Delivery.*")
    receiver.on(THERE, noting(senders.append, kill_sender), noting(senders.append, answer()))
    post_reply(pending)
    for _ in range(2):
        broker.crash_while_sending(line_of(pending))
        broker.expire_lease(line_of(pending))
    with broker.running_worker():
        dead = wait_until_ended(pending)
        assert (dead.status, dead.reason, dead.uncertain) == (DeliveryStatus.FAILED, POISON, True)
        assert (state_of(pending), broker.attempts_of(dead.pk)) == ("FAILED", [(1, None)])
        assert announced_end(receiver) == ("Broker.Delivery.Failed", dead.pk, pending.pk, POISON)
        assert resubmit(dead)[0] == 201
        assert wait_until_ended(pending).status == DeliveryStatus.DELIVERED
    assert receiver.bodies(THERE) == [RESULT_BODY] * 2
    assert (len({*senders}), os.getpid() in senders) == (2, False), "each in a process of its own"


def test_the_line_of_a_reply_is_released_as_it_ends(
    pending: Callback, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "IDLE_SECONDS", DAY.total_seconds())
    post_reply(pending)
    assert wait_until_ended(pending).status == DeliveryStatus.DELIVERED
    assert line_of(pending).lease_until is None, "nothing else comes"


def test_a_finished_reply_is_not_sent_again(pending: Callback, receiver: Receiver) -> None:
    post_reply(pending)
    driven, delivery, _ = broker.crash_while_sending(line_of(pending))
    broker.settle({driven.id: driven.claim.epoch}, settlements=[broker.settlement(driven, delivery)])
    broker.expire_lease(line_of(pending))
    with broker.running_worker():
        wait_until(lambda: remove_ended_lines() == 1)
    assert receiver.of(THERE) == []


@pytest.mark.behaviour("6.8")
def test_worker_restarts_lose_no_reply(client: Client, pending: Callback, receiver: Receiver) -> None:
    callbacks = [pending, *(a_callback(client, receiver) for _ in range(19))]
    for number, one in enumerate(callbacks):
        post_reply(one, b"%d" % number)
        if number % 2:
            broker.crash_while_sending(line_of(one))
    assert end_leases_of("vanished") == 10
    for some in (1, 8, 15):
        with broker.running_worker():
            wait_until(lambda some=some: len(receiver.of(THERE)) >= some)  # type: ignore[misc]
    with broker.running_worker():
        assert {wait_until_ended(one).status for one in callbacks} == {DeliveryStatus.DELIVERED}
    assert {int(body) for body in receiver.bodies(THERE)} == {*range(20)}
    repeated = [one for one in receiver.of(THERE) if one.is_flagged]
    assert len(receiver.of(THERE)) == 20
    assert len(repeated) == 10


@pytest.mark.behaviour("4.15", "6.8", "11.7")
def test_an_expired_reply_is_not_sent_before_the_clock_is_set_back(pending: Callback, receiver: Receiver) -> None:
    ClockJump.objects.create(id=1, seconds=7200.0, believed_at=Now() + timedelta(minutes=5))
    post_reply(pending)
    grow_older(KEPT_DAYS)
    hold = Hold.objects.filter(line__callback=pending)
    with broker.running_worker():
        wait_until(hold.filter(due_at__gt=Now()).exists)
        assert (reply_of(pending).status, receiver.of(THERE)) == (DeliveryStatus.PENDING, [])
        grow_older(-1)
        assert wait_until_ended(pending).status == DeliveryStatus.DELIVERED


def test_a_reply_is_sent_after_a_lost_wake_up_and_after_its_pause(pending: Callback) -> None:
    post_reply(pending)
    line = line_of(pending)
    assert due_lines() == [DueLine(line.pk, "callbacks", line.epoch, line.worker)]
    for due_at, found in (
        (Now() + timedelta(minutes=4), []),
        (Now(), [DueLine(line.pk, "callbacks", line.epoch, line.worker)]),
        (
            Now() + timedelta(hours=2),
            [DueLine(line.pk, "callbacks", line.epoch, line.worker)],
        ),  # a clock was ahead (5.9)
    ):
        line.holds.update(due_at=due_at)
        assert due_lines() == found
