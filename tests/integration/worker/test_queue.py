"""QUEUE messages: one endpoint of each group takes each message, also after crashes (contract 6.2 to 6.6)."""

import asyncio
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, LiteralString

import psycopg
import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from broker_project.stack.load.receiver import Behaviour, Received, Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery.dispatch.claim import claim
from delivery.maintenance import periodic
from delivery.models import Attempt, Delivery, Line, QueueGroup
from delivery.operations import cancel_deliveries_of
from delivery.pause import pause, resume
from delivery.webhook.request import Outgoing
from delivery.worker import leases, round_trip
from delivery.worker.buffer import PageRequest
from delivery.worker.leases import active_line
from delivery.worker.line import ActiveLine
from delivery.worker.queue_settle import SETTLE_GROUPS
from delivery.worker.round_trip import mark_of
from delivery.worker.rounds import NO_LINK
from delivery.worker.slots import Send, SlotState
from delivery.worker.sql_blocks import with_blocks
from subscriptions.models import EventKind, EventType, Subscription
from tests.support import broker, factories
from tests.support.behaviours import close
from tests.support.broker import Worker
from tests.support.database import damage_long_bodies

ENDPOINTS = ["/a", "/b", "/c"]
MANY = 2 * broker.QUEUE_SENDERS * broker.MAX_IN_FLIGHT
SOON = 12.0
"""Long before a request that hangs is given up."""

PATHS = ["/0", "/1", "/2", "/3"]


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


@pytest.mark.behaviour("11.1")
def test_a_sender_reads_its_next_page_when_none_is_left(storage: None) -> None:
    kind = factories.event_type(kind=EventKind.QUEUE)
    factories.subscription(event_type=kind)
    broker.publish_numbered(kind, 4 * broker.QUEUE_SENDERS)
    line = Line.objects.get(sender=0)
    page = broker.read_groups_of(PageRequest(line.pk, line.epoch, 3))
    left = [(len(page), page.is_low)]
    while page.take(deferred_next=False):
        left.append((len(page), page.is_low))
    assert left == [(3, False), (2, False), (1, False), (0, True)]


@pytest.mark.behaviour("6.4", "10.1")
def test_each_message_is_taken_by_one_endpoint_of_its_group(receiver: Receiver, worker: Worker) -> None:
    kind, _ = queue_of(receiver, *ENDPOINTS)
    bodies = [b"%d" % number for number in range(60)]
    broker.publish_bodies(kind, *bodies)
    broker.wait_until_done()
    assert Counter(request.body for request in receiver.log) == Counter(bodies)
    assert statuses() == {"DELIVERED": 60, "REDUNDANT": 120}
    assert not QueueGroup.objects.exists()
    assert all(len(receiver.of(path)) > 5 for path in ENDPOINTS), "shuffled for each message"
    groups = dict(Delivery.objects.filter(status="DELIVERED").values_list("message_id", "group_id"))
    for request in receiver.log:
        assert request.headers["webhook-id"] == f"grp_{groups[int(request.headers['broker-message-id'])]}"
        assert (request.headers["webhook-attempt"], request.is_flagged) == ("1", False)
        assert "webhook-sequence" not in request.headers


@pytest.mark.behaviour("6.3", "11.9")
def test_a_message_that_postgresql_cannot_read_stops_only_its_group(receiver: Receiver, storage: None) -> None:
    kind, _ = queue_of(receiver, "/a", "/b")
    long = os.urandom(5_000)
    broker.publish_bodies(kind, *[long, *[b"%d" % number for number in range(MANY)]])
    damage_long_bodies()
    with broker.running_worker():
        wait_until(lambda: len(receiver.log) == MANY)
        wait_until(lambda: QueueGroup.objects.filter(due_at__gt=Now()).exists())
    assert statuses() == {"DELIVERED": MANY, "REDUNDANT": MANY, "PENDING": 2}


