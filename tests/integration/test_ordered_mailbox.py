"""An ordered mailbox hands out nothing newer while something older is in flight (behaviour 9.7)."""

import threading
from collections.abc import Iterator

import pytest

from delivery.mailbox.acknowledge import acknowledge, extend, give_back
from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.mailbox import Box
from delivery.mailbox.results import ReceiptCode
from delivery.models import Delivery
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.driving import inactivate, publish_bodies, publish_numbered
from tests.factories import subscriber, subscription
from tests.mailboxes import at_once, fetched, pulled_subscription, switch, time_out


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return subscription(subscriber(mailbox_ordered=True), event_type, delivery_mode=DeliveryMode.PULL)


@pytest.fixture
def beside(pulled: Subscription) -> Subscription:
    """Another subscription of the same mailbox."""
    return pulled_subscription(pulled.subscriber)


def next_body(wanted: Subscription) -> bytes | None:
    """Fetch as many as there are: one at most."""
    messages = fetched(wanted)
    assert len(messages) <= 1
    return messages[0].content.body if messages else None


@pytest.mark.behaviour("9.7")
def test_the_next_message_comes_once_the_one_before_is_acknowledged_over_all_subscriptions(
    pulled: Subscription, beside: Subscription
) -> None:
    for number in range(4):
        publish_numbered((pulled, beside)[number % 2].event_type, 1, first=number)
    for number in range(4):
        (one,) = fetched(pulled)
        assert (one.content.body, fetched(pulled)) == (str(number).encode(), [])
        acknowledge(pulled.subscriber_id, [one.receipt])
    assert next_body(pulled) is None


@pytest.mark.behaviour("9.7")
@pytest.mark.parametrize("how", ["returned", "timed out"])
def test_what_comes_back_is_the_next_again(pulled: Subscription, how: str) -> None:
    publish_numbered(pulled.event_type, 2)
    (one,) = fetched(pulled)
    if how == "returned":
        give_back(pulled.subscriber_id, [one.receipt])
    else:
        time_out()
    assert (next_body(pulled), next_body(pulled)) == (b"0", None)


@pytest.mark.behaviour("9.7", "9.8")
@pytest.mark.parametrize("how", ["inactive", "paused", "pushed"])
def test_what_is_in_flight_holds_up_the_rest_although_its_subscription_is_fetched_no_more(
    pulled: Subscription, beside: Subscription, how: str
) -> None:
    publish_numbered(pulled.event_type, 1)
    publish_bodies(beside.event_type, b"beside")
    (one,) = fetched(pulled)
    if how == "inactive":
        inactivate(pulled)
    elif how == "paused":
        Subscription.objects.filter(pk=pulled.pk).update(paused_since="2026-01-01T00:00:00Z", paused_by="HAND")
    else:
        switch(pulled, DeliveryMode.PUSH)
    assert next_body(pulled) is None
    acknowledge(pulled.subscriber_id, [one.receipt])
    assert next_body(pulled) == b"beside"


@pytest.mark.behaviour("9.7", "3.6", "2.13")
def test_what_cannot_be_fetched_holds_nothing_up(pulled: Subscription) -> None:
    publish_bodies(pulled.event_type, b"delayed", not_before="2999-01-01T00:00:00Z")
    publish_bodies(pulled.event_type, b"held", b"next")
    held = Delivery.objects.oldest_first()[1]
    Delivery.objects.filter(pk=held.pk).update(status="HELD", due_at="9999-12-31T00:00:00Z")
    assert next_body(pulled) == b"next"


@pytest.mark.behaviour("9.7")
def test_what_was_fetched_before_the_mailbox_was_ordered_comes_in_order_again(pulled: Subscription) -> None:
    Subscriber.objects.update(mailbox_ordered=False)
    publish_numbered(pulled.event_type, 4)
    receipts = [one.receipt for one in fetched(pulled, 3)]
    Subscriber.objects.update(mailbox_ordered=True)
    for receipt in receipts:
        assert next_body(pulled) is None
        acknowledge(pulled.subscriber_id, [receipt])
    assert next_body(pulled) == b"3"


@pytest.mark.behaviour("9.7", "9.4")
def test_what_timed_out_is_not_prolonged_since_something_newer_may_be_out(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 1)
    (one,) = fetched(pulled)
    assert extend(pulled.subscriber_id, [one.receipt], seconds=60)[one.receipt].code == ReceiptCode.EXTENDED
    time_out()
    assert extend(pulled.subscriber_id, [one.receipt], seconds=60)[one.receipt].code == ReceiptCode.TIMED_OUT
    assert next_body(pulled) == b"0"


@pytest.mark.behaviour("9.7", "9.3")
def test_eight_clients_who_all_ask_get_the_messages_one_after_the_other(
    pulled: Subscription, beside: Subscription
) -> None:
    for number in range(24):
        publish_numbered((pulled, beside)[number % 2].event_type, 1, first=number)
    start = threading.Barrier(8)
    worked_off: list[bytes] = []
    at_work = threading.Semaphore(1)

    def turns() -> Iterator[bytes]:
        while Delivery.objects.open().exists():
            for one in fetch(Box(pulled.subscriber_id, is_ordered=True), most=10):
                assert at_work.acquire(blocking=False), "somebody else has one in flight"
                yield one.content.body
                at_work.release()
                acknowledge(pulled.subscriber_id, [one.receipt])

    def work_off() -> None:
        start.wait()
        worked_off.extend(turns())

    at_once(8, work_off)
    assert sorted(worked_off, key=int) == [str(number).encode() for number in range(24)]
    finished = Delivery.objects.order_by("finished_at").values_list("id", flat=True)
    assert [*finished] == sorted(finished)
