"""How fast a subscription is sent: evenly, over all workers and lines, also after crashes and changes (1.4)."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from broker_project.core import boot_clock
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch.claim import claim
from delivery.limits import MAX_PROCESS_BYTES
from delivery.models import Delivery, Line, Pace
from delivery.statuses import DeliveryStatus
from delivery.worker import leases
from delivery.worker.round_trip import Mark, Settling, mark_of
from subscriptions.models import Subscription
from tests.support import broker
from tests.support.broker import Worker, lines_with_due_work
from tests.support.factories import retry_policy, subscription
from tests.support.stepped_worker import stepped_worker_of

pytestmark = pytest.mark.behaviour("1.4")

DELIVERED, IN_FLIGHT, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING
ONE_AN_HOUR = 1 / 1000
"""Near enough: the least that may be asked for."""
RATE = 50.0
EVERY = timedelta(seconds=1 / RATE)
EARLY = timedelta(milliseconds=5)
RETRIES: dict[str, Any] = {
    "on_server_error": "RETRY_LANE",
    "initial_delay_seconds": 0.1,
    "max_delay_seconds": 0.1,
    "jitter": 0.0,
}


@pytest.fixture
def limited(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription that is sent so seldom that the second request of it is never seen."""
    return subscription(endpoint=receiver.url("/a"), rate_limit=ONE_AN_HOUR)


def now() -> datetime:
    """Return what the database's clock says."""
    return Subscription.objects.annotate(now=Now()).values_list("now", flat=True)[0]


def last_at(of: Subscription) -> datetime:
    """Return the slot of the subscription's latest request."""
    at = Pace.objects.get(pk=of.pk).last_at
    assert at
    return at


def send_first(receiver: Receiver, limited: Subscription, messages: int = 2) -> Line:
    """Let the first of some messages be delivered, and the line be let go; return it."""
    with broker.running_worker():
        broker.publish_numbered(limited.event_type, messages)
        wait_until_paced(limited)
    assert broker.statuses(limited) == [DELIVERED] + [PENDING] * (messages - 1)
    return broker.line_of(limited.subscriber)


def wait_until_paced(limited: Subscription) -> None:
    """Wait until the line waits for nothing but its rate."""
    let_go = Line.objects.filter(subscriber=limited.subscriber, lane="main", lease_until=None, holds__due_at__gt=Now())
    wait_until(let_go.exists, saying=lambda: [*Line.objects.values()])


@pytest.mark.behaviour("4.13")
@pytest.mark.parametrize("concurrency", [1, 8])
def test_slots_are_evenly_spaced(receiver: Receiver, worker: Worker, limited: Subscription, concurrency: int) -> None:
    processing = "SERIAL" if concurrency == 1 else "CONCURRENT"
    type(limited.subscriber).objects.update(processing=processing, concurrency=concurrency)
    Subscription.objects.update(rate_limit=RATE)
    begun = now()
    bodies = broker.publish_numbered(limited.event_type, 20)
    broker.wait_until_done()
    assert receiver.bodies("/a") == bodies if concurrency == 1 else sorted(receiver.bodies("/a")) == sorted(bodies)
    assert begun + 19 * EVERY <= last_at(limited) <= now() + EARLY
    wait_until(lambda: worker.event_loop.budget._left == MAX_PROCESS_BYTES)


@pytest.mark.behaviour("5.3")
def test_both_lines_and_all_workers_keep_to_one_rate(receiver: Receiver, limited: Subscription) -> None:
    Subscription.objects.update(rate_limit=RATE, retry_policy=retry_policy(**RETRIES))
    receiver.on("/a", *[answer(500)] * 10, answer())
    begun = now()
    with broker.running_worker("first"), broker.running_worker("second"):
        broker.publish_numbered(limited.event_type, 20)
        broker.wait_until_done()
    assert (len(receiver.log), len({request.delivery_id for request in receiver.log})) == (30, 20)
    assert begun + 29 * EVERY <= last_at(limited) <= now() + EARLY


def test_a_line_that_waits_for_its_rate_is_not_held(receiver: Receiver, limited: Subscription) -> None:
    hold = send_first(receiver, limited).holds.get()
    assert (hold.delivery_id, hold.reason, hold.failures) == (Delivery.objects.open().get().pk, "", 0)
    assert hold.due_at == pytest.approx(last_at(limited) + timedelta(seconds=1000), abs=timedelta(seconds=5))
    assert lines_with_due_work() == []


