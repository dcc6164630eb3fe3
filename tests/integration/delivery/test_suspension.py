"""Suspend and retry later: what is used up pauses its subscription, and a trial lets it go on in order (5.6)."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db.models.functions import Now
from django.utils import timezone

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.models import Announcement, Attempt, Delivery, Hold, LineEvent, LineEventKind
from delivery.pause import resume
from delivery.status.line_status import line_statuses
from delivery.statuses import DeliveryStatus
from subscriptions.models import PausedBy, Subscription
from subscriptions.retry_policies import OnExhausted
from tests.support import broker
from tests.support.broker import Worker, lines_with_due_work
from tests.support.factories import retry_policy, subscription

DELIVERED, REJECTED, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.REJECTED, DeliveryStatus.PENDING
LIKE_WEBMETHODS: dict[str, Any] = {
    "on_server_error": "END",
    "initial_delay_seconds": 0.1,
    "max_delay_seconds": 0.1,
    "jitter": 0.0,
}
SUSPENDS = LIKE_WEBMETHODS | {"max_retries": 2, "on_exhausted": OnExhausted.SUSPEND, "probe_seconds": 86_400.0}
FAR_OFF = {"initial_delay_seconds": 3600.0, "max_delay_seconds": 3600.0}

LOCK = "SELECT FROM subscriptions_subscription WHERE id = %s FOR NO KEY UPDATE"


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription like webMethods' that is suspended after two retries, and probed tomorrow."""
    return subscription(endpoint=receiver.url("/a"), retry_policy=retry_policy(**SUSPENDS))


def suspend(receiver: Receiver, wanted: Subscription, *, messages: int = 3, status: int = 503) -> None:
    """Let the endpoint of a subscription not work until it is suspended."""
    receiver.on("/a", answer(status))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, messages)
        wait_until_suspended(wanted)


def wait_until_suspended(wanted: Subscription) -> None:
    wait_until(
        lambda: Subscription.objects.filter(pk=wanted.pk, paused_by=PausedBy.POLICY, half_open=False).exists(),
        saying=lambda: [*Subscription.objects.values("paused_by", "half_open"), *Delivery.objects.values()],
    )


def begin_trial(wanted: Subscription) -> None:
    """Do what a probe by the delivery itself does when it is due."""
    Subscription.objects.filter(pk=wanted.pk).update(half_open=True, probe_due_at=None)


def try_and_succeed(receiver: Receiver, wanted: Subscription) -> None:
    """Let the endpoint work again, and be tried."""
    begin_trial(wanted)
    receiver.on("/a", answer())
    broker.run_worker_until_done()


def set_terms(wanted: Subscription, **terms: Any) -> None:
    """Give it another policy, which differs in these terms."""
    Subscription.objects.filter(pk=wanted.pk).update(retry_policy=retry_policy(**SUSPENDS | terms))


@pytest.mark.behaviour("5.5", "5.6")
def test_used_up_retries_suspend_the_subscription(receiver: Receiver, wanted: Subscription) -> None:
    suspend(receiver, wanted)
    wanted.refresh_from_db()
    line = broker.line_of(wanted.subscriber)
    oldest = Delivery.objects.order_by("id")[0]
    assert (receiver.bodies("/a"), broker.statuses(wanted)) == ([b"0"] * 3, [PENDING] * 3)
    assert (wanted.paused_by, wanted.paused_reason) == (PausedBy.POLICY, "suspended: answered 503")
    assert (wanted.is_sending, wanted.status) == (False, "ACTIVE")
    assert wanted.paused_since
    assert wanted.probe_due_at
    assert timedelta(hours=23) < wanted.probe_due_at - timezone.now() <= timedelta(hours=24)
    assert (oldest.waits_for, oldest.line_id, oldest.attempts, oldest.sequence) == ("TURN", line.pk, 3, 1)
    assert (line.lease_until, lines_with_due_work()) == (None, [])
    assert [*Attempt.objects.order_by("id").values_list("meaning", flat=True)] == ["hold", "hold", "suspend"]


@pytest.mark.behaviour("5.6")
@pytest.mark.parametrize("half_open", [False, True])
def test_a_line_is_not_held_for_what_is_suspended(receiver: Receiver, wanted: Subscription, *, half_open: bool) -> None:
    suspend(receiver, wanted)
    if half_open:
        begin_trial(wanted)
    line, later = broker.line_of(wanted.subscriber), timezone.now() + timedelta(hours=1)
    wanted.refresh_from_db()
    version = wanted.version + wanted.subscriber.version
    of = {"line": line, "due_at": later, "reason": "answered 503", "config_version": version}
    Hold.objects.update_or_create(delivery_id=Delivery.objects.order_by("id")[0].pk, defaults=of)
    assert line_statuses([line.pk])[line.pk].hold is None


