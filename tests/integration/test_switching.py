"""Activating, inactivating, changing and cancelling while a line is at work (behaviour 1.6 to 1.8, 4.9, 4.15)."""

from typing import Any

import pytest
from django.db import IntegrityError, models

from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import lines_with_due_work
from delivery.models import Delivery, LineEvent
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from subscriptions.edit import change
from subscriptions.models import Status, Subscriber, Subscription
from tests.driving import (
    Worker,
    activate,
    end_pauses_far_off,
    expire_lease,
    hand_of,
    inactivate,
    line_of,
    make_due,
    publish_bodies,
    publish_numbered,
    statuses,
    unfinished,
    wait_until_done,
    wait_until_held,
    working,
)
from tests.factories import subscription
from tests.receiver import Receiver, answer, hang, wait_until

CANCELLED, DELIVERED, PENDING = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.PENDING


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    return subscription(endpoint=receiver.url("/a"))


@pytest.fixture
def beside(receiver: Receiver, wanted: Subscription) -> Subscription:
    """Another subscription of the same subscriber."""
    return subscription(subscriber=wanted.subscriber, endpoint=receiver.url("/b"))


@pytest.mark.behaviour("1.6")
@pytest.mark.parametrize("status", [302, 404, 500, 503, None])
def test_whatever_an_endpoint_does_the_broker_inactivates_nothing(
    receiver: Receiver, worker: Worker, wanted: Subscription, status: int | None
) -> None:
    receiver.on("/a", answer(status)) if status else receiver.close_port()
    publish_numbered(wanted.event_type, 3)
    for _ in range(3):
        attempts = Delivery.objects.aggregate(models.Sum("attempts"))["attempts__sum"]
        wait_until(lambda: _tries() > attempts or not unfinished())  # noqa: B023 - called at once
        make_due()
    wanted.refresh_from_db()
    assert (wanted.status, wanted.subscriber.status, wanted.version) == (Status.ACTIVE, Status.ACTIVE, 1)
    assert Subscriber.objects.get().status == Status.ACTIVE


def _tries() -> int:
    tries: int = Delivery.objects.aggregate(models.Sum("attempts"))["attempts__sum"]
    return tries


@pytest.mark.behaviour("1.7")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
def test_what_was_published_while_inactive_never_arrives(
    receiver: Receiver, worker: Worker, wanted: Subscription, whose: str
) -> None:
    thing = wanted if whose == "subscription" else wanted.subscriber
    publish_bodies(wanted.event_type, b"before")
    wait_until_done()
    inactivate(thing)
    assert publish_bodies(wanted.event_type, b"meanwhile")[0].outcome == "UNROUTED"
    activate(thing)
    publish_bodies(wanted.event_type, b"after")
    wait_until_done()
    assert receiver.bodies("/a") == [b"before", b"after"]


@pytest.mark.behaviour("1.7")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
def test_what_was_pending_is_kept_while_inactive_and_then_sent_in_order(
    receiver: Receiver, wanted: Subscription, whose: str
) -> None:
    thing = wanted if whose == "subscription" else wanted.subscriber
    publish_numbered(wanted.event_type, 5)
    inactivate(thing)
    (taken,) = claim([line_of(wanted.subscriber).pk], worker="w")
    assert (lines_with_due_work(), hand_of(taken), statuses(wanted)) == ([], [], [PENDING] * 5)
    expire_lease(line_of(wanted.subscriber))
    activate(thing)
    with working():
        wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.behaviour("1.7", "4.9")
def test_what_is_inactive_is_skipped_and_keeps_its_place(
    receiver: Receiver, wanted: Subscription, beside: Subscription
) -> None:
    for number in range(3):
        publish_bodies(wanted.event_type, b"a%d" % number)
        publish_bodies(beside.event_type, b"b%d" % number)
    inactivate(wanted)
    with working():
        wait_until(lambda: statuses(beside) == [DELIVERED] * 3)
        publish_bodies(beside.event_type, b"b3")
        wait_until(lambda: statuses(beside) == [DELIVERED] * 4)
        assert receiver.of("/a") == []
        activate(wanted)
        wait_until_done()
    assert [request.body for request in receiver.log] == [b"b0", b"b1", b"b2", b"b3", b"a0", b"a1", b"a2"]
    assert [request.sequence for request in receiver.log] == [*range(1, 8)]


