"""When the time for a reply begins and ends, and when callbacks are forgotten (contract 6.8, 6.9)."""

from datetime import timedelta
from typing import Any

import orjson
import psycopg
import pytest
from django.db.models.functions import Now
from django.test import Client

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.announcements import HELD_SECONDS, announce_held_lines
from delivery.maintenance import expiry, periodic
from delivery.maintenance.expiry import expire_overdue, forget_callbacks, remove_ended_lines, start_reply_times
from delivery.models import OPEN_SHELF, Callback, Delivery, Hold, Lane, Line, PageRead
from delivery.operations import cancel_deliveries_of
from delivery.status.callback_status import CallbackState
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventKind, Publisher, Subscription
from tests.support import broker, factories
from tests.support.api import (
    JOB_EVENT,
    callback_address,
    create_callback,
    job_type,
    post_reply,
    problem_of,
)
from tests.support.callbacks import KEPT_DAYS, THERE, WORK, grow_older, ids_in, resubmit, state_of
from tests.support.database import in_other_thread


def end_jobs() -> None:
    """Cancel all jobs, and start the time for replies that are still expected."""
    cancel_deliveries_of(Subscription.objects.get().pk, reason="done")
    start_reply_times(days=KEPT_DAYS)


def maintain_now() -> None:
    periodic.maintain(keep_days=KEPT_DAYS, callback_days=KEPT_DAYS)


@pytest.fixture
def waiting(storage: None, publisher: Publisher, client: Client, receiver: Receiver) -> Callback:
    """The callback of a job that no endpoint has been sent yet."""
    job = factories.event_type(JOB_EVENT, EventKind.QUEUE)
    factories.subscription(event_type=job, endpoint=receiver.url(WORK))
    return create_callback(client, receiver.url(THERE))


@pytest.mark.behaviour("6.8")
@pytest.mark.parametrize(("days", "state", "status_code"), [(13, "WAITING", 201), (14, "EXPIRED", 410)])
def test_an_endpoint_has_fourteen_days_from_when_it_gets_the_job(
    waiting: Callback, receiver: Receiver, days: int, state: str, status_code: int
) -> None:
    grow_older(100)
    maintain_now()
    assert (state_of(waiting), ids_in("WAITING")) == ("WAITING", [waiting.pk])
    broker.run_worker_until_done()
    (request,) = receiver.of(WORK)
    assert request.headers["callbackurl"] == callback_address(waiting)
    maintain_now()
    grow_older(days)
    assert (state_of(waiting), ids_in(state)) == (state, [waiting.pk])
    assert post_reply(waiting).status_code == status_code


@pytest.mark.behaviour("5.8", "6.8")
def test_the_endpoint_of_a_resubmitted_job_has_its_days_again(waiting: Callback, receiver: Receiver) -> None:
    receiver.on(WORK, answer(404), answer(200))
    broker.run_worker_until_done()
    maintain_now()
    grow_older(20)
    assert state_of(waiting) == CallbackState.EXPIRED
    assert resubmit(Delivery.objects.get(message=waiting.message_id))[0] == 201
    grow_older(100)
    maintain_now()
    broker.run_worker_until_done()
    waiting.refresh_from_db()
    assert {one.headers["callbackurl"] for one in receiver.of(WORK)} == {callback_address(waiting)}
    assert post_reply(waiting).status_code == 201


@pytest.mark.parametrize("days", [0, 100], ids=["its time would start", "it would be deleted"])
def test_a_callback_stays_as_it_is_during_a_resubmit(
    storage: None, callback: Callback, elsewhere: "psycopg.Connection[Any]", days: int
) -> None:
    cancel_deliveries_of(Subscription.objects.get().pk, reason="done")
    if days:
        start_reply_times(days=KEPT_DAYS)
        grow_older(days)
    elsewhere.execute("UPDATE delivery_callback SET group_id = group_id + 1, expires_at = NULL")
    with in_other_thread(maintain_now):
        elsewhere.commit()
    callback.refresh_from_db()
    assert callback.expires_at is None


def test_a_callback_is_kept_while_its_group_is_open(callback: Callback) -> None:
    post_reply(callback)
    grow_older(100)
    expire_overdue()
    remove_ended_lines()
    assert forget_callbacks(keep_days=KEPT_DAYS) == 0, "the job is sent with its address, though it has had a reply"
    end_jobs()
    assert forget_callbacks(keep_days=KEPT_DAYS) == 1


def reply_line() -> Line:
    return Line.objects.get(lane=Lane.CALLBACK)


@pytest.mark.behaviour("6.8")
def test_a_reply_that_is_not_delivered_in_fourteen_days_expires(callback: Callback) -> None:
    grow_older(13)
    post_reply(callback)
    grow_older(13)
    assert expire_overdue() == 0, "it has fourteen days of its own"
    Delivery.objects.filter(subscription=None).update(reason="answered 503")
    grow_older(1)
    assert expire_overdue() == 1
    ended = Delivery.objects.get(subscription=None)
    assert (ended.status, ended.reason) == (DeliveryStatus.EXPIRED, "not taken in time: answered 503")
    assert ended.finished_at is not None
    assert ended.closed_on < OPEN_SHELF
    assert not reply_line().holds.exists()
    assert expire_overdue() == 0


