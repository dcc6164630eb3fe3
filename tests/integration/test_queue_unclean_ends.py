"""QUEUE messages when workers vanish, freeze, or cannot settle: never two winners, repeats are flagged (4.11, 6.4)."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError

from delivery.callbacks.address import callback_terms
from delivery.dispatch.claim import claim
from delivery.models import Attempt, Delivery, Line, PageRead, QueueGroup
from delivery.operations import cancel_deliveries_of
from delivery.webhook.parts import Outgoing
from delivery.worker import pending_settles, run_lines
from delivery.worker.buffer import BodyBudget
from delivery.worker.line import ActiveLine
from delivery.worker.pages import PageRequest
from delivery.worker.queue_pages import read_groups
from delivery.worker.queue_settle import settle_groups
from delivery.worker.steps import Turn
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.driving import (
    NO_ANSWER,
    PLENTY,
    attempts_of,
    expire_lease,
    hurry_until_done,
    inactivate,
    publish_bodies,
    publish_numbered,
    settlement,
    wait_until_done,
    working,
)
from tests.receiver import Receiver, answer, wait_until

PATHS = ["/0", "/1", "/2", "/3"]


@pytest.fixture
def jobs(receiver: Receiver, storage: None) -> EventType:
    """A QUEUE event type with four endpoints in a group."""
    kind = factories.event_type(kind=EventKind.QUEUE)
    for path in PATHS:
        factories.subscription(event_type=kind, endpoint=receiver.url(path))
    return kind


def begin_and_vanish(which: int = 0) -> tuple[ActiveLine, Outgoing]:
    """Do what a worker does up to its request to one of a group's endpoints, and no more; return line and delivery."""
    line = Line.objects.get(pk=QueueGroup.objects.get().line_id or 0)
    (taken,) = claim([line.pk], worker="vanished")
    driven = run_lines.active_line(taken, Turn([taken.line_id], 0.5), 0.0, under_way=1)
    hand = read_groups([PageRequest(line.pk, taken.epoch, None, taken.capacity)], BodyBudget(PLENTY), callback_terms())[
        line.pk
    ]
    group = hand.take(aside_next=False)
    assert group
    delivery = group.delivery(group.endpoints[which], tried=0, uncertain=False)
    assert settle_groups({line.pk: taken.epoch}, marks=[driven.mark(delivery)]).started == {delivery.id: 0}
    return driven, delivery


def recover(line: ActiveLine) -> None:
    """Let the lease run out and another worker take over, until everything has been sent."""
    expire_lease(Line.objects.get(pk=line.id))
    with working():
        hurry_until_done()


def of_group(delivery: Outgoing) -> dict[str, Any]:
    """Return what a settlement of a group's delivery says beside its outcome."""
    return {"group_id": delivery.group_id}


def statuses() -> Counter[str]:
    return Counter(Delivery.objects.values_list("status", flat=True))


def path_of(delivery: Outgoing) -> str:
    return "/" + delivery.destination.url.rpartition("/")[2]


@pytest.mark.behaviour("4.11", "6.4")
@pytest.mark.parametrize("which", range(4))
def test_what_was_under_way_when_a_worker_vanished_is_repeated_to_the_same_endpoint_and_flagged(
    receiver: Receiver, jobs: EventType, which: int
) -> None:
    publish_bodies(jobs, b"1")
    line, delivery = begin_and_vanish(which)
    recover(line)
    (request,) = receiver.log
    assert (request.path, request.is_flagged) == (path_of(delivery), True)
    assert request.headers["webhook-id"] == f"grp_{delivery.group_id}"
    assert statuses() == {"DELIVERED": 1, "REDUNDANT": 3}
    assert Delivery.objects.get(status="DELIVERED").pk == delivery.id


@pytest.mark.behaviour("4.11", "6.4")
def test_others_are_flagged_too_where_the_endpoint_that_may_have_got_it_does_not_take_it(
    receiver: Receiver, jobs: EventType
) -> None:
    publish_bodies(jobs, b"1")
    line, delivery = begin_and_vanish()
    receiver.on(path_of(delivery), answer(404))
    recover(line)
    assert [request.path for request in receiver.log][:1] == [path_of(delivery)]
    assert [request.is_flagged for request in receiver.log] == [True, True]
    assert statuses() == {"REJECTED": 1, "DELIVERED": 1, "REDUNDANT": 2}


@pytest.mark.behaviour("4.11", "6.4")
@pytest.mark.parametrize("meanwhile", ["inactive", "cancelled"])
def test_others_are_flagged_where_the_endpoint_that_may_have_got_it_is_not_asked_again(
    receiver: Receiver, jobs: EventType, meanwhile: str
) -> None:
    publish_bodies(jobs, b"1")
    line, delivery = begin_and_vanish()
    one = Subscription.objects.get(pk=delivery.destination.subscription_id)
    if meanwhile == "inactive":
        inactivate(one)
    else:
        cancel_deliveries_of(one.pk, reason="unwanted")
    recover(line)
    (request,) = receiver.log
    assert (request.path != path_of(delivery), request.is_flagged) == (True, True)
    assert Delivery.objects.get(pk=delivery.id).status == ("CANCELLED" if meanwhile == "cancelled" else "REDUNDANT")


