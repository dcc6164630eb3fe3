"""What is suspended is tried at its interval: by its oldest delivery, or by asking its monitor."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db.models.functions import Now

from broker_project.stack.load.receiver import Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery import endpoint_probe
from delivery.endpoint_probe import AGAIN_SECONDS
from delivery.models import Announcement, Delivery, LineEvent
from delivery.operations import cancel_deliveries_of
from delivery.pause import pause, resume
from subscriptions.models import PausedBy, Subscription
from tests.support import broker, factories
from tests.support.broker import lines_with_due_work

SUSPENDS: dict[str, Any] = {"max_retries": 0, "on_exhausted": "SUSPEND", "on_unavailable": "HOLD", "jitter": 0.0}


@pytest.fixture
def wanted(storage: None, receiver: Receiver) -> Subscription:
    """One that is suspended at its first failure, and tried every hour."""
    policy = factories.retry_policy(**SUSPENDS, probe_seconds=3600.0)
    return factories.subscription(endpoint=receiver.url("/hook"), retry_policy=policy)


@pytest.fixture
def suspended(wanted: Subscription, receiver: Receiver) -> Subscription:
    """The same, suspended: two messages wait, one of which was tried."""
    receiver.on("/hook", answer(503))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 2)
        wait_until(lambda: Subscription.objects.filter(pk=wanted.pk, paused_by=PausedBy.POLICY).exists())
    return wanted


@pytest.fixture
def monitored(suspended: Subscription, receiver: Receiver) -> Iterator[Subscription]:
    """The same, with a monitor."""
    Subscription.objects.filter(pk=suspended.pk).update(monitor_url=receiver.url("/health"))
    yield suspended
    if broker.MONITORS._loop:
        broker.MONITORS._loop.stop()
    broker.MONITORS._requests.clear()


def make_probe_due(subscription: Subscription) -> None:
    Subscription.objects.filter(pk=subscription.pk).update(probe_due_at=Now())


def pause_of(subscription: Subscription) -> tuple[str, bool, bool]:
    """Return who paused it, whether it is on trial, and whether a probe is due one day."""
    subscription.refresh_from_db()
    return subscription.paused_by, subscription.half_open, subscription.probe_due_at is not None


def version_of(subscription: Subscription) -> int:
    subscription.refresh_from_db()
    return subscription.version


def probe_until(condition: Any) -> None:
    def probed() -> bool:
        broker.probe()
        return bool(condition())

    wait_until(probed)


@pytest.mark.behaviour("5.6")
def test_a_due_probe_sends_the_oldest_delivery(suspended: Subscription, receiver: Receiver) -> None:
    assert (broker.probe(), pause_of(suspended), lines_with_due_work()) == (0, ("POLICY", False, True), []), "not early"
    make_probe_due(suspended)
    assert (broker.probe(), broker.probe(), pause_of(suspended)) == (1, 0, ("POLICY", True, True))
    assert lines_with_due_work() == [broker.line_of(suspended.subscriber).pk]
    with broker.running_worker():
        wait_until(lambda: len(receiver.of("/hook")) == 2)
        wait_until(lambda: pause_of(suspended) == ("POLICY", False, True))
    assert (receiver.bodies("/hook"), broker.statuses(suspended)) == ([b"0", b"0"], ["PENDING"] * 2)
    again = Subscription.objects.filter(pk=suspended.pk, probe_due_at__gt=Now() + timedelta(minutes=59))
    assert again.exists()


@pytest.mark.behaviour("5.6")
def test_a_worker_probes_and_resumes_in_order(suspended: Subscription, receiver: Receiver) -> None:
    receiver.on("/hook", answer(200))
    make_probe_due(suspended)
    with broker.running_worker():
        broker.wait_until_done()
    assert receiver.bodies("/hook") == [b"0", b"0", b"1"]
    assert pause_of(suspended) == ("", False, False)


@pytest.mark.behaviour("5.6")
def test_a_monitor_url_is_probed_until_it_answers_2xx(monitored: Subscription, receiver: Receiver) -> None:
    receiver.on("/health", answer(503), answer(302, Location="/elsewhere"), answer(200, b"fine, thank you"))
    version = version_of(monitored)
    for asked in (1, 2):
        make_probe_due(monitored)
        probe_until(lambda asked=asked: len(receiver.of("/health")) == asked)
        probe_until(lambda: not broker.MONITORS._requests)
        assert (pause_of(monitored), len(receiver.of("/hook"))) == (("POLICY", False, True), 1)
        assert version_of(monitored) == version, "asking is no change"
    make_probe_due(monitored)
    probe_until(lambda: pause_of(monitored) == ("", False, False))
    assert [(one.method, one.body) for one in receiver.of("/health")] == [("GET", b"")] * 3
    last = LineEvent.objects.order_by("-id").values_list("kind", "reason")[0]
    assert last == ("RESUMED", f"subscription {monitored.pk}: its monitor answers")
    receiver.on("/hook", answer(200))
    with broker.running_worker():
        broker.wait_until_done()
    assert receiver.bodies("/hook") == [b"0", b"0", b"1"]


@pytest.mark.behaviour("5.6")
def test_a_hanging_monitor_waits(monitored: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_probe, "DEADLINE_SECONDS", 3600.0)
    if broker.MONITORS._loop:
        broker.MONITORS._loop.stop()
    receiver.on("/health", hang)
    for _ in range(3):
        make_probe_due(monitored)
        assert broker.probe() == 1
    wait_until(lambda: receiver.of("/health"))
    assert (len(receiver.of("/health")), pause_of(monitored)) == (1, ("POLICY", False, True))


@pytest.mark.behaviour("5.6")
def test_a_monitor_that_cannot_be_reached_ends_nothing(monitored: Subscription, receiver: Receiver) -> None:
    receiver.close_port()
    make_probe_due(monitored)
    assert broker.probe() == 1
    probe_until(lambda: not broker.MONITORS._requests)
    assert pause_of(monitored) == ("POLICY", False, True)


@pytest.mark.behaviour("5.6")
def test_a_monitor_ends_no_pause_by_hand(monitored: Subscription, receiver: Receiver) -> None:
    gate = receiver.gate("/health")
    make_probe_due(monitored)
    broker.probe()
    wait_until(lambda: receiver.of("/health"))
    pause([monitored.pk], reason="")
    gate.open()
    probe_until(lambda: not broker.MONITORS._requests)
    assert pause_of(monitored) == ("HAND", False, False)


@pytest.mark.parametrize("half_open", [False, True])
@pytest.mark.behaviour("5.6")
def test_a_suspended_subscription_without_work_resumes_at_once(suspended: Subscription, *, half_open: bool) -> None:
    cancel_deliveries_of(suspended.pk, reason="")
    Subscription.objects.filter(pk=suspended.pk).update(half_open=half_open)
    make_probe_due(suspended)
    assert (broker.probe(), pause_of(suspended)) == (1, ("", False, False))
    assert Announcement.objects.order_by("-id").values_list("kind", flat=True)[0] == "Broker.Line.Resumed"


@pytest.mark.behaviour("5.3", "5.6")
def test_a_subscription_with_only_retries_resumes(suspended: Subscription, receiver: Receiver) -> None:
    receiver.on("/hook", answer(200))
    retry_line = broker.retry_line_of(suspended.subscriber)
    Delivery.objects.open().filter(subscription=suspended).update(line=retry_line, waits_for="RETRY", due_at=Now())
    make_probe_due(suspended)
    with broker.running_worker():
        broker.wait_until_done()
    assert sorted(receiver.bodies("/hook")) == [b"0", b"0", b"1"]


@pytest.mark.behaviour("5.6")
def test_a_manually_paused_subscription_is_never_probed(suspended: Subscription) -> None:
    pause([suspended.pk], reason="")
    Subscription.objects.filter(pk=suspended.pk).update(probe_due_at=Now())
    assert (broker.probe(), pause_of(suspended)) == (0, ("HAND", False, True))


@pytest.mark.behaviour("1.7", "5.6")
@pytest.mark.parametrize("whole", [False, True])
def test_an_inactive_subscription_is_probed_once_it_is_active_again(suspended: Subscription, *, whole: bool) -> None:
    thing = suspended.subscriber if whole else suspended
    broker.inactivate(thing)
    make_probe_due(suspended)
    before = version_of(suspended)
    assert (broker.probe(), pause_of(suspended), version_of(suspended)) == (0, ("POLICY", False, True), before)
    broker.activate(thing)
    assert (broker.probe(), pause_of(suspended)) == (1, ("POLICY", True, True))


@pytest.mark.behaviour("5.6")
def test_a_half_open_subscription_is_checked_soon_whatever_its_interval(suspended: Subscription) -> None:
    make_probe_due(suspended)
    before = version_of(suspended)
    assert (broker.probe(), version_of(suspended)) == (1, before + 1)
    soon = Now() + timedelta(seconds=AGAIN_SECONDS)
    assert Subscription.objects.filter(pk=suspended.pk, probe_due_at__lte=soon).exists()
    make_probe_due(suspended)
    assert (broker.probe(), pause_of(suspended), version_of(suspended)) == (1, ("POLICY", True, True), before + 1)


@pytest.mark.behaviour("5.6")
def test_a_monitors_answer_does_not_end_a_later_suspension(monitored: Subscription, receiver: Receiver) -> None:
    gate = receiver.gate("/health")
    make_probe_due(monitored)
    broker.probe()
    wait_until(lambda: receiver.of("/health"))
    resume([monitored.pk])
    Subscription.objects.filter(pk=monitored.pk).update(paused_since=Now(), paused_by=PausedBy.POLICY)
    gate.open()
    probe_until(lambda: not broker.MONITORS._requests)
    assert pause_of(monitored) == ("POLICY", False, False)


@pytest.mark.behaviour("5.6")
def test_a_monitors_answer_is_kept_while_the_subscription_is_locked(
    monitored: Subscription, receiver: Receiver, elsewhere: "psycopg.Connection[Any]"
) -> None:
    make_probe_due(monitored)
    broker.probe()
    elsewhere.execute("SELECT FROM subscriptions_subscription WHERE id = %s FOR NO KEY UPDATE", [monitored.pk])
    wait_until(lambda: all(future.done() for future, _ in broker.MONITORS._requests.values()))
    for _ in range(2):
        assert (broker.probe(), pause_of(monitored)) == (0, ("POLICY", False, True))
    elsewhere.rollback()
    assert (broker.probe(), pause_of(monitored)) == (0, ("", False, False))
    assert (len(receiver.of("/health")), broker.MONITORS._requests) == (1, {})


@pytest.mark.behaviour("5.3", "5.6")
def test_a_deferred_delivery_that_is_not_due_is_no_work_for_a_probe(suspended: Subscription) -> None:
    Delivery.objects.open().filter(subscription=suspended).update(waits_for="RETRY", due_at=Now() + timedelta(hours=1))
    make_probe_due(suspended)
    assert (broker.probe(), pause_of(suspended)) == (1, ("", False, False))


def test_probing_skips_locked_subscriptions(suspended: Subscription, elsewhere: "psycopg.Connection[Any]") -> None:
    make_probe_due(suspended)
    elsewhere.execute("SELECT FROM subscriptions_subscription WHERE id = %s FOR UPDATE", [suspended.pk])
    assert broker.probe() == 0
    elsewhere.rollback()
    assert broker.probe() == 1
