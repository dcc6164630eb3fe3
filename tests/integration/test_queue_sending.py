"""QUEUE messages on their way: one endpoint of each group takes each message, side by side (behaviour 6.2 to 6.6)."""

import asyncio
import time
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from django.db.models.functions import Now

from delivery.maintenance import periodic
from delivery.models import UNTIL_ACTIVE, Attempt, Delivery, Line, QueueGroup
from delivery.operations import cancel_deliveries_of
from delivery.worker import run_lines
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.driving import Worker, activate, attempts_of, inactivate, publish_bodies, wait_until_done, working
from tests.receiver import Behaviour, Received, Receiver, answer, close, hang, wait_until

ENDPOINTS = ["/a", "/b", "/c"]
SENDERS = 5


def queue_of(receiver: Receiver, *paths: str) -> tuple[EventType, list[Subscription]]:
    """Return a QUEUE event type, and a group of subscriptions with these endpoints."""
    kind = factories.event_type(kind=EventKind.QUEUE)
    return kind, [factories.subscription(event_type=kind, endpoint=receiver.url(path)) for path in paths]


async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer after 0.1 s."""
    await asyncio.sleep(0.1)
    return await answer()(reader, writer)


def statuses(subscription: Subscription | None = None) -> Counter[str]:
    mine = Delivery.objects.filter(subscription=subscription) if subscription else Delivery.objects.all()
    return Counter(mine.values_list("status", flat=True))


@pytest.mark.behaviour("6.4", "10.1")
def test_each_message_is_taken_by_one_endpoint_of_its_group(receiver: Receiver, worker: Worker) -> None:
    kind, _ = queue_of(receiver, *ENDPOINTS)
    bodies = [b"%d" % number for number in range(60)]
    publish_bodies(kind, *bodies)
    wait_until_done()
    assert Counter(request.body for request in receiver.log) == Counter(bodies)
    assert statuses() == {"DELIVERED": 60, "REDUNDANT": 120}
    assert not QueueGroup.objects.exists()
    assert all(len(receiver.of(path)) > 5 for path in ENDPOINTS), "shuffled for each message"
    groups = dict(Delivery.objects.filter(status="DELIVERED").values_list("message_id", "group_id"))
    for request in receiver.log:
        assert request.headers["webhook-id"] == f"grp_{groups[int(request.headers['broker-message-id'])]}"
        assert (request.headers["webhook-attempt"], request.is_flagged) == ("1", False)
        assert "webhook-sequence" not in request.headers


@pytest.mark.behaviour("2.10", "4.15")
def test_what_has_expired_is_not_asked_for_even_before_anybody_has_ended_it(
    receiver: Receiver, storage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(periodic.CHORES, "expire_overdue")
    kind, _ = queue_of(receiver, "/a")
    publish_bodies(kind, b"late")
    Delivery.objects.update(expires_at=Now())
    publish_bodies(kind, b"in time")
    with working():
        wait_until(lambda: statuses()["DELIVERED"])
    assert (receiver.bodies("/a"), statuses()) == ([b"in time"], {"PENDING": 1, "DELIVERED": 1})


@pytest.mark.behaviour("6.4", "10.1")
@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        (answer(404), "REJECTED"),
        (answer(302), "3xxNOTSUPPORTED"),
        (answer(500), "REDUNDANT"),
        (answer(503), "REDUNDANT"),
        (close, "REDUNDANT"),
    ],
)
def test_what_one_endpoint_does_not_take_the_next_one_does(
    receiver: Receiver, worker: Worker, behaviour: Behaviour, status: str
) -> None:
    kind, (unwilling, willing) = queue_of(receiver, "/unwilling", "/willing")
    receiver.on("/unwilling", behaviour)
    publish_bodies(kind, *[b"%d" % number for number in range(20)])
    wait_until_done()
    assert {row.status for row in Delivery.objects.filter(subscription=willing)} == {"DELIVERED"}
    asked = Delivery.objects.filter(subscription=unwilling, attempts=1)
    assert {row.status for row in asked} == {status}
    assert asked.count() == len(receiver.of("/unwilling")) > 0
    assert {row.status for row in Delivery.objects.filter(subscription=unwilling, attempts=0)} == {"REDUNDANT"}
    assert Attempt.objects.count() == len(receiver.log)


@pytest.mark.behaviour("6.5")
def test_a_group_that_everybody_refuses_ends(receiver: Receiver, worker: Worker) -> None:
    kind, _ = queue_of(receiver, "/a", "/b")
    receiver.on("/a", answer(404))
    receiver.on("/b", answer(301))
    publish_bodies(kind, *[b"%d" % number for number in range(10)])
    wait_until_done()
    assert statuses() == {"REJECTED": 10, "3xxNOTSUPPORTED": 10}
    assert (QueueGroup.objects.count(), len(receiver.log)) == (0, 20)


@pytest.mark.behaviour("6.5", "4.11")
def test_a_group_that_nobody_takes_is_tried_again_with_a_growing_pause(receiver: Receiver, worker: Worker) -> None:
    kind, (refusing, failing) = queue_of(receiver, "/refusing", "/failing")
    receiver.on("/refusing", answer(410))
    receiver.on("/failing", answer(500), close, answer(200))
    publish_bodies(kind, b"1")
    wait_until_done()
    first, second, third = receiver.of("/failing")
    assert [second.begun - first.begun >= 1.0, third.begun - second.begun >= 2.0] == [True, True]
    assert [request.headers["webhook-attempt"] for request in receiver.log] == ["1", "2", "3", "4"]
    assert [request.is_flagged for request in receiver.of("/failing")] == [False, False, True]
    assert len({request.headers["webhook-id"] for request in receiver.log}) == 1
    assert [Delivery.objects.get(subscription=one).status for one in (refusing, failing)] == ["REJECTED", "DELIVERED"]
    assert attempts_of(Delivery.objects.get(subscription=failing).pk) == [(1, 500), (2, None), (3, 200)]


@pytest.mark.behaviour("6.5")
def test_who_was_asked_is_not_asked_again_at_once_where_the_next_one_is_gone_meanwhile(
    receiver: Receiver, worker: Worker
) -> None:
    kind, (_, other) = queue_of(receiver, "/one", "/other")
    gate = receiver.gate("/one", answer(500))
    receiver.on("/one", gate)
    publish_bodies(kind, *[b"%d" % number for number in range(20)])
    wait_until(lambda: statuses(other)["DELIVERED"] + len(receiver.of("/one")) == 20)
    asked = len(receiver.of("/one"))
    inactivate(other)
    gate.open()
    by_message: dict[bytes, list[Received]] = defaultdict(list)
    wait_until(lambda: len(receiver.of("/one")) >= 2 * asked > 0)
    for request in receiver.of("/one"):
        by_message[request.body].append(request)
    pauses = [later.begun - (one.ended or 0.0) for each in by_message.values() for one, later in pairwise(each)]
    assert len(pauses) >= asked == len(by_message)
    assert min(pauses) >= 0.9
    receiver.on("/one", answer())
    wait_until_done()


@pytest.mark.behaviour("6.6")
def test_a_sender_has_so_many_messages_under_way_and_no_more(receiver: Receiver, storage: None) -> None:
    kinds = [queue_of(receiver, "/slow")[0] for _ in range(3)]
    receiver.on("/slow", hang)
    for kind in kinds:
        publish_bodies(kind, *[b"%d" % number for number in range(10 * SENDERS)])
    with working(under_way=3):
        wait_until(lambda: len(receiver.log) == 3 * SENDERS)
        time.sleep(0.5)  # longer than a turn needs to go on
        assert len(receiver.log) == 3 * SENDERS
        receiver.on("/slow", answer())
        receiver.close_port()
        receiver.open_port()
        wait_until_done()
    assert receiver.most_at_once["/slow"] <= 3 * SENDERS
    assert statuses() == {"DELIVERED": 3 * 10 * SENDERS}


@pytest.mark.behaviour("6.6")
def test_a_slow_endpoint_on_its_own_has_as_many_under_way_as_the_sender_may(receiver: Receiver, storage: None) -> None:
    kind, _ = queue_of(receiver, "/slow")
    receiver.on("/slow", slowly)
    publish_bodies(kind, *[b"%d" % number for number in range(20 * SENDERS)])
    sender = Line.objects.get(sender=2)
    with working(under_way=4, find=lambda: [sender.pk]):
        wait_until(lambda: statuses() == {"DELIVERED": 20, "PENDING": 20 * (SENDERS - 1)})
    assert receiver.most_at_once["/slow"] == 4


@pytest.mark.behaviour("6.6")
def test_slow_endpoints_of_one_message_do_not_stop_the_others_not_even_at_the_end_of_a_turn(
    receiver: Receiver, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lines, "TURN_SECONDS", 0.2)
    slow, _ = queue_of(receiver, "/slow")
    quick, _ = queue_of(receiver, "/quick")
    receiver.on("/slow", hang)
    publish_bodies(slow, *[b"slow"] * SENDERS)
    for _ in range(5):
        publish_bodies(quick, *[b"%d" % number for number in range(2 * SENDERS)])
        wait_until(lambda: statuses() == {"IN_FLIGHT": SENDERS, "DELIVERED": len(receiver.of("/quick"))})
        time.sleep(0.15)
    assert [request.ended for request in receiver.of("/slow")] == [None] * SENDERS
    assert statuses() == {"IN_FLIGHT": SENDERS, "DELIVERED": 10 * SENDERS}
    receiver.on("/slow", answer())
    receiver.close_port()
    receiver.open_port()
    wait_until_done()


@pytest.mark.behaviour("6.2")
def test_a_sender_serves_the_messages_of_its_number_only(receiver: Receiver, storage: None) -> None:
    kind, _ = queue_of(receiver, "/a")
    ids = [one.id for one in publish_bodies(kind, *[b"%d" % number for number in range(20)])]
    third = Line.objects.get(sender=2)
    assert third.queue == "queue.2"
    with working(find=lambda: [third.pk]):
        wait_until(lambda: len(receiver.log) == 4)
        time.sleep(0.1)
    assert sorted(int(request.headers["broker-message-id"]) for request in receiver.log) == [
        message_id for message_id in ids if message_id % SENDERS == 2
    ]


@pytest.mark.behaviour("1.7", "6.4")
def test_who_is_inactive_is_not_asked_and_a_group_without_anybody_waits_until_one_is_active_again(
    receiver: Receiver, storage: None
) -> None:
    kind, (one, other) = queue_of(receiver, "/one", "/other")
    receiver.on("/other", answer(500))
    publish_bodies(kind, *[b"%d" % number for number in range(10)])
    inactivate(one)
    with working():
        wait_until(lambda: len(receiver.of("/other")) == 10)
        inactivate(other.subscriber)
        QueueGroup.objects.update(due_at=None)
        wait_until(lambda: QueueGroup.objects.filter(due_at=UNTIL_ACTIVE).count() == 10)
        assert not receiver.of("/one")
        activate(one)
        wait_until_done()
    assert statuses(one) == {"DELIVERED": 10}
    assert statuses(other) == {"REDUNDANT": 10}


@pytest.mark.behaviour("1.8", "6.5")
@pytest.mark.parametrize(("late", "ends"), [(500, ["CANCELLED", "DELIVERED"]), (200, ["DELIVERED", "REDUNDANT"])])
def test_what_is_cancelled_under_way_ends_unless_it_is_taken(
    receiver: Receiver, storage: None, late: int, ends: list[str]
) -> None:
    kind, pair = queue_of(receiver, "/one", "/other")
    publish_bodies(kind, b"1")
    inactivate(pair[1])
    gate = receiver.gate("/one", answer(late))
    with working():
        wait_until(lambda: receiver.log)
        assert cancel_deliveries_of(pair[0].pk, reason="unwanted") == (0, 1)
        activate(pair[1])
        gate.open()
        wait_until_done()
    assert [Delivery.objects.get(subscription=each).status for each in pair] == ends
    assert not QueueGroup.objects.exists()
