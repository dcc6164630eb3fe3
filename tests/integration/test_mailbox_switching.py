"""Subscriptions switched between push and pull: everything keeps its place, and ends as it began (behaviour 9.8)."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from delivery.mailbox.acknowledge import acknowledge, give_back
from delivery.mailbox.unread import return_overdue
from delivery.models import Delivery, Line
from delivery.statuses import DeliveryStatus
from delivery.worker.settle import settle
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.driving import (
    attempts_of,
    begin_and_vanish,
    line_of,
    publish_numbered,
    retry_line_of,
    settlement,
    statuses,
    wait_until_done,
    working,
)
from tests.factories import subscription
from tests.mailboxes import fetched, switch, time_out
from tests.receiver import Receiver, wait_until

PUSH, PULL = DeliveryMode.PUSH, DeliveryMode.PULL
DELIVERED, IN_FLIGHT, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


@pytest.fixture
def switched(receiver: Receiver, storage: None, event_type: EventType) -> Subscription:
    return subscription(event_type=event_type, endpoint=receiver.url("/a"))


def bodies(wanted: Subscription, most: int = 100) -> list[bytes]:
    return [one.content.body for one in fetched(wanted, most)]


@pytest.mark.behaviour("9.8")
def test_what_is_fetched_and_what_is_pushed_after_each_switch_goes_on_where_the_other_ended(
    receiver: Receiver, switched: Subscription
) -> None:
    publish_numbered(switched.event_type, 2)
    with working():
        wait_until(lambda: statuses(switched) == [DELIVERED] * 2)
    switch(switched, PULL)
    publish_numbered(switched.event_type, 4, first=2)
    messages = fetched(switched, 2)
    acknowledge(switched.subscriber_id, [one.receipt for one in messages])
    assert [one.content.body for one in messages] == [b"2", b"3"]
    switch(switched, PUSH)
    publish_numbered(switched.event_type, 1, first=6)
    with working():
        wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"4", b"5", b"6"]
    numbers = Delivery.objects.oldest_first().values_list("sequence", flat=True)
    assert [*numbers] == [1, 2, None, None, 3, 4, 5]


@pytest.mark.behaviour("9.8")
@pytest.mark.parametrize("lane", ["main", "retry"])
def test_what_was_set_aside_before_the_switch_is_fetched_in_its_place_and_waits_for_no_time(
    switched: Subscription, lane: str
) -> None:
    publish_numbered(switched.event_type, 2)
    line = line_of(switched.subscriber) if lane == "main" else retry_line_of(switched.subscriber)
    first = Delivery.objects.oldest_first()[0]
    Delivery.objects.filter(pk=first.pk).update(due_at="2999-01-01T00:00:00Z", line=line, sequence=1, attempts=1)
    switch(switched, PULL)
    assert Delivery.objects.get(pk=first.pk).next_try_at is None
    assert bodies(switched) == [b"0", b"1"]
    rows = Delivery.objects.oldest_first().values_list("line", "sequence", "attempts")
    assert [*rows] == [(line_of(switched.subscriber).pk, 1, 1), (line_of(switched.subscriber).pk, None, 0)]


@pytest.mark.behaviour("9.1", "9.8")
def test_of_very_many_that_were_set_aside_the_oldest_is_fetched_first(switched: Subscription) -> None:
    publish_numbered(switched.event_type, 80)
    for number, one in enumerate(Delivery.objects.oldest_first()):
        Delivery.objects.filter(pk=one.pk).update(due_at=Now() + timedelta(seconds=20 - number), attempts=1)
    switch(switched, PULL)
    assert bodies(switched, 3) == [b"0", b"1", b"2"]


@pytest.mark.behaviour("9.8")
def test_a_request_under_way_is_not_fetched_and_ends_by_its_answer(switched: Subscription) -> None:
    publish_numbered(switched.event_type, 2)
    line, delivery, _ = begin_and_vanish(line_of(switched.subscriber))
    switch(switched, PULL)
    assert bodies(switched) == [b"1"]
    settle({line.id: line.claim.epoch}, settlements=[settlement(line, delivery)])
    assert (statuses(switched), attempts_of(delivery.id)) == ([DELIVERED, IN_FLIGHT], [(1, 200)])


@pytest.mark.behaviour("9.8")
@pytest.mark.parametrize("how", ["acknowledged", "returned", "timed out"])
def test_what_is_fetched_ends_by_its_receipt_or_its_time_out_and_is_not_pushed_before(
    receiver: Receiver, switched: Subscription, how: str
) -> None:
    switch(switched, PULL)
    publish_numbered(switched.event_type, 2)
    (first,) = fetched(switched, 1)
    switch(switched, PUSH)
    with working():
        wait_until(lambda: statuses(switched) == [IN_FLIGHT, DELIVERED])
        if how == "acknowledged":
            acknowledge(switched.subscriber_id, [first.receipt])
        elif how == "returned":
            give_back(switched.subscriber_id, [first.receipt])
        else:
            time_out()
            return_overdue()
        wait_until_done()
    assert receiver.bodies("/a") == [b"1"] + [b"0"] * (how != "acknowledged")
    flags = [one.is_flagged for one in receiver.log]
    assert flags == [False] + [how == "timed out"] * (how != "acknowledged")


@pytest.mark.behaviour("4.11", "9.8")
def test_what_timed_out_and_was_returned_later_is_still_a_possible_duplicate(
    receiver: Receiver, switched: Subscription
) -> None:
    switch(switched, PULL)
    publish_numbered(switched.event_type, 1)
    fetched(switched)
    time_out()
    (again,) = fetched(switched)
    give_back(switched.subscriber_id, [again.receipt])
    switch(switched, PUSH)
    with working():
        wait_until_done()
    assert [one.is_flagged for one in receiver.log] == [True]


@pytest.mark.behaviour("9.8", "4.15")
def test_a_line_ends_the_request_under_way_and_begins_no_other(receiver: Receiver, switched: Subscription) -> None:
    gate = receiver.gate("/a")
    publish_numbered(switched.event_type, 3)
    with working():
        wait_until(lambda: receiver.bodies("/a") == [b"0"])
        switch(switched, PULL)
        publish_numbered(switched.event_type, 1, first=3)
        gate.open()
        wait_until(lambda: statuses(switched)[0] == DELIVERED)
        wait_until(lambda: not Line.objects.filter(lease_until__isnull=False).exists())
    assert (receiver.bodies("/a"), bodies(switched)) == ([b"0"], [b"1", b"2", b"3"])