@pytest.mark.behaviour("2.10", "4.15")
def test_expired_groups_are_not_sent(receiver: Receiver, storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(periodic.JOBS, "expire_overdue")
    kind, _ = queue_of(receiver, "/a")
    broker.publish_bodies(kind, b"late")
    Delivery.objects.update(expires_at=Now())
    broker.publish_bodies(kind, b"in time")
    with broker.running_worker():
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
def test_the_next_endpoint_takes_over(receiver: Receiver, worker: Worker, behaviour: Behaviour, status: str) -> None:
    kind, (unwilling, willing) = queue_of(receiver, "/unwilling", "/willing")
    receiver.on("/unwilling", behaviour)
    broker.publish_bodies(kind, *[b"%d" % number for number in range(20)])
    broker.wait_until_done()
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
    broker.publish_bodies(kind, *[b"%d" % number for number in range(10)])
    broker.wait_until_done()
    assert statuses() == {"REJECTED": 10, "3xxNOTSUPPORTED": 10}
    assert (QueueGroup.objects.count(), len(receiver.log)) == (0, 20)


@pytest.mark.behaviour("6.5", "4.11")
def test_a_group_that_nobody_takes_is_tried_again_with_a_growing_pause(receiver: Receiver, worker: Worker) -> None:
    kind, (refusing, failing) = queue_of(receiver, "/refusing", "/failing")
    receiver.on("/refusing", answer(410))
    receiver.on("/failing", answer(500), close, answer(200))
    broker.publish_bodies(kind, b"1")
    broker.wait_until_done()
    first, second, third = receiver.of("/failing")
    assert [second.begun - first.begun >= 1.0, third.begun - second.begun >= 2.0] == [True, True]
    assert [request.headers["webhook-attempt"] for request in receiver.log] == ["1", "2", "3", "4"]
    assert [request.is_flagged for request in receiver.of("/failing")] == [False, False, True]
    assert len({request.headers["webhook-id"] for request in receiver.log}) == 1
    assert [Delivery.objects.get(subscription=one).status for one in (refusing, failing)] == ["REJECTED", "DELIVERED"]
    assert broker.attempts_of(Delivery.objects.get(subscription=failing).pk) == [(1, 500), (2, None), (3, 200)]


@pytest.mark.behaviour("6.5")
def test_a_lone_endpoint_gets_a_pause_between_its_requests(receiver: Receiver, worker: Worker) -> None:
    kind, (_, other) = queue_of(receiver, "/one", "/other")
    gate = receiver.gate("/one", answer(500))
    receiver.on("/one", gate)
    broker.publish_bodies(kind, *[b"%d" % number for number in range(20)])
    wait_until(lambda: statuses(other)["DELIVERED"] + len(receiver.of("/one")) == 20)
    asked = len(receiver.of("/one"))
    broker.inactivate(other)
    gate.open()
    by_message: dict[bytes, list[Received]] = defaultdict(list)
    wait_until(lambda: len(receiver.of("/one")) >= 2 * asked > 0)
    for request in receiver.of("/one"):
        by_message[request.body].append(request)
    pauses = [later.begun - (one.ended or 0.0) for each in by_message.values() for one, later in pairwise(each)]
    assert len(pauses) >= asked == len(by_message)
    assert min(pauses) >= 0.9
    receiver.on("/one", answer())
    broker.wait_until_done()


@pytest.mark.behaviour("6.6")
def test_a_sender_has_so_many_messages_in_flight_and_no_more(receiver: Receiver, storage: None) -> None:
    kinds = [queue_of(receiver, "/slow")[0] for _ in range(3)]
    receiver.on("/slow", hang)
    for kind in kinds:
        broker.publish_bodies(kind, *[b"%d" % number for number in range(10 * broker.QUEUE_SENDERS)])
    with broker.running_worker(queue_max_in_flight=3):
        wait_until(lambda: len(receiver.log) == 3 * broker.QUEUE_SENDERS)
        time.sleep(0.5)  # longer than a turn needs to go on
        assert len(receiver.log) == 3 * broker.QUEUE_SENDERS
        receiver.on("/slow", answer())
        receiver.close_port()
        receiver.open_port()
        broker.wait_until_done()
    assert receiver.max_at_once["/slow"] <= 3 * broker.QUEUE_SENDERS
    assert statuses() == {"DELIVERED": 3 * 10 * broker.QUEUE_SENDERS}


@pytest.mark.behaviour("6.6")
def test_a_slow_endpoint_on_its_own_has_as_many_in_flight_as_the_sender_may(receiver: Receiver, storage: None) -> None:
    kind, _ = queue_of(receiver, "/slow")
    receiver.on("/slow", slowly)
    broker.publish_bodies(kind, *[b"%d" % number for number in range(20 * broker.QUEUE_SENDERS)])
    sender = Line.objects.get(sender=2)
    with broker.running_worker(queue_max_in_flight=4, find=lambda: [sender.pk]):
        wait_until(lambda: statuses() == {"DELIVERED": 20, "PENDING": 20 * (broker.QUEUE_SENDERS - 1)})
    assert receiver.max_at_once["/slow"] == 4


@pytest.mark.behaviour("6.6")
def test_slow_endpoints_leave_others_alone(receiver: Receiver, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "TURN_SECONDS", 0.2)
    slow, _ = queue_of(receiver, "/slow")
    quick, _ = queue_of(receiver, "/quick")
    receiver.on("/slow", hang)
    broker.publish_bodies(slow, *[b"slow"] * broker.QUEUE_SENDERS)
    for _ in range(5):
        broker.publish_bodies(quick, *[b"%d" % number for number in range(2 * broker.QUEUE_SENDERS)])
        wait_until(lambda: statuses() == {"IN_FLIGHT": broker.QUEUE_SENDERS, "DELIVERED": len(receiver.of("/quick"))})
        time.sleep(0.15)
    assert [request.ended for request in receiver.of("/slow")] == [None] * broker.QUEUE_SENDERS
    assert statuses() == {"IN_FLIGHT": broker.QUEUE_SENDERS, "DELIVERED": 10 * broker.QUEUE_SENDERS}
    receiver.on("/slow", answer())
    receiver.close_port()
    receiver.open_port()
    broker.wait_until_done()


@pytest.mark.behaviour("6.2")
def test_a_sender_serves_the_messages_of_its_number_only(receiver: Receiver, storage: None) -> None:
    kind, _ = queue_of(receiver, "/a")
    ids = [one.id for one in broker.publish_bodies(kind, *[b"%d" % number for number in range(20)])]
    third = Line.objects.get(sender=2)
    assert third.queue == "queue.2"
    with broker.running_worker(find=lambda: [third.pk]):
        wait_until(lambda: len(receiver.log) == 4)
        time.sleep(0.1)
    assert sorted(int(request.headers["broker-message-id"]) for request in receiver.log) == [
        message_id for message_id in ids if message_id % broker.QUEUE_SENDERS == 2
    ]


@pytest.mark.behaviour("1.7", "6.4")
def test_a_group_without_active_endpoints_waits(receiver: Receiver, storage: None) -> None:
    kind, (one, other) = queue_of(receiver, "/one", "/other")
    receiver.on("/other", answer(500))
    broker.publish_bodies(kind, *[b"%d" % number for number in range(10)])
    broker.inactivate(one)
    with broker.running_worker():
        wait_until(lambda: len(receiver.of("/other")) == 10)
        broker.inactivate(other.subscriber)
        QueueGroup.objects.update(waits_for="TURN", due_at=None)
        wait_until(lambda: QueueGroup.objects.filter(waits_for="SUBSCRIPTION").count() == 10)
        assert not receiver.of("/one")
        broker.activate(one)
        broker.wait_until_done()
    assert statuses(one) == {"DELIVERED": 10}
    assert statuses(other) == {"REDUNDANT": 10}


@pytest.mark.behaviour("1.8", "6.5")
@pytest.mark.parametrize(("late", "ends"), [(500, ["CANCELLED", "DELIVERED"]), (200, ["DELIVERED", "REDUNDANT"])])
def test_a_job_cancelled_in_flight_may_end(receiver: Receiver, storage: None, late: int, ends: list[str]) -> None:
    kind, pair = queue_of(receiver, "/one", "/other")
    broker.publish_bodies(kind, b"1")
    broker.inactivate(pair[1])
    gate = receiver.gate("/one", answer(late))
    with broker.running_worker():
        wait_until(lambda: receiver.log)
        assert cancel_deliveries_of(pair[0].pk, reason="unwanted") == (0, 1, True)
        broker.activate(pair[1])
        gate.open()
        broker.wait_until_done()
    assert [Delivery.objects.get(subscription=each).status for each in pair] == ends
    assert not QueueGroup.objects.exists()


@pytest.fixture
def hung(receiver: Receiver, worker: Worker) -> Iterator[str]:
    """Return the path of an endpoint that hangs, until the test is over."""
    receiver.on("/hung", hang)
    yield "/hung"
    receiver.on("/hung", answer())
    receiver.close_port()
    receiver.open_port()
    broker.wait_until_done()


@pytest.mark.behaviour("6.4", "6.6")
@pytest.mark.parametrize(("hanging", "good"), [(1, 1), (1, 2), (2, 1)])
def test_hanging_endpoints_leave_messages_to_a_good_one(receiver: Receiver, hung: str, hanging: int, good: int) -> None:
    paths = [*[hung] * hanging, *[f"/good{number}" for number in range(good)]]
    kind, _ = queue_of(receiver, *paths)
    broker.publish_bodies(kind, *[b"x"] * 5 * MANY)
    asked = broker.QUEUE_SENDERS * broker.MAX_IN_FLIGHT
    wait_until(lambda: QueueGroup.objects.count() <= asked, SOON, saying=QueueGroup.objects.count)
    assert 0 < len(receiver.of(hung)) < asked


@pytest.mark.behaviour("6.6")
@pytest.mark.parametrize("failing", [[], ["/failing"]], ids=["alone", "with one that fails"])
def test_a_hanging_endpoint_does_not_stop_others(receiver: Receiver, hung: str, failing: list[str]) -> None:
    (stuck, _), (quick, _) = queue_of(receiver, hung, *failing), queue_of(receiver, "/quick")
    receiver.on("/failing", answer(500))
    broker.publish_bodies(stuck, *[b"stuck"] * 2 * MANY)
    wait_until(lambda: len(receiver.of(hung)) >= broker.QUEUE_SENDERS * broker.MAX_IN_FLIGHT // 2)
    broker.publish_bodies(quick, *[b"quick"] * MANY)
    wait_until(lambda: len(receiver.of("/quick")) == MANY, SOON, saying=lambda: len(receiver.of("/quick")))
    assert len(receiver.of(hung)) == broker.QUEUE_SENDERS * broker.MAX_IN_FLIGHT // 2


@pytest.fixture
def jobs(receiver: Receiver, storage: None) -> EventType:
    """A QUEUE event type with four endpoints in a group."""
    return queue_of(receiver, *PATHS)[0]


def begin_and_vanish(jobs: EventType, which: int = 0) -> tuple[ActiveLine, Outgoing]:
    """Publish, mark a request to an endpoint of the group as a worker does, and vanish; return line and delivery."""
    broker.publish_bodies(jobs, b"1")
    return claim_and_vanish(which)


def claim_and_vanish(which: int = 0) -> tuple[ActiveLine, Outgoing]:
    line = Line.objects.get(pk=QueueGroup.objects.get().line_id or 0)
    (taken,) = claim([line.pk], worker="vanished")
    driven = active_line(taken, NO_LINK, 0.0, queue_max_in_flight=1)
    return driven, mark_next(driven, which)


def mark_next(line: ActiveLine, which: int = 0, busy: Sequence[int] = ()) -> Outgoing:
    """Mark a request to an endpoint of the line's next group; return the delivery."""
    page = broker.read_groups_of(PageRequest(line.id, line.claim.epoch, line.claim.capacity, busy=busy))
    group = page.take(deferred_next=False)
    assert group
    delivery = group.delivery(group.endpoints[which], tried=0, uncertain=False)
    marked = broker.settle_groups(line, marks=[mark_of(line, delivery)])
    assert marked.started == {delivery.id: 0}
    return delivery


def recover(line: ActiveLine) -> None:
    """Let the lease run out and another worker take over, until everything has been sent."""
    broker.expire_lease(Line.objects.get(pk=line.id))
    with broker.running_worker():
        broker.cut_pauses_until_done()


def path_of(delivery: Outgoing) -> str:
    return "/" + delivery.destination.url.rpartition("/")[2]


@pytest.mark.behaviour("4.11", "6.4")
@pytest.mark.parametrize("which", range(4))
def test_a_crash_repeats_to_the_same_endpoint(receiver: Receiver, jobs: EventType, which: int) -> None:
    line, delivery = begin_and_vanish(jobs, which)
    recover(line)
    (request,) = receiver.log
    assert (request.path, request.is_flagged) == (path_of(delivery), True)
    assert request.headers["webhook-id"] == f"grp_{delivery.group_id}"
    assert statuses() == {"DELIVERED": 1, "REDUNDANT": 3}
    assert Delivery.objects.get(status="DELIVERED").pk == delivery.id


@pytest.mark.behaviour("4.11", "6.4")
def test_the_next_endpoint_is_flagged_after_a_crash(receiver: Receiver, jobs: EventType) -> None:
    line, delivery = begin_and_vanish(jobs)
    receiver.on(path_of(delivery), answer(404))
    recover(line)
    assert [request.path for request in receiver.log][:1] == [path_of(delivery)]
    assert [request.is_flagged for request in receiver.log] == [True, True]
    assert statuses() == {"REJECTED": 1, "DELIVERED": 1, "REDUNDANT": 2}


@pytest.mark.behaviour("4.11", "6.4")
@pytest.mark.parametrize("meanwhile", ["inactive", "cancelled"])
def test_others_are_flagged_without_the_first(receiver: Receiver, jobs: EventType, meanwhile: str) -> None:
    line, delivery = begin_and_vanish(jobs)
    one = Subscription.objects.get(pk=delivery.destination.subscription_id)
    if meanwhile == "inactive":
        broker.inactivate(one)
    else:
        cancel_deliveries_of(one.pk, reason="unwanted")
    recover(line)
    (request,) = receiver.log
    assert (request.path != path_of(delivery), request.is_flagged) == (True, True)
    assert Delivery.objects.get(pk=delivery.id).status == ("CANCELLED" if meanwhile == "cancelled" else "REDUNDANT")


@pytest.mark.behaviour("4.11", "6.4")
@pytest.mark.parametrize("late", [200, 404, 500])
def test_an_expired_lease_settles_nothing(receiver: Receiver, jobs: EventType, late: int) -> None:
    gates = [receiver.gate(path, answer(late), answer(201)) for path in PATHS]
    with broker.running_worker("frozen") as frozen:
        broker.publish_bodies(jobs, b"1")
        wait_until(lambda: receiver.log)
        with broker.running_worker("other"):
            broker.expire_lease(Line.objects.get(pk=QueueGroup.objects.get().line_id or 0))
            broker.wait_until_done()
        for gate in gates:
            gate.open()
        wait_until(lambda: not frozen.event_loop.lines)
    assert [request.is_flagged for request in receiver.log] == [False, True]
    assert len({request.path for request in receiver.log}) == 1
    assert statuses() == {"DELIVERED": 1, "REDUNDANT": 3}
    assert [*Attempt.objects.values_list("status_code", flat=True)] == [201]


@pytest.mark.behaviour("4.11", "6.4")
def test_a_winner_recorded_twice_because_the_commit_was_not_heard_of_is_one(jobs: EventType) -> None:
    line, delivery = begin_and_vanish(jobs)
    won = broker.settlement(line, delivery, group_id=delivery.group_id)
    assert broker.settle_groups(line, settlements=[won]).ended == {delivery.id}
    assert broker.settle_groups(line, settlements=[won]).ended == frozenset()
    assert statuses() == {"DELIVERED": 1, "REDUNDANT": 3}
    assert (broker.attempts_of(delivery.id), QueueGroup.objects.count()) == ([(1, 200)], 0)


@pytest.mark.behaviour("4.11", "6.4", "11.9")
def test_what_was_settled_stays_so_while_somebody_has_locked_what_is_put_back(
    jobs: EventType, elsewhere: psycopg.Connection[Any]
) -> None:
    line, won = begin_and_vanish(jobs)
    broker.publish_numbered(jobs, broker.QUEUE_SENDERS)
    changed = mark_next(line, busy=[won.group_id or 0])
    Subscription.objects.filter(pk=changed.destination.subscription_id).update(position=9)
    elsewhere.execute("SELECT FROM delivery_queuegroup WHERE id = %s FOR UPDATE", [changed.group_id])
    (slot,), (slots, trip) = line.slots, broker.round_trip_of(line)
    slot.step, slot.may_be_marked = Send(changed), True
    slot.ended = broker.settlement(line, won, group_id=won.group_id)

    assert ([*trip.settle()], slot.state) == ([], SlotState.LOCKED)
    elsewhere.rollback()
    slots.move(slot, SlotState.SETTLING)
    assert ([*trip.settle()], slot.sequence) == ([slot], None)
    assert [Delivery.objects.get(pk=one.id).status for one in (won, changed)] == ["DELIVERED", "PENDING"]
    assert QueueGroup.objects.get(pk=changed.group_id or 0).first_id == changed.id
    assert broker.attempts_of(won.id) == [(1, 200)]


@pytest.mark.behaviour("6.4")
def test_an_ended_group_has_no_winner(jobs: EventType) -> None:
    line, delivery = begin_and_vanish(jobs)
    QueueGroup.objects.all().delete()
    broker.settle_groups(line, settlements=[broker.settlement(line, delivery, group_id=delivery.group_id)])
    assert statuses() == {"REDUNDANT": 1, "PENDING": 3}
    assert broker.attempts_of(delivery.id) == [(1, 200)]


@pytest.mark.behaviour("4.15", "6.4")
def test_nothing_is_sent_for_a_group_that_has_ended_since_it_was_read(jobs: EventType) -> None:
    line, delivery = begin_and_vanish(jobs)
    refused = broker.settlement(line, delivery, **broker.NO_ANSWER, group_id=delivery.group_id)
    broker.settle_groups(line, settlements=[refused])
    QueueGroup.objects.all().delete()
    assert broker.settle_groups(line, marks=[mark_of(line, delivery)]).started == {}


@pytest.mark.behaviour("4.11")
def test_a_worker_that_lost_its_line_reads_nothing(receiver: Receiver, jobs: EventType) -> None:
    broker.publish_bodies(jobs, b"1")
    line = Line.objects.get(pk=QueueGroup.objects.get().line_id or 0)
    claim([line.pk], worker="frozen")
    broker.expire_lease(line)
    driven, delivery = claim_and_vanish()
    thawed = PageRequest(line.pk, driven.claim.epoch - 1, 500)
    assert len(broker.read_groups_of(thawed)) == 0
    broker.read_groups_of(replace(thawed, capacity=0))  # what is in flight is not in it
    recover(driven)
    assert [(request.path, request.is_flagged) for request in receiver.log] == [(path_of(delivery), True)]
    assert statuses() == {"DELIVERED": 1, "REDUNDANT": 3}


@pytest.mark.behaviour("4.1", "6.6")
def test_failing_settles_of_queues_leave_lines_alone(
    receiver: Receiver, jobs: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(statement: LiteralString, blocks: frozenset[str]) -> LiteralString:
        if statement == SETTLE_GROUPS:
            raise OperationalError("not now")
        return with_blocks(statement, blocks)

    topic = factories.subscription(endpoint=receiver.url("/topic"))
    with broker.running_worker() as worker:
        monkeypatch.setattr(round_trip, "with_blocks", fail)
        broker.publish_bodies(jobs, *[b"%d" % number for number in range(10)])
        wait_until(lambda: len(worker.event_loop.lines) > 0)
        broker.publish_numbered(topic.event_type, 20)
        wait_until(lambda: len(receiver.of("/topic")) == 20)
        assert not [request for request in receiver.log if request.path != "/topic"]
        monkeypatch.setattr(round_trip, "with_blocks", with_blocks)
        broker.wait_until_done()
    assert Counter(request.body for request in receiver.log if request.path != "/topic") == {
        b"%d" % number: 1 for number in range(10)
    }


@pytest.mark.behaviour("6.3", "6.4", "11.9")
@pytest.mark.parametrize("table", ["delivery_open", "delivery_queuegroup"])
def test_what_was_taken_goes_to_no_second_endpoint_while_somebody_has_it_locked(
    receiver: Receiver, storage: None, elsewhere: psycopg.Connection[Any], table: LiteralString
) -> None:
    kind, _ = queue_of(receiver, "/a", "/b")
    gates = [receiver.gate(path) for path in ("/a", "/b")]
    with broker.running_worker():
        bodies = broker.publish_numbered(kind, 1)
        wait_until(lambda: len(receiver.log) == 1)
        taken = Delivery.objects.get(status="IN_FLIGHT")
        locked = taken.pk if table == "delivery_open" else taken.group_id
        elsewhere.execute(f"SELECT FROM {table} WHERE id = %s FOR UPDATE", [locked])
        for gate in gates:
            gate.open()
        bodies += broker.publish_numbered(kind, MANY, first=1)
        others = Delivery.objects.exclude(line=taken.line_id)
        wait_until(lambda: others.filter(status="DELIVERED").count() == MANY * 4 // 5)
        elsewhere.rollback()
        broker.wait_until_done()
    assert sorted(request.body for request in receiver.log) == sorted(bodies)
    assert statuses() == {"DELIVERED": len(bodies), "REDUNDANT": len(bodies)}


@pytest.mark.behaviour("6.2", "11.9")
def test_a_sender_that_somebody_has_locked_holds_up_no_other(
    receiver: Receiver, worker: Worker, elsewhere: psycopg.Connection[Any]
) -> None:
    kind, _ = queue_of(receiver, "/a")
    broker.publish_numbered(kind, broker.QUEUE_SENDERS)
    broker.wait_until_done()
    elsewhere.execute("SELECT FROM delivery_line WHERE sender = 0 FOR UPDATE")
    others = Delivery.objects.exclude(line__sender=0).filter(status="DELIVERED")
    for first in range(broker.QUEUE_SENDERS, 10 * broker.QUEUE_SENDERS, broker.QUEUE_SENDERS):
        broker.publish_numbered(kind, broker.QUEUE_SENDERS, first=first)
        sent = (first // broker.QUEUE_SENDERS + 1) * (broker.QUEUE_SENDERS - 1)
        wait_until(lambda sent=sent: others.count() == sent, SOON, saying=others.count)  # type: ignore[misc]
    elsewhere.rollback()
    broker.wait_until_done()
    assert statuses() == {"DELIVERED": 10 * broker.QUEUE_SENDERS}
    assert not any(request.is_flagged for request in receiver.log)


@pytest.mark.behaviour("1.7", "11.9")
def test_a_delivery_that_nobody_takes_holds_up_no_line_while_somebody_has_it_locked(
    receiver: Receiver, storage: None, elsewhere: psycopg.Connection[Any]
) -> None:
    kind, (paused,) = queue_of(receiver, "/paused")
    broker.publish_numbered(kind, 1)
    pause([paused.pk], reason="")
    group = QueueGroup.objects.get()
    elsewhere.execute("SELECT FROM delivery_open WHERE subscription_id = %s FOR UPDATE", [paused.pk])
    other, _ = queue_of(receiver, "/other")
    with broker.running_worker():
        for number in range(10):
            broker.publish_numbered(other, broker.QUEUE_SENDERS)
            sent = (number + 1) * broker.QUEUE_SENDERS
            wait_until(lambda sent=sent: len(receiver.of("/other")) == sent, SOON)  # type: ignore[misc]
        assert QueueGroup.objects.get(pk=group.pk).waits_for == "TURN"
        elsewhere.rollback()
        wait_until(lambda: QueueGroup.objects.get(pk=group.pk).waits_for == "SUBSCRIPTION")
    elsewhere.execute("SELECT FROM delivery_open WHERE subscription_id = %s FOR UPDATE", [paused.pk])
    resume([paused.pk])
    assert broker.lines_with_due_work() == [group.line_id]
    elsewhere.rollback()
    with broker.running_worker():
        broker.wait_until_done()
    assert (receiver.bodies("/paused"), Delivery.objects.open().exists()) == ([b"0"], False)