@pytest.mark.behaviour("4.7", "5.7")
def test_a_hold_lasts_while_the_head_waits_for_its_rate(receiver: Receiver, limited: Subscription) -> None:
    receiver.on("/a", answer(503), answer())
    with broker.running_worker():
        broker.publish_numbered(limited.event_type, 2)
        broker.wait_until_held(limited.subscriber)
        broker.make_due()
        wait_until_paced(limited)
    held = broker.line_of(limited.subscriber).holds.get()
    assert (held.reason, held.failures, len(receiver.log)) == ("answered 503", 1, 1)
    Pace.objects.update(last_at=None)
    broker.make_due()
    with broker.running_worker("another"):
        wait_until(lambda: broker.statuses(limited) == [DELIVERED, PENDING], saying=lambda: broker.statuses(limited))
        wait_until_paced(limited)
    hold = broker.line_of(limited.subscriber).holds.get()
    assert (hold.delivery_id != held.delivery_id, hold.reason) == (True, "")


def test_the_rate_outlives_the_worker(receiver: Receiver, limited: Subscription) -> None:
    line = send_first(receiver, limited)
    broker.make_due()
    with broker.running_worker("another"):
        wait_until_paced(limited)
    assert (broker.statuses(limited), len(receiver.log), broker.line_of(limited.subscriber).epoch) == (
        [DELIVERED, PENDING],
        1,
        line.epoch + 1,
    )


@pytest.mark.behaviour("4.9")
@pytest.mark.parametrize("rate", [RATE, None])
def test_a_changed_limit_counts_at_once(receiver: Receiver, limited: Subscription, rate: float | None) -> None:
    line = send_first(receiver, limited, messages=3)
    Subscription.objects.update(rate_limit=rate)
    assert lines_with_due_work() == [line.pk]
    with broker.running_worker():
        broker.wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2"]


def test_another_subscriber_does_not_wait(receiver: Receiver, worker: Worker, limited: Subscription) -> None:
    other = subscription(event_type=limited.event_type, endpoint=receiver.url("/b"))
    broker.publish_numbered(limited.event_type, 20)
    wait_until(lambda: broker.statuses(other) == [DELIVERED] * 20, saying=lambda: broker.statuses(other))
    assert receiver.bodies("/a") == [b"0"]


@pytest.mark.behaviour("4.12")
def test_a_rate_limit_does_not_break_the_order(receiver: Receiver, worker: Worker, limited: Subscription) -> None:
    other = subscription(limited.subscriber, limited.event_type, receiver.url("/b"))
    broker.publish_numbered(limited.event_type, 3)
    wait_until_paced(limited)
    assert (receiver.bodies("/a"), receiver.bodies("/b")) == ([b"0"], [b"0"])
    assert broker.statuses(other) == [DELIVERED, PENDING, PENDING]


@pytest.mark.behaviour("4.13")
def test_unordered_deliveries_of_others_go_on(receiver: Receiver, worker: Worker, limited: Subscription) -> None:
    type(limited.subscriber).objects.update(processing="CONCURRENT", concurrency=2)
    other = subscription(limited.subscriber, limited.event_type, receiver.url("/b"))
    broker.publish_numbered(limited.event_type, 20)
    wait_until(lambda: broker.statuses(other) == [DELIVERED] * 20, saying=lambda: broker.statuses(other))
    assert receiver.bodies("/a") == [b"0"]