@pytest.mark.behaviour("5.6", "5.7")
def test_a_suspension_is_told_once(receiver: Receiver, wanted: Subscription, nobody_announces: None) -> None:
    suspend(receiver, wanted, messages=1)
    for _ in range(2):
        begin_trial(wanted)
        with broker.running_worker():
            wait_until_suspended(wanted)
    try_and_succeed(receiver, wanted)
    delivery, line = Delivery.objects.get(), broker.line_of(wanted.subscriber).pk
    why = "suspended: answered 503"
    assert [*LineEvent.objects.order_by("id").values_list("kind", "reason", "line_id")] == [
        (LineEventKind.PAUSED, f"subscription {wanted.pk}: {why}", line),
        (LineEventKind.RESUMED, f"subscription {wanted.pk}", line),
    ]
    rows = [*Announcement.objects.order_by("id").values_list("kind", "subscription_id", "delivery_id", "details")]
    assert rows == [
        ("Broker.Line.Paused", wanted.pk, delivery.pk, {"pause": "SUSPENDED", "reason": why}),
        ("Broker.Line.Resumed", wanted.pk, delivery.pk, {"pause": "SUSPENDED", "reason": ""}),
    ]


@pytest.mark.behaviour("1.6", "5.6")
def test_the_subscribers_other_subscriptions_go_on(receiver: Receiver, wanted: Subscription) -> None:
    other = subscription(wanted.subscriber, endpoint=receiver.url("/b"))
    suspend(receiver, wanted)
    with broker.running_worker():
        broker.publish_numbered(other.event_type, 3)
        wait_until(lambda: broker.statuses(other) == [DELIVERED] * 3)
    assert receiver.bodies("/b") == [b"0", b"1", b"2"]
    assert (len(receiver.of("/a")), broker.statuses(wanted)) == (3, [PENDING] * 3)


@pytest.mark.behaviour("5.6")
def test_a_failed_trial_is_one_request(receiver: Receiver, wanted: Subscription) -> None:
    suspend(receiver, wanted)
    begin_trial(wanted)
    with broker.running_worker():
        wait_until_suspended(wanted)
        broker.publish_numbered(subscription(wanted.subscriber, endpoint=receiver.url("/b")).event_type, 1)
        wait_until(lambda: receiver.of("/b"))
    wanted.refresh_from_db()
    assert (receiver.bodies("/a"), broker.statuses(wanted)) == ([b"0"] * 4, [PENDING] * 3)
    assert wanted.probe_due_at


@pytest.mark.behaviour("4.10", "5.6")
def test_it_goes_on_in_order_once_a_trial_works(receiver: Receiver, wanted: Subscription) -> None:
    suspend(receiver, wanted)
    broker.publish_numbered(wanted.event_type, 2, first=3)
    try_and_succeed(receiver, wanted)
    wanted.refresh_from_db()
    assert receiver.bodies("/a")[3:] == [b"0", b"1", b"2", b"3", b"4"]
    assert [request.sequence for request in receiver.log] == [1, 1, 1, 1, 2, 3, 4, 5]
    assert (wanted.paused_since, wanted.paused_by, wanted.half_open, wanted.is_sending) == (None, "", False, True)


@pytest.mark.behaviour("5.6")
@pytest.mark.parametrize("status", [302, 404, 500])
def test_lasting_answers_end_a_suspension(receiver: Receiver, wanted: Subscription, status: int) -> None:
    suspend(receiver, wanted)
    begin_trial(wanted)
    receiver.on("/a", answer(status), answer())
    with broker.running_worker():
        broker.wait_until_done()
    assert broker.statuses(wanted)[1:] == [DELIVERED, DELIVERED]
    assert receiver.bodies("/a")[3:] == [b"0", b"1", b"2"]


@pytest.mark.behaviour("4.10", "5.6")
def test_an_unsent_number_is_given_back(receiver: Receiver, wanted: Subscription) -> None:
    other = subscription(wanted.subscriber, endpoint="http://127.0.0.1:9/nobody", retry_policy=wanted.retry_policy)
    with broker.running_worker():
        broker.publish_numbered(other.event_type, 1)
        wait_until_suspended(other)
        broker.publish_numbered(wanted.event_type, 1)
        wait_until(lambda: receiver.log)
        wait_until(lambda: broker.statuses(wanted) == [DELIVERED])
    assert (receiver.log[0].sequence, Delivery.objects.get(subscription=other).sequence) == (1, None)