@pytest.mark.behaviour("4.11", "6.4")
@pytest.mark.parametrize("late", [200, 404, 500])
def test_a_worker_frozen_past_its_lease_settles_nothing_when_it_wakes(
    receiver: Receiver, jobs: EventType, late: int
) -> None:
    gates = [receiver.gate(path, answer(late), answer(201)) for path in PATHS]
    with working("frozen") as frozen:
        publish_bodies(jobs, b"1")
        wait_until(lambda: receiver.log)
        with working("other"):
            expire_lease(Line.objects.get(pk=QueueGroup.objects.get().line_id or 0))
            wait_until_done()
        for gate in gates:
            gate.open()
        wait_until(lambda: not frozen.driver.lines)
    assert [request.is_flagged for request in receiver.log] == [False, True]
    assert len({request.path for request in receiver.log}) == 1
    assert statuses() == {"DELIVERED": 1, "REDUNDANT": 3}
    assert [*Attempt.objects.values_list("status_code", flat=True)] == [201]


@pytest.mark.behaviour("4.11", "6.4")
def test_a_winner_recorded_twice_because_the_commit_was_not_heard_of_is_one(jobs: EventType) -> None:
    publish_bodies(jobs, b"1")
    line, delivery = begin_and_vanish()
    epochs, won = {line.id: line.claim.epoch}, settlement(line, delivery, **of_group(delivery))
    assert settle_groups(epochs, settlements=[won]).ended == {delivery.id}
    assert settle_groups(epochs, settlements=[won]).ended == frozenset()
    assert statuses() == {"DELIVERED": 1, "REDUNDANT": 3}
    assert (attempts_of(delivery.id), QueueGroup.objects.count()) == ([(1, 200)], 0)


@pytest.mark.behaviour("6.4")
def test_nobody_wins_a_group_that_has_ended(jobs: EventType) -> None:
    publish_bodies(jobs, b"1")
    line, delivery = begin_and_vanish()
    QueueGroup.objects.all().delete()
    settle_groups({line.id: line.claim.epoch}, settlements=[settlement(line, delivery, **of_group(delivery))])
    assert statuses() == {"REDUNDANT": 1, "PENDING": 3}
    assert attempts_of(delivery.id) == [(1, 200)]


@pytest.mark.behaviour("4.15", "6.4")
def test_nothing_is_sent_for_a_group_that_has_ended_since_it_was_read(jobs: EventType) -> None:
    publish_bodies(jobs, b"1")
    line, delivery = begin_and_vanish()
    refused = settlement(line, delivery, **(NO_ANSWER | of_group(delivery)))
    settle_groups({line.id: line.claim.epoch}, settlements=[refused])
    QueueGroup.objects.all().delete()
    assert settle_groups({line.id: line.claim.epoch}, marks=[line.mark(delivery)]).started == {}


@pytest.mark.behaviour("4.11")
def test_what_is_noted_for_mending_is_what_is_in_hand_and_under_way(jobs: EventType) -> None:
    publish_bodies(jobs, b"1")
    line, delivery = begin_and_vanish()
    terms, budget = callback_terms(), BodyBudget(PLENTY)
    busy = PageRequest(line.id, line.claim.epoch, None, 500, busy=[delivery.group_id or 0])
    for _ in range(3):
        assert len(read_groups([busy], budget, terms)[line.id]) == 0
    (noted,) = PageRead.objects.filter(line_id=line.id)
    assert sorted(noted.delivery_ids) == sorted(Delivery.objects.values_list("id", flat=True))


@pytest.mark.behaviour("4.11")
def test_who_has_lost_a_line_reads_nothing_and_leaves_the_notes_of_who_drives_it_now(
    receiver: Receiver, jobs: EventType
) -> None:
    publish_bodies(jobs, b"1")
    line = Line.objects.get(pk=QueueGroup.objects.get().line_id or 0)
    claim([line.pk], worker="frozen")
    expire_lease(line)
    driven, delivery = begin_and_vanish()
    thawed = PageRequest(line.pk, driven.claim.epoch - 1, None, 500)
    assert len(read_groups([thawed], BodyBudget(PLENTY), callback_terms())[line.pk]) == 0
    read_groups([replace(thawed, capacity=0)], BodyBudget(PLENTY), callback_terms())  # what is under way is not in it
    recover(driven)
    assert [(request.path, request.is_flagged) for request in receiver.log] == [(path_of(delivery), True)]
    assert statuses() == {"DELIVERED": 1, "REDUNDANT": 3}


@pytest.mark.behaviour("4.1", "6.6")
def test_queues_whose_settling_fails_leave_the_subscribers_lines_alone(
    receiver: Receiver, jobs: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OperationalError("not now")

    topic = factories.subscription(endpoint=receiver.url("/topic"))
    with working() as worker:
        monkeypatch.setattr(pending_settles, "settle_groups", fail)
        publish_bodies(jobs, *[b"%d" % number for number in range(10)])
        wait_until(lambda: worker.driver.lines._unsettled or len(worker.driver.lines) > 0)
        publish_numbered(topic.event_type, 20)
        wait_until(lambda: len(receiver.of("/topic")) == 20)
        assert not [request for request in receiver.log if request.path != "/topic"]
        monkeypatch.setattr(pending_settles, "settle_groups", settle_groups)
        wait_until_done()
    assert Counter(request.body for request in receiver.log if request.path != "/topic") == {
        b"%d" % number: 1 for number in range(10)
    }