def pass_seconds(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clocks of the worker, and of the rate limits in the database, go on."""
    real = boot_clock.since_boot
    monkeypatch.setattr(boot_clock, "since_boot", lambda: real() + seconds)
    Pace.objects.update(last_at=F("last_at") - timedelta(seconds=seconds))


@pytest.mark.behaviour("4.13")
@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("has_others", [False, True])
def test_a_slow_endpoint_is_sent_at_its_rate(
    limited: Subscription, monkeypatch: pytest.MonkeyPatch, *, is_over: bool, has_others: bool
) -> None:
    """Nobody tells of new work, while other requests of the line hang."""
    monkeypatch.setattr(leases, "IDLE_SECONDS", PATIENCE_SECONDS)
    type(limited.subscriber).objects.update(processing="CONCURRENT", concurrency=8)
    Subscription.objects.update(rate_limit=2.0)
    broker.publish_numbered(limited.event_type, 40)
    if has_others:
        broker.publish_numbered(subscription(limited.subscriber).event_type, 40)
    worker, requests = stepped_worker_of(limited.subscriber)
    worker.lines[0].is_over = is_over
    for number in range(2, 6):
        pass_seconds(monkeypatch, 0.51)
        worker.go()
        worker.answer_all({one: 200 for one in requests if one.destination.subscription_id != limited.pk})
        of_limited = [one for one in requests if one.destination.subscription_id == limited.pk]
        assert len(of_limited) == number


@pytest.mark.behaviour("5.3")
def test_in_a_retry_line_the_others_go_on(receiver: Receiver, worker: Worker, limited: Subscription) -> None:
    other = subscription(limited.subscriber, limited.event_type, receiver.url("/b"))
    Pace.objects.update(last_at=Now())
    with transaction.atomic():
        broker.publish_numbered(limited.event_type, 20)
        Delivery.objects.update(line=broker.retry_line_of(limited.subscriber), waits_for="RETRY", due_at=Now())
    wait_until(lambda: broker.statuses(other) == [DELIVERED] * 20, saying=lambda: broker.statuses(other))
    assert receiver.bodies("/a") == []


def mark_at_rate(delivery: Delivery, config_version: int, rate_slot: dict[str, float] | None) -> Mark:
    return {
        "line_id": delivery.line_id,
        "delivery_id": delivery.pk,
        "config_version": config_version,
        "sequence": None,
        "rate_slot": rate_slot,
    }


def marked(limited: Subscription, *, spacing: float, config_version: int | None = None) -> tuple[Settling, int]:
    """Ask for the oldest delivery to be sent under a new claim; return what the settle did, and the delivery."""
    line, oldest = broker.line_of(limited.subscriber), Delivery.objects.open().order_by("id")[0]
    Line.objects.filter(pk=line.pk).update(lease_until=None)
    (taken,) = claim([line.pk], worker="worker")
    limited.refresh_from_db()
    limited.subscriber.refresh_from_db()
    config_version = config_version or limited.version + limited.subscriber.version
    mark = mark_at_rate(oldest, config_version, {"subscription_id": limited.pk, "spacing": spacing})
    return broker.settle({line.pk: taken.epoch}, marks=[mark]), oldest.pk


def test_only_sent_deliveries_take_a_slot(limited: Subscription) -> None:
    broker.publish_numbered(limited.event_type, 1)
    refused, _ = marked(limited, spacing=1000.0, config_version=1)
    assert (refused.started, refused.waits, Pace.objects.get().last_at) == ({}, {}, None)
    sent, delivery_id = marked(limited, spacing=1000.0)
    assert [*sent.started] == [delivery_id]
    assert 990.0 < sent.waits[limited.pk] <= 1000.0


def test_nothing_is_sent_before_its_slot(limited: Subscription) -> None:
    broker.publish_numbered(limited.event_type, 1)
    Pace.objects.update(last_at=Now())
    refused, _ = marked(limited, spacing=1000.0)
    assert (refused.started, broker.statuses(limited)) == ({}, [PENDING])
    assert 990.0 < refused.waits[limited.pk] <= 1000.0


@pytest.mark.behaviour("5.9")
def test_a_slot_taken_while_the_clock_was_ahead_counts_no_more(limited: Subscription) -> None:
    broker.publish_numbered(limited.event_type, 1)
    Pace.objects.update(last_at=Now() + timedelta(hours=2))
    sent, _ = marked(limited, spacing=1000.0)
    assert (len(sent.started), 990.0 < sent.waits[limited.pk] <= 1000.0) == (1, True)


@pytest.mark.behaviour("4.11")
def test_a_repeated_settle_takes_no_other_slot(limited: Subscription) -> None:
    broker.publish_numbered(limited.event_type, 1)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(limited.subscriber))
    taken_at = last_at(limited)
    again = broker.settle(line, marks=[mark_of(line, delivery)])
    assert ([*again.started], last_at(limited)) == ([delivery.id], taken_at)


@pytest.mark.parametrize(("ago", "from_last"), [(1000.0, 1000.0), (1000.5, 1000.0), (1500.0, 1500.0), (5000.0, 5000.0)])
def test_a_late_slot_is_the_one_that_was_due(limited: Subscription, ago: float, from_last: float) -> None:
    broker.publish_numbered(limited.event_type, 1)
    Pace.objects.update(last_at=Now() - timedelta(seconds=ago))
    before = last_at(limited)
    marked(limited, spacing=1000.0)
    passed = (last_at(limited) - before).total_seconds()
    assert from_last <= passed < from_last + 0.5 if from_last > 1000.0 else passed == from_last


def test_a_round_sends_one_delivery_of_a_limited_subscription(limited: Subscription) -> None:
    other = subscription(limited.subscriber, limited.event_type)
    broker.publish_numbered(limited.event_type, 2)
    line = broker.line_of(limited.subscriber)
    (taken,) = claim([line.pk], worker="worker")
    config_version = limited.version + limited.subscriber.version
    marks = [
        mark_at_rate(
            one,
            config_version,
            {"subscription_id": limited.pk, "spacing": 10.0} if one.subscription_id == limited.pk else None,
        )
        for one in Delivery.objects.open()
    ]
    broker.settle({line.pk: taken.epoch}, marks=marks)
    assert (broker.statuses(limited), broker.statuses(other)) == ([IN_FLIGHT, PENDING], [IN_FLIGHT] * 2)
