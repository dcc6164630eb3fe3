"""Emptying a mailbox (behaviour 9.7)."""

import pytest

from delivery import operations
from delivery.mailbox.acknowledge import acknowledge, give_back
from delivery.mailbox.unread import purge, return_overdue
from delivery.models import Delivery
from delivery.operations import CANCEL
from delivery.outcomes import redact_reason
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.driving import inactivate, publish_bodies, publish_numbered, statuses
from tests.factories import subscription
from tests.mailboxes import fetched, pulled_subscription, switch, time_out

CANCELLED, DELIVERED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED
IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)


@pytest.mark.behaviour("9.7")
def test_a_purge_cancels_what_is_there_and_asks_for_what_is_in_flight(pulled: Subscription) -> None:
    beside, pushed = pulled_subscription(pulled.subscriber), subscription(pulled.subscriber)
    stranger = pulled_subscription(event_type=pulled.event_type)
    publish_bodies(pulled.event_type, b"later", not_before="2999-01-01T00:00:00Z")
    publish_numbered(pulled.event_type, 4)
    held, late, kept, dropped, _ = Delivery.objects.filter(subscription=pulled).oldest_first()
    Delivery.objects.filter(pk=held.pk).update(status="HELD", due_at="9999-12-31T00:00:00Z")
    fetched(pulled, 1)
    time_out()
    Delivery.objects.filter(pk=late.pk).update(cancel_requested=True)
    first, second = fetched(pulled, 2)
    assert (first.delivery_id, second.delivery_id) == (kept.pk, dropped.pk)
    publish_numbered(beside.event_type, 1)
    inactivate(beside)
    for one in (pushed, stranger):
        publish_numbered(one.event_type, 1)

    cancelled, in_flight, is_complete = purge(pulled.subscriber_id, seconds=60)

    assert (cancelled, in_flight, is_complete) == (5, 2, True)
    acknowledge(pulled.subscriber_id, [first.receipt])
    give_back(pulled.subscriber_id, [second.receipt])
    assert statuses(pulled) == [CANCELLED, CANCELLED, DELIVERED, CANCELLED, CANCELLED, CANCELLED]
    assert statuses(beside) == [CANCELLED]
    assert {*statuses(pushed), *statuses(stranger)} == {PENDING}
    assert redact_reason(Delivery.objects.get(pk=held.pk).reason) == "purged"
    assert purge(pulled.subscriber_id, seconds=60) == (0, 0, True)


@pytest.mark.behaviour("9.7")
def test_a_purge_that_takes_too_long_says_that_there_is_more(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbered(pulled.event_type, 5)
    monkeypatch.setattr(operations, "SLICE", 2)
    monkeypatch.setattr(operations, "CANCEL", CANCEL.replace("5000", "2"))
    assert [purge(pulled.subscriber_id, seconds=0) for _ in range(4)] == [
        (2, 0, False),
        (2, 0, False),
        (1, 0, False),
        (0, 0, True),
    ]


@pytest.mark.behaviour("9.7")
def test_what_is_in_flight_is_asked_to_end_slice_by_slice(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbered(pulled.event_type, 5)
    fetched(pulled)
    monkeypatch.setattr(operations, "CANCEL", CANCEL.replace("5000", "2"))
    assert purge(pulled.subscriber_id, seconds=0) == (0, 2, False)
    assert purge(pulled.subscriber_id, seconds=60) == (0, 3, True)
    time_out()
    assert (fetched(pulled), return_overdue(), statuses(pulled)) == ([], 5, [CANCELLED] * 5)


@pytest.mark.behaviour("9.7", "9.8")
def test_what_is_pushed_by_now_is_not_purged(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 1)
    switch(pulled, DeliveryMode.PUSH)
    assert (purge(pulled.subscriber_id, seconds=60), statuses(pulled)) == ((0, 0, True), [PENDING])