@pytest.mark.behaviour("4.9")
@pytest.mark.parametrize("reason", ["refused", "503"])
def test_a_line_moves_on_when_its_head_becomes_inactive(
    receiver: Receiver, worker: Worker, wanted: Subscription, beside: Subscription, reason: str
) -> None:
    receiver.on("/a", answer(503, Retry_After="300"))
    if reason == "refused":
        Subscription.objects.filter(pk=wanted.pk).update(endpoint="http://127.0.0.1:9/closed")
    publish_numbered(wanted.event_type, 1)
    wait_until_held(wanted.subscriber)
    end_pauses_far_off(wanted.subscriber)
    publish_bodies(beside.event_type, b"waiting")
    inactivate(wanted)
    wait_until(lambda: receiver.bodies("/b") == [b"waiting"])
    wait_until(lambda: line_of(wanted.subscriber).held_since is None)
    assert statuses(wanted) == [PENDING]
    Subscription.objects.filter(pk=wanted.pk).update(endpoint=receiver.url("/again"), status=Status.ACTIVE)
    wait_until_done()
    assert [request.body for request in receiver.log if request.path != "/a"] == [b"waiting", b"0"]


@pytest.mark.behaviour("4.9")
def test_a_line_moves_on_when_its_head_becomes_inactive_under_way(
    receiver: Receiver, wanted: Subscription, beside: Subscription
) -> None:
    receiver.on("/a", hang)
    with working(deadline_seconds=1.0):
        publish_numbered(wanted.event_type, 1)
        publish_bodies(beside.event_type, b"waiting")
        wait_until(lambda: receiver.of("/a"))
        inactivate(wanted)
        wait_until(lambda: receiver.log[0].ended)
        wait_until(lambda: receiver.bodies("/b") == [b"waiting"])
    assert (len(receiver.of("/a")), statuses(wanted)) == (1, [PENDING])


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "endpoint": ("subscription", {"endpoint": "/b"}),
    "headers": ("subscription", {"headers": {"X-New": "yes"}}),
    "secret": ("subscription", {"signing_secret": "whsec_" + "A" * 32}),
    "the subscriber's headers": ("subscriber", {"headers": {"X-New": "yes"}}),
}