@pytest.mark.behaviour("6.8", "6.10")
def test_a_callback_without_a_reply_expires_after_fourteen_days(callback: Callback) -> None:
    end_jobs()
    grow_older(14)
    assert expire_overdue() == 0
    assert problem_of(post_reply(callback)) == (410, "callback_expired")
    assert not Delivery.objects.filter(subscription=None).exists()


def test_others_expire_during_a_reply(client: Client, callback: Callback) -> None:
    for one in (callback, create_callback(client)):
        assert post_reply(one).status_code == 201
    grow_older(14)
    oldest = Line.objects.filter(lane=Lane.CALLBACK).earliest("id")
    Delivery.objects.filter(line=oldest).update(status=DeliveryStatus.IN_FLIGHT)
    assert (expire_overdue(), expire_overdue()) == (1, 0)


def test_the_line_of_a_finished_reply_is_deleted(callback: Callback) -> None:
    post_reply(callback)
    assert remove_ended_lines() == 0
    PageRead.objects.create(line=reply_line(), epoch=0, delivery_ids=[1])
    Hold.objects.all().delete()
    Line.objects.filter(lane=Lane.CALLBACK).update(lease_until=Now())
    assert remove_ended_lines() == 0, "its event loop has not let it go"
    Line.objects.filter(lane=Lane.CALLBACK).update(lease_until=None)
    others = Line.objects.exclude(lane=Lane.CALLBACK).count()
    assert remove_ended_lines() == 1
    assert (Line.objects.count(), PageRead.objects.count()) == (others, 0)


def test_callbacks_that_ended_long_ago_are_deleted(callback: Callback) -> None:
    end_jobs()
    grow_older(14 + KEPT_DAYS - 1)
    assert forget_callbacks(keep_days=KEPT_DAYS) == 0
    grow_older(1)
    assert forget_callbacks(keep_days=KEPT_DAYS) == 1
    assert not Callback.objects.exists()


def test_a_callback_with_an_undelivered_reply_is_not_deleted(callback: Callback) -> None:
    post_reply(callback)
    end_jobs()
    grow_older(100)
    assert forget_callbacks(keep_days=KEPT_DAYS) == 0


@pytest.mark.parametrize("replied", [False, True])
def test_a_chain_is_forgotten_slice_by_slice(
    storage: None, client: Client, callback: Callback, monkeypatch: pytest.MonkeyPatch, replied: bool
) -> None:
    chain = [callback]
    for _ in range(3):
        chain.append(create_callback(client, callback_address(chain[-1])))
    if replied:
        post_reply(chain[-1])
    end_jobs()
    grow_older(100)
    expire_overdue()
    remove_ended_lines()
    monkeypatch.setattr(expiry, "FORGET", expiry.FORGET.replace(f"LIMIT {expiry.SLICE}", "LIMIT 1"))
    assert forget_callbacks(keep_days=KEPT_DAYS) == 4


def test_a_callback_is_kept_as_long_as_one_that_leads_to_it(
    storage: None, client: Client, callback: Callback, settings: Any
) -> None:
    create_callback(client, callback_address(callback))
    end_jobs()
    settings.CALLBACK_DAYS = 1
    post_reply(callback)
    grow_older(1 + KEPT_DAYS)
    expire_overdue()
    remove_ended_lines()
    assert forget_callbacks(keep_days=KEPT_DAYS) == 0
    grow_older(13)
    assert forget_callbacks(keep_days=KEPT_DAYS) == 2


def test_maintenance_does_all_of_it(storage: None, callback: Callback) -> None:
    post_reply(callback)
    end_jobs()
    grow_older(100)
    expire_overdue()
    maintain_now()
    assert not Callback.objects.exists()
    assert not Line.objects.filter(lane=Lane.CALLBACK).exists()


@pytest.mark.behaviour("5.7", "6.8")
def test_a_long_hold_of_a_callback_line_is_announced(
    storage: None, publisher: Publisher, client: Client, receiver: Receiver, long_pauses: None
) -> None:
    job_type()
    callback = create_callback(client, receiver.url(THERE))
    factories.subscription(endpoint=receiver.url("/ops"), event_pattern="Broker.Line.*")
    receiver.on(THERE, answer(503))
    post_reply(callback)
    held = Hold.objects.filter(line__callback=callback, failures=1)
    with broker.running_worker():
        wait_until(held.filter(line__lease_until=None).exists)
    held.update(since=Now() - timedelta(seconds=HELD_SECONDS))
    assert (announce_held_lines(), announce_held_lines()) == (1, 0)
    receiver.on(THERE, answer(200))
    with broker.running_worker():
        broker.make_due()
        wait_until(lambda: len(receiver.of("/ops")) == 2)
    announced = [(one.headers["broker-event-type"], orjson.loads(one.body)) for one in receiver.of("/ops")]
    told = [(kind, says["callback"], "subscriber" in says) for kind, says in announced]
    assert told == [(f"Broker.Line.{what}", callback.pk, False) for what in ("Paused", "Resumed")]