@pytest.mark.behaviour("5.3", "5.6")
def test_what_is_used_up_in_the_retry_line_goes_back_to_the_main_line(receiver: Receiver, wanted: Subscription) -> None:
    set_terms(wanted, on_server_error="RETRY_LANE")
    receiver.on("/a", answer(500))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)

        def is_suspended() -> bool:
            broker.make_due()
            return Subscription.objects.filter(pk=wanted.pk, paused_by=PausedBy.POLICY).exists()

        wait_until(is_suspended)
    delivery = Delivery.objects.get()
    line = broker.line_of(wanted.subscriber)
    assert (delivery.line_id, delivery.waits_for, delivery.attempts) == (line.pk, "TURN", 3)
    broker.publish_numbered(wanted.event_type, 1, first=1)
    try_and_succeed(receiver, wanted)
    assert receiver.bodies("/a")[3:] == [b"0", b"1"]


@pytest.mark.behaviour("5.3", "5.6")
def test_a_trial_is_the_main_lines_alone(receiver: Receiver, wanted: Subscription) -> None:
    suspend(receiver, wanted, messages=2)
    second = Delivery.objects.order_by("id")[1]
    Delivery.objects.filter(pk=second.pk).update(
        line=broker.retry_line_of(wanted.subscriber), waits_for="RETRY", due_at=Now(), attempts=1, sequence=2
    )
    begin_trial(wanted)
    with broker.running_worker():
        wait_until_suspended(wanted)
    assert receiver.bodies("/a") == [b"0"] * 4
    try_and_succeed(receiver, wanted)
    assert receiver.bodies("/a")[4:] == [b"0", b"1"]


@pytest.mark.behaviour("1.6", "5.6")
def test_a_manual_pause_is_not_suspended(receiver: Receiver, wanted: Subscription, nobody_announces: None) -> None:
    gate = receiver.gate("/a", answer(503))
    set_terms(wanted, max_retries=0)
    with broker.running_worker() as worker:
        broker.publish_numbered(wanted.event_type, 1)
        wait_until(lambda: receiver.log)
        Subscription.objects.filter(pk=wanted.pk).update(
            paused_since=Now(), paused_by=PausedBy.HAND, paused_reason="moving house"
        )
        gate.open()
        wait_until(lambda: not worker.event_loop.lines and Attempt.objects.exists())
    wanted.refresh_from_db()
    assert (wanted.paused_by, wanted.paused_reason, wanted.probe_due_at) == (PausedBy.HAND, "moving house", None)
    assert (broker.statuses(wanted), Announcement.objects.count()) == ([PENDING], 0)


@pytest.mark.behaviour("5.6")
def test_a_locked_subscription_is_suspended_afterwards(
    receiver: Receiver, wanted: Subscription, elsewhere: "psycopg.Connection[Any]"
) -> None:
    set_terms(wanted, schedule=[0.1, 0.1, 3600.0], max_delay_seconds=3600.0)
    elsewhere.execute(LOCK, [wanted.pk])
    receiver.on("/a", answer(503))
    with broker.running_worker() as worker:
        broker.publish_numbered(wanted.event_type, 1)
        wait_until(lambda: Attempt.objects.count() >= 3 and not worker.event_loop.lines)
        elsewhere.rollback()
        broker.make_due()
        wait_until_suspended(wanted)
    assert (broker.statuses(wanted), len(receiver.log)) == ([PENDING], 4), "its pause comes before it is tried again"


@pytest.mark.behaviour("4.8", "5.6")
@pytest.mark.parametrize("is_locked", [False, True])
def test_a_trial_that_holds_the_line_waits_for_its_pause(
    receiver: Receiver, wanted: Subscription, elsewhere: "psycopg.Connection[Any]", *, is_locked: bool
) -> None:
    suspend(receiver, wanted, messages=1)
    patient = retry_policy(**LIKE_WEBMETHODS | FAR_OFF)
    Subscription.objects.filter(pk=wanted.pk).update(retry_policy=patient)
    begin_trial(wanted)
    if is_locked:
        elsewhere.execute(LOCK, [wanted.pk])
    with broker.running_worker() as worker:
        wait_until(lambda: Attempt.objects.count() == 4 and not worker.event_loop.lines)
        assert lines_with_due_work() == []
    elsewhere.rollback()
    wanted.refresh_from_db()
    assert (wanted.half_open, len(receiver.log)) == (is_locked, 4)