@pytest.mark.behaviour("4.9", "4.15")
@pytest.mark.parametrize(("whose", "fields"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_makes_a_waiting_line_due_at_once(
    receiver: Receiver, worker: Worker, wanted: Subscription, whose: str, fields: dict[str, Any]
) -> None:
    receiver.on("/a", answer(503, Retry_After="300"), answer())
    publish_numbered(wanted.event_type, 2)
    wait_until_held(wanted.subscriber)
    if path := fields.get("endpoint"):
        fields = {"endpoint": receiver.url(path)}
    changed = Subscription.objects if whose == "subscription" else Subscriber.objects
    pk = wanted.pk if whose == "subscription" else wanted.subscriber_id
    change(changed.filter(pk=pk), changes=fields)
    wait_until_done()
    assert [request.body for request in receiver.log] == [b"0", b"0", b"1"]
    old, new = receiver.log[0], receiver.log[1]
    assert (old.path, old.headers.get("x-new")) == ("/a", None)
    assert (new.path == "/b", new.headers.get("x-new") == "yes") == ("endpoint" in fields, "headers" in fields)


@pytest.mark.behaviour("4.9")
def test_a_held_line_that_nobody_touches_stays_held(
    receiver: Receiver, worker: Worker, wanted: Subscription, beside: Subscription
) -> None:
    receiver.on("/a", answer(503, Retry_After="300"))
    publish_numbered(wanted.event_type, 1)
    line = wait_until_held(wanted.subscriber)
    publish_bodies(beside.event_type, b"waiting")
    Subscription.objects.get(pk=beside.pk).save()  # another one's change is none of its head's
    assert (lines_with_due_work(), claim([line.pk], worker="w"), receiver.of("/b")) == ([], [], [])


@pytest.mark.behaviour("4.15")
def test_a_page_in_hand_is_sent_as_configured_when_each_request_starts(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    gate = receiver.gate("/a")
    publish_numbered(wanted.event_type, 3)
    wait_until(lambda: receiver.log)
    changes = {"endpoint": "PUT:" + receiver.url("/b"), "headers": {"X-New": "yes"}}
    change(Subscription.objects.filter(pk=wanted.pk), changes=changes)
    gate.open()
    wait_until_done()
    assert [(request.method, request.path, request.headers.get("x-new")) for request in receiver.log] == [
        ("POST", "/a", None),
        ("PUT", "/b", "yes"),
        ("PUT", "/b", "yes"),
    ]
    assert [request.sequence for request in receiver.log] == [1, 2, 3]


@pytest.mark.behaviour("4.15")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
def test_a_page_in_hand_is_not_sent_once_its_subscription_is_inactive(
    receiver: Receiver, worker: Worker, wanted: Subscription, whose: str
) -> None:
    gate = receiver.gate("/a")
    publish_numbered(wanted.event_type, 3)
    wait_until(lambda: receiver.log)
    inactivate(wanted if whose == "subscription" else wanted.subscriber)
    gate.open()
    wait_until(lambda: statuses(wanted) == [DELIVERED, PENDING, PENDING])
    wait_until(lambda: line_of(wanted.subscriber).lease_until is None)
    assert receiver.bodies("/a") == [b"0"]


@pytest.mark.behaviour("4.15")
def test_who_gets_a_message_is_fixed_when_it_is_published(receiver: Receiver, wanted: Subscription) -> None:
    publish_bodies(wanted.event_type, b"old")
    late = subscription(event_type=wanted.event_type, endpoint=receiver.url("/late"))
    Subscription.objects.filter(pk=wanted.pk).update(header_filter_string="something else")
    with working():
        wait_until_done()
    assert (receiver.bodies("/a"), receiver.bodies("/late"), statuses(late)) == ([b"old"], [], [])


@pytest.mark.behaviour("1.8", "4.15")
def test_nothing_is_sent_that_was_cancelled_in_hand(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    gate = receiver.gate("/a")
    publish_numbered(wanted.event_type, 4)
    wait_until(lambda: receiver.log)
    assert cancel_deliveries_of(wanted.pk, reason="unwanted") == (3, 1)
    gate.open()
    wait_until_done()
    assert statuses(wanted) == [DELIVERED, CANCELLED, CANCELLED, CANCELLED]
    assert receiver.bodies("/a") == [b"0"]
    publish_numbered(wanted.event_type, 1)
    wait_until_done()
    assert ([request.sequence for request in receiver.log], LineEvent.objects.count()) == ([1, 2], 0)


@pytest.mark.behaviour("1.8")
@pytest.mark.parametrize("status", [503, 500])
def test_what_is_unfinished_keeps_a_subscription_until_it_is_cancelled(
    receiver: Receiver, worker: Worker, wanted: Subscription, beside: Subscription, status: int
) -> None:
    receiver.on("/a", answer(status, Retry_After="300"))
    publish_numbered(wanted.event_type, 2)
    wait_until(lambda: line_of(wanted.subscriber).lease_until is None and _tries() >= 1)
    publish_bodies(beside.event_type, b"waiting")
    with pytest.raises(IntegrityError, match="delivery_open_subscription"):
        Subscription.objects.filter(pk=wanted.pk)._raw_delete("default")
    inactivate(wanted)
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    wait_until_done()
    assert (set(statuses(wanted)), statuses(beside)) == ({CANCELLED}, [DELIVERED])
    Subscription.objects.filter(pk=wanted.pk)._raw_delete("default")
    assert not Subscription.objects.filter(pk=wanted.pk).exists()


@pytest.mark.behaviour("4.10", "1.8")
def test_a_head_that_was_never_sent_leaves_no_gap_when_it_is_cancelled(
    receiver: Receiver, worker: Worker, wanted: Subscription, beside: Subscription
) -> None:
    Subscription.objects.filter(pk=wanted.pk).update(endpoint="http://127.0.0.1:9/closed")
    publish_numbered(wanted.event_type, 1)
    wait_until_held(wanted.subscriber)
    publish_bodies(beside.event_type, b"next")
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    wait_until_done()
    assert [(request.path, request.sequence) for request in receiver.log] == [("/b", 1)]
    assert LineEvent.objects.count() == 0
