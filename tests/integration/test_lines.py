"""A subscriber's line: strictly one after the other, beside all other lines, a page at a time."""

import threading
import time
from collections.abc import Sequence

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from broker_project.core.db import forget_connection
from delivery.dispatch.claim import claim
from delivery.limits import MAX_LINE_BYTES
from delivery.models import Delivery, Message
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import Outgoing
from delivery.worker import run_lines
from delivery.worker.buffer import BodyBudget, Buffer
from delivery.worker.event_loop import MOST_BODY_BYTES
from delivery.worker.pages import PageRequest, read_pages
from subscriptions.models import EventType, Subscription
from tests.driving import (
    PLENTY,
    Worker,
    hand_of,
    hurry_until_done,
    line_of,
    publish_bodies,
    publish_numbered,
    wait_until_done,
    working,
)
from tests.factories import event_type, subscriber, subscription
from tests.receiver import PATIENCE, Receiver, answer, hang, wait_until


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    return subscription(endpoint=receiver.url("/a"))


@pytest.mark.behaviour("4.1", "4.12")
def test_one_subscriber_gets_all_its_subscriptions_messages_strictly_in_sequence(
    receiver: Receiver, worker: Worker
) -> None:
    abc = subscriber("ABC")
    created = subscription(abc, event_type("ABC.Create"), receiver.url("/abc"))
    updated = subscription(abc, event_type("ABC.Update"), receiver.url("/abc"))
    for number in range(40):
        publish_bodies(created.event_type if number % 3 else updated.event_type, b"%d" % number)
    wait_until_done()
    assert receiver.bodies("/abc") == [b"%d" % number for number in range(40)]
    assert [request.sequence for request in receiver.log] == [*range(1, 41)]
    assert receiver.most_at_once["/abc"] == 1
    ends = [request.ended for request in receiver.log[:-1]]
    assert all(end and end <= later.begun for end, later in zip(ends, receiver.log[1:], strict=True))


@pytest.mark.behaviour("4.1", "4.12")
def test_two_subscribers_are_sent_to_side_by_side(receiver: Receiver, worker: Worker) -> None:
    created = subscription(subscriber("ABC.Create"), event_type("ABC.Create"), receiver.url("/create"))
    updated = subscription(subscriber("ABC.Update"), event_type("ABC.Update"), receiver.url("/update"))
    receiver.on("/create", hang)
    gate = receiver.gate("/update")
    publish_numbered(created.event_type, 1)
    publish_numbered(updated.event_type, 5)
    wait_until(lambda: {request.path for request in receiver.log} == {"/create", "/update"})
    gate.open()
    wait_until(lambda: len(receiver.of("/update")) == 5)
    (hanging,) = receiver.of("/create")
    assert hanging.ended is None
    receiver.close_port()  # or the worker would wait for its deadline at the end


@pytest.mark.behaviour("4.2", "11.1")
@pytest.mark.parametrize("capacity", [1, 7, 500])
def test_a_page_has_at_most_what_may_be_queued_oldest_first(wanted: Subscription, capacity: int) -> None:
    type(wanted.subscriber).objects.filter(pk=wanted.subscriber.pk).update(max_queued_to_send=capacity)
    publish_numbered(wanted.event_type, 600)
    (taken,) = claim([line_of(wanted.subscriber).pk], worker="w")
    bodies = [delivery.content.body for delivery in hand_of(taken)]
    assert bodies == [b"%d" % number for number in range(capacity)]
    Delivery.objects.filter(pk__in=Delivery.objects.order_by("id").values("pk")[300:]).update(due_at=Now())
    assert len(hand_of(taken)) == capacity