@pytest.mark.behaviour("5.6")
def test_a_trial_of_a_locked_subscription_goes_on_with_the_next(
    receiver: Receiver, wanted: Subscription, elsewhere: "psycopg.Connection[Any]"
) -> None:
    suspend(receiver, wanted, messages=1)
    begin_trial(wanted)
    receiver.on("/a", answer())
    elsewhere.execute(LOCK, [wanted.pk])
    with broker.running_worker():
        broker.wait_until_done()
        wanted.refresh_from_db()
        assert wanted.half_open
        elsewhere.rollback()
        broker.publish_numbered(wanted.event_type, 1, first=1)
        broker.wait_until_done()
    wanted.refresh_from_db()
    assert (wanted.paused_by, receiver.bodies("/a")[3:]) == ("", [b"0", b"1"])


@pytest.mark.behaviour("4.15", "5.6")
@pytest.mark.parametrize("half_open", [False, True])
def test_a_repaired_subscription_is_not_suspended_for_an_older_request(
    receiver: Receiver, wanted: Subscription, nobody_announces: None, *, half_open: bool
) -> None:
    set_terms(wanted, max_retries=0)
    if half_open:
        suspend(receiver, wanted, messages=1)
        begin_trial(wanted)
    else:
        broker.publish_numbered(wanted.event_type, 1)
    sent = len(receiver.log)
    gate = receiver.gate("/a", answer(503))
    with broker.running_worker():
        wait_until(lambda: len(receiver.log) > sent)
        Subscription.objects.filter(pk=wanted.pk).update(endpoint=receiver.url("/b"))
        resume([wanted.pk])
        gate.open()
        broker.wait_until_done()
    wanted.refresh_from_db()
    assert (wanted.paused_by, broker.statuses(wanted), len(receiver.of("/b"))) == ("", [DELIVERED], 1)
    announced = Announcement.objects.order_by("id").values_list("kind", flat=True)
    assert [*announced] == ["Broker.Line.Paused", "Broker.Line.Resumed"] * half_open


@pytest.mark.behaviour("5.3", "5.6")
def test_a_suspension_from_the_retry_line_does_not_wait_for_the_main_line(
    receiver: Receiver, wanted: Subscription, elsewhere: "psycopg.Connection[Any]"
) -> None:
    set_terms(wanted, on_server_error="RETRY_LANE", max_retries=1, **FAR_OFF)
    receiver.on("/a", answer(500))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        wait_until(lambda: Attempt.objects.exists() and broker.line_of(wanted.subscriber).lease_until is None)
        elsewhere.execute("SELECT FROM delivery_line WHERE id = %s FOR UPDATE", [broker.line_of(wanted.subscriber).pk])
        broker.make_due()
        wait_until_suspended(wanted)
        assert Delivery.objects.get().line_id == broker.line_of(wanted.subscriber).pk
        elsewhere.rollback()
    assert LineEvent.objects.get().line_id == broker.line_of(wanted.subscriber).pk


@pytest.mark.behaviour("5.5")
@pytest.mark.parametrize("on_exhausted", [OnExhausted.REJECT, OnExhausted.FAIL])
def test_a_held_head_ends_when_its_retries_are_used_up(
    receiver: Receiver, worker: Worker, wanted: Subscription, on_exhausted: OnExhausted
) -> None:
    set_terms(wanted, on_exhausted=on_exhausted)
    receiver.on("/a", *[answer(503)] * 3, answer())
    broker.publish_numbered(wanted.event_type, 2)
    broker.cut_pauses_until_done()
    first = Delivery.objects.order_by("id")[0]
    ends = {OnExhausted.REJECT: REJECTED, OnExhausted.FAIL: DeliveryStatus.FAILED}[on_exhausted]
    assert (broker.statuses(wanted), first.reason) == ([ends, DELIVERED], "retries used up: answered 503")
    assert broker.attempts_of(first.pk) == [(1, 503), (2, 503), (3, 503)]
    assert receiver.bodies("/a") == [b"0", b"0", b"0", b"1"]
    wanted.refresh_from_db()
    assert wanted.paused_since is None


@pytest.mark.behaviour("4.10", "5.5")
def test_a_failed_unsent_delivery_leaves_no_gap(receiver: Receiver, wanted: Subscription) -> None:
    set_terms(wanted, on_exhausted=OnExhausted.REJECT)
    receiver.close_port()
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.cut_pauses_until_done()
        receiver.open_port()
        broker.publish_numbered(wanted.event_type, 1, first=1)
        broker.wait_until_done()
    assert (broker.statuses(wanted), receiver.log[0].sequence) == ([REJECTED, DELIVERED], 1)
    assert not LineEvent.objects.exists()