@pytest.mark.behaviour("4.2", "11.1")
def test_a_line_reads_on_until_nothing_is_due(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    type(wanted.subscriber).objects.filter(pk=wanted.subscriber.pk).update(max_queued_to_send=3)
    bodies = publish_numbered(wanted.event_type, 50)
    wait_until_done()
    assert receiver.bodies("/a") == bodies


def read(wanted: Subscription, budget: BodyBudget, capacity: int = 500) -> Buffer[Outgoing]:
    line = line_of(wanted.subscriber)
    return read_pages([PageRequest(line.pk, line.epoch, None, capacity)], budget)[line.pk]


@pytest.mark.behaviour("4.2")
@pytest.mark.parametrize(
    ("sizes", "in_hand"),
    [
        ([MAX_LINE_BYTES // 2] * 3, 2),
        ([MAX_LINE_BYTES, 1], 1),
        ([1, MAX_LINE_BYTES], 1),
        ([1, MAX_LINE_BYTES - 1, 1], 2),
    ],
)
def test_a_page_has_at_most_a_mebibyte_but_always_one(wanted: Subscription, sizes: list[int], in_hand: int) -> None:
    publish_bodies(wanted.event_type, *[b"x" * size for size in sizes])
    hand = read(wanted, BodyBudget(PLENTY))
    assert (len(hand), hand.bytes) == (in_hand, sum(sizes[:in_hand]))


@pytest.mark.behaviour("11.1")
def test_a_process_holds_no_more_bodies_than_its_budget(wanted: Subscription) -> None:
    publish_bodies(wanted.event_type, b"x" * 100, b"x" * 100, b"x" * 100)
    budget = BodyBudget(250)
    first = read(wanted, budget)
    second = read(wanted, budget)
    assert (first.bytes, first.is_starved, len(second), second.is_starved) == (200, False, 0, True)
    budget.give_back(200)
    assert read(wanted, budget).bytes == 200


@pytest.mark.behaviour("11.1")
def test_bodies_of_what_is_gone_once_its_page_is_read_are_not_held(wanted: Subscription) -> None:
    publish_bodies(wanted.event_type, b"x" * 100, b"x" * 100)
    Message.objects.order_by("id")[:1].get().delete()
    budget = BodyBudget(200)
    assert read(wanted, budget).bytes == 100
    assert budget.take(100)
    assert not budget.take(1)


@pytest.mark.behaviour("11.1")
def test_lines_that_share_a_small_budget_all_get_through(
    receiver: Receiver, storage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery.worker.event_loop.MOST_BODY_BYTES", 3 * MAX_LINE_BYTES)
    kind = event_type()
    for number in range(8):
        subscription(event_type=kind, endpoint=receiver.url(f"/{number}"))
    publish_bodies(kind, *[b"%d" % number + b"x" * (MAX_LINE_BYTES - 1) for number in range(4)])
    with working() as worker:
        wait_until_done()
        wait_until(lambda: worker.driver.budget._left == 3 * MAX_LINE_BYTES)
    for number in range(8):
        assert [body[:1] for body in receiver.bodies(f"/{number}")] == [b"0", b"1", b"2", b"3"]


@pytest.mark.behaviour("11.1")
def test_a_line_whose_endpoint_hangs_keeps_only_what_is_under_way(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    gate = receiver.gate("/a")
    publish_bodies(wanted.event_type, *[b"x" * 1000] * 20)
    wait_until(lambda: receiver.log)
    wait_until(lambda: worker.driver.budget._left == MOST_BODY_BYTES - 1000)
    gate.open()
    wait_until_done()
    assert len(receiver.log) == 20
    wait_until(lambda: worker.driver.budget._left == MOST_BODY_BYTES)


@pytest.mark.behaviour("11.1")
def test_a_line_reads_on_when_two_fifths_are_left(wanted: Subscription) -> None:
    publish_numbered(wanted.event_type, 12)
    hand = read(wanted, BodyBudget(PLENTY), capacity=10)
    left_when_low = next(len(hand) for _ in range(10) if hand.is_low or not hand.take(aside_next=False))
    assert left_when_low == 4


def publish_beside(kind: EventType, turns: Sequence[bytes], committed: list[bytes], lock: threading.Lock) -> None:
    """Publish one after the other; note each body when its publish has been answered."""
    for body in turns:
        publish_bodies(kind, body)
        with lock:
            committed.append(body)
    forget_connection()


@pytest.mark.behaviour("4.14")
def test_a_line_without_work_stays_with_its_driver_until_its_turn_ends(
    receiver: Receiver, worker: Worker, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lines, "TURN_SECONDS", PATIENCE)
    for number in (1, 2, 3):
        publish_numbered(wanted.event_type, 1, first=number)
        wait_until_done()
    assert len(receiver.log) == 3
    assert line_of(wanted.subscriber).epoch == 1
    (driven,) = worker.driver.lines._lines.values()
    driven.run.until = time.monotonic()
    wait_until(lambda: line_of(wanted.subscriber).lease_until is None)


@pytest.mark.behaviour("4.10")
def test_publishes_that_did_not_overlap_are_sent_in_their_order(receiver: Receiver, worker: Worker) -> None:
    wanted = subscription(endpoint=receiver.url("/a"))
    publishers = [
        threading.Thread(
            target=publish_beside,
            args=(wanted.event_type, [b"%d %d" % (who, number) for number in range(50)], [], threading.Lock()),
        )
        for who in range(4)
    ]
    for thread in publishers:
        thread.start()
    for thread in publishers:
        thread.join()
    wait_until_done()
    for who in range(4):
        mine = [body for body in receiver.bodies("/a") if body.startswith(b"%d " % who)]
        assert mine == [b"%d %d" % (who, number) for number in range(50)]
    assert [request.sequence for request in receiver.log] == [*range(1, 201)]


@pytest.mark.behaviour("4.10")
def test_a_publish_that_commits_late_is_sent_late_and_not_lost(receiver: Receiver, worker: Worker) -> None:
    wanted = subscription(endpoint=receiver.url("/a"))
    begun, go_on = threading.Event(), threading.Event()

    def publish_slowly() -> None:
        with transaction.atomic():
            publish_bodies(wanted.event_type, b"slow")
            begun.set()
            go_on.wait(PATIENCE)
        forget_connection()

    slow = threading.Thread(target=publish_slowly)
    slow.start()
    begun.wait(PATIENCE)
    publish_bodies(wanted.event_type, b"quick")
    wait_until(lambda: receiver.bodies("/a") == [b"quick"])
    go_on.set()
    slow.join()
    wait_until_done()
    assert [(request.body, request.sequence) for request in receiver.log] == [(b"quick", 1), (b"slow", 2)]
    ids = {request.body: request.delivery_id for request in receiver.log}
    assert ids[b"slow"] < ids[b"quick"]


@pytest.mark.behaviour("4.10")
def test_the_head_is_not_overtaken_by_what_was_published_before_it_but_committed_later(
    receiver: Receiver, worker: Worker, long_pauses: None
) -> None:
    wanted = subscription(endpoint=receiver.url("/a"))
    receiver.on("/a", answer(503), answer())
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('delivery_delivery_id_seq')")
        older = cursor.fetchone()[0]
    publish_bodies(wanted.event_type, b"head")
    wait_until(lambda: line_of(wanted.subscriber).held_since)
    head = Delivery.objects.get()
    Delivery.objects.create(id=older, message_id=head.message_id, line_id=head.line_id, subscription=wanted, size=4)
    hurry_until_done()
    assert [request.delivery_id for request in receiver.log] == [head.pk, head.pk, older]
    assert [request.sequence for request in receiver.log] == [1, 1, 2]
    assert [*Delivery.objects.values_list("status", flat=True)] == [DeliveryStatus.DELIVERED] * 2
