"""A CONCURRENT subscriber: several of its deliveries at a time, in no order, and nothing else is different (4.13)."""

import resource
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db.models.functions import Now

from broker_project.core import boot_clock
from broker_project.stack.load.receiver import Gate, Receiver, answer
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch.claim import claim
from delivery.limits import HOLDS_SECONDS, MAX_EXTRA_SLOTS, MAX_IN_FLIGHT
from delivery.models import Attempt, Delivery, Hold, Line, PageRead
from delivery.operations import cancel, try_now
from delivery.statuses import DeliveryStatus
from delivery.worker import leases, rounds
from delivery.worker.buffer import PageRequest
from delivery.worker.leases import active_line
from delivery.worker.round_trip import mark_of
from delivery.worker.rounds import NO_LINK
from subscriptions.models import PausedBy, Processing, Subscriber, Subscription
from subscriptions.scripting.jobs import Failed, Made, NotRun, Result
from tests.support import broker
from tests.support.broker import Worker, lines_with_due_work
from tests.support.factories import retry_policy, subscriber, subscription
from tests.support.stepped_worker import stepped_worker_of

pytestmark = pytest.mark.behaviour("4.13")

SOON = 10.0
"""Before a worker takes a database for hung, in seconds."""
DELIVERED, IN_FLIGHT, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription of a subscriber that is sent three at a time."""
    return subscription(subscriber(processing="CONCURRENT", concurrency=3), endpoint=receiver.url("/a"))


def closed_gate(receiver: Receiver) -> Gate:
    """Let all requests wait at one gate."""
    gate = receiver.gate("/a")
    receiver.on("/a", gate)
    return gate


def wait_for_requests(receiver: Receiver, count: int) -> None:
    wait_until(lambda: len(receiver.log) == count, saying=lambda: [*Delivery.objects.values("id", "status")])


def change(owner: Subscriber, processing: Processing, concurrency: int = 1) -> None:
    Subscriber.objects.filter(pk=owner.pk).update(processing=processing, concurrency=concurrency)


def test_the_concurrency_is_used_and_kept_to(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    gate = closed_gate(receiver)
    bodies = broker.publish_numbered(wanted.event_type, 40)
    wait_for_requests(receiver, 3)
    assert broker.statuses(wanted).count(IN_FLIGHT) == 3
    gate.open()
    broker.wait_until_done()
    assert (sorted(receiver.bodies("/a")), broker.statuses(wanted)) == (sorted(bodies), [DELIVERED] * 40)
    assert receiver.max_at_once["/a"] == 3


def test_a_hanging_delivery_leaves_other_slots_free(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    gate = receiver.gate("/a")
    broker.publish_numbered(wanted.event_type, 20)
    wait_until(
        lambda: broker.statuses(wanted) == [IN_FLIGHT] + [DELIVERED] * 19, saying=lambda: broker.statuses(wanted)
    )
    (noted,) = PageRead.objects.filter(line=broker.line_of(wanted.subscriber))
    assert Delivery.objects.open().get().pk in noted.delivery_ids, "mended after an unclean end, and nothing piles up"
    gate.open()
    broker.wait_until_done()
    assert len(receiver.log) == 20


@pytest.mark.behaviour("1.4")
def test_busy_deliveries_do_not_fill_a_short_page(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    (taken,) = claim([broker.line_of(wanted.subscriber).pk], worker="worker")
    first, second, _ = (one.id for one in broker.outgoing_of(taken))
    line = PageRequest(taken.line_id, taken.epoch, capacity=1, busy=[first], taken=[first])
    hand = broker.read_page(line)
    assert [one.id for one in iter(lambda: hand.take(deferred_next=False), None)] == [second]


@pytest.mark.behaviour("4.11", "11.3")
def test_an_answer_that_cannot_be_recorded_yet_is_found_if_the_worker_ends(
    receiver: Receiver, worker: Worker, wanted: Subscription, elsewhere: psycopg.Connection[Any]
) -> None:
    gate = closed_gate(receiver)
    broker.publish_numbered(wanted.event_type, 1)
    wait_for_requests(receiver, 1)
    locked = Delivery.objects.open().get()
    elsewhere.execute("SELECT FROM delivery_open WHERE id = %s FOR UPDATE", [locked.pk])
    gate.open()
    broker.publish_numbered(wanted.event_type, 1, first=1)
    last = Delivery.objects.latest("id")
    wait_until(lambda: last.pk in noted(wanted))
    assert locked.pk in noted(wanted)
    elsewhere.rollback()
    broker.wait_until_done()


def noted(wanted: Subscription) -> set[int]:
    """Return what recovery would look for."""
    return {
        one for page in PageRead.objects.filter(line=broker.line_of(wanted.subscriber)) for one in page.delivery_ids
    }


@pytest.mark.behaviour("4.10")
def test_unordered_deliveries_have_no_numbers(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    for processing, concurrency in [(Processing.SERIAL, 1), (Processing.CONCURRENT, 3), (Processing.SERIAL, 1)]:
        change(wanted.subscriber, processing, concurrency)
        broker.publish_numbered(wanted.event_type, 3)
        broker.wait_until_done()
    numbers = [request.headers.get("webhook-sequence") for request in receiver.log]
    assert numbers == ["1", "2", "3", None, None, None, "4", "5", "6"]


@pytest.mark.behaviour("4.7")
def test_a_held_delivery_leaves_other_slots_free(receiver: Receiver, wanted: Subscription, long_pauses: None) -> None:
    receiver.on("/a", answer(503), answer())
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 9)
        hold = broker.wait_until_held(wanted.subscriber)
        assert (lines_with_due_work(), len(receiver.log)) == ([], 9)
        assert (hold.delivery_id, hold.failures) == (receiver.log[0].delivery_id, 1)
        broker.publish_numbered(wanted.event_type, 9)
        wait_until(lambda: broker.statuses(wanted).count(DELIVERED) == 17, saying=lambda: broker.statuses(wanted))
        broker.cut_pauses_until_done()
    assert len(receiver.log) == 19


@pytest.mark.behaviour("4.8")
def test_a_dead_endpoint_gets_a_request_a_slot(receiver: Receiver, wanted: Subscription, long_pauses: None) -> None:
    receiver.close_port()
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 9)
        held = broker.holds_of(wanted.subscriber).filter(line__lease_until=None)
        wait_until(lambda: held.count() == 3, saying=lambda: [*Hold.objects.values()])
        broker.publish_numbered(wanted.event_type, 9)
        assert (lines_with_due_work(), claim([held[0].line_id], worker="other")) == ([], [])
        receiver.open_port()
        broker.cut_pauses_until_done()
    assert (Attempt.objects.filter(status_code=None).count(), len(receiver.log)) == (3, 18)


@pytest.mark.behaviour("4.7")
@pytest.mark.parametrize(("due", "slots"), [(True, 3), (False, 2)])
def test_what_is_held_goes_first_when_it_is_due(wanted: Subscription, *, due: bool, slots: int) -> None:
    broker.publish_numbered(wanted.event_type, 9)
    line, newest = broker.line_of(wanted.subscriber), Delivery.objects.order_by("-id")[0]
    Hold.objects.create(delivery=newest, line=line, config_version=wanted.version + wanted.subscriber.version)
    if not due:
        Hold.objects.update(due_at=Now() + timedelta(minutes=1))
    (taken,) = claim([line.pk], worker="worker")
    driven = active_line(taken, NO_LINK, 0.0, queue_max_in_flight=16)
    page = broker.read_page(driven.page_request())
    assert (len(driven.slots), len(page), [one.id for one in page.heads]) == (slots, 8 + due, [newest.pk] * due)


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_the_concurrency_may_change(receiver: Receiver, worker: Worker, wanted: Subscription, concurrency: int) -> None:
    first, second = closed_gate(receiver), closed_gate(receiver)
    receiver.on("/a", first)
    broker.publish_numbered(wanted.event_type, 20)
    wait_for_requests(receiver, 3)
    change(wanted.subscriber, Processing.SERIAL if concurrency == 1 else Processing.CONCURRENT, concurrency)
    receiver.on("/a", second)
    first.open()
    wait_for_requests(receiver, 3 + concurrency)
    assert broker.statuses(wanted).count(IN_FLIGHT) == concurrency
    second.open()
    broker.wait_until_done()
    assert len(receiver.log) == 20


@pytest.mark.behaviour("4.12")
def test_extra_slots_are_limited(receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_IN_FLIGHT", 6)
    monkeypatch.setattr(rounds, "MAX_EXTRA_SLOTS", 2)
    subscription(subscriber(processing="CONCURRENT", concurrency=3), wanted.event_type, receiver.url("/a"))
    subscription(subscriber(), wanted.event_type, receiver.url("/a"))
    gate = closed_gate(receiver)
    broker.publish_numbered(wanted.event_type, 9)
    with broker.running_worker() as worker:
        wait_for_requests(receiver, 5)
        in_flight = sorted(len(line.slots) for line in worker.event_loop.lines.all())
        assert (in_flight, worker.event_loop.lines.free_places()) == ([1, 1, 3], (1, 0))
        gate.open()
        broker.wait_until_done()


@pytest.mark.behaviour("4.12")
def test_a_process_may_have_as_many_connections_as_the_system_lets_it(storage: None) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most - 1, most))
    try:
        with broker.running_worker():
            wait_until(lambda: resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def begin_all_and_vanish(line: Line) -> list[int]:
    """Do what a worker does up to its requests, and no more; return the deliveries that were to be sent."""
    (taken,) = claim([line.pk], worker="vanished")
    driven = active_line(taken, NO_LINK, 0.0, queue_max_in_flight=16)
    begun = broker.outgoing_of(taken)[: len(driven.slots)]
    return [*broker.settle({line.pk: taken.epoch}, marks=[mark_of(driven, delivery) for delivery in begun]).started]


def half_open(wanted: Subscription) -> None:
    """Let a subscription be suspended, and probed with its next delivery."""
    suspended = {"paused_since": Now(), "paused_by": PausedBy.POLICY, "paused_reason": "suspended"}
    Subscription.objects.filter(pk=wanted.pk).update(**suspended, half_open=True)


@pytest.mark.behaviour("5.6")
@pytest.mark.parametrize("processing", [Processing.CONCURRENT, Processing.KEYED])
@pytest.mark.parametrize("works", [True, False])
def test_a_subscription_that_is_probed_keeps_no_other_waiting(
    wanted: Subscription, processing: Processing, *, works: bool
) -> None:
    path = "$$->'Body'->>'key'" if processing == Processing.KEYED else ""
    Subscriber.objects.update(processing=processing, ordering_key=path, max_queued_to_send=8)
    Subscription.objects.update(retry_policy=retry_policy(max_retries=0, on_exhausted="SUSPEND"))
    other = subscription(wanted.subscriber)
    for one in (wanted, other):
        broker.publish_bodies(one.event_type, *[b'{"key": "%d"}' % number for number in range(20)])
    half_open(wanted)
    worker, requests = stepped_worker_of(wanted.subscriber)
    assert [one.destination.subscription_id for one in requests] == [wanted.pk, other.pk, other.pk]
    worker.answer_all({requests[0]: 200 if works else 503})
    worker.answer_all({requests[1]: 200})
    others = {one.destination.subscription_id for one in worker.wire.in_flight}
    assert (len(worker.wire.in_flight), wanted.pk in others) == (3 if works else 2, works)


@pytest.mark.behaviour("5.6")
def test_all_slots_go_on_with_a_subscription_that_works_again(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 4)
    half_open(wanted)
    worker, requests = stepped_worker_of(wanted.subscriber)
    assert len(requests) == 1
    worker.answer_all({requests[0]: 200})
    assert len(worker.wire.in_flight) == 3


def cancel_it(delivery_id: int) -> None:
    cancel([delivery_id], reason="unwanted")


@pytest.mark.behaviour("5.6", "8.3")
@pytest.mark.parametrize(("result", "is_cancelled"), [(Failed("made up"), False), (NotRun(), False), (Made(), True)])
def test_another_probe_begins_if_the_first_is_not_sent(
    wanted: Subscription, result: Result, *, is_cancelled: bool
) -> None:
    Subscription.objects.update(script="made up")
    other = subscription(wanted.subscriber)
    broker.publish_numbered(other.event_type, 1)
    broker.publish_numbered(wanted.event_type, 3)
    half_open(wanted)
    worker, requests = stepped_worker_of(wanted.subscriber)
    assert (len(requests), len(worker.scripts.running)) == (1, 1)
    if is_cancelled:
        cancel_it(Delivery.objects.filter(subscription=wanted).earliest("id").pk)
    worker.finish_scripts(result)
    worker.hint()
    worker.go()
    assert (len(requests), len(worker.scripts.running)) == (1, 1)


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("processing", [Processing.CONCURRENT, Processing.SERIAL])
def test_a_crash_repeats_and_flags_all(receiver: Receiver, wanted: Subscription, processing: Processing) -> None:
    broker.publish_numbered(wanted.event_type, 9)
    line = broker.line_of(wanted.subscriber)
    begun = begin_all_and_vanish(line)
    change(wanted.subscriber, processing, 3 if processing == Processing.CONCURRENT else 1)
    broker.expire_lease(line)
    with broker.running_worker():
        broker.wait_until_done()
    flagged = [request.delivery_id for request in receiver.log if request.is_flagged]
    assert (len(receiver.log), sorted(flagged), len(begun)) == (9, sorted(begun), 3)
    assert receiver.log[0].delivery_id == min(begun)


@pytest.mark.behaviour("4.6")
def test_deferred_deliveries_come_again(receiver: Receiver, wanted: Subscription, long_pauses: None) -> None:
    receiver.on("/a", *[answer(500)] * 4, answer())
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 12)
        wait_until(lambda: broker.statuses(wanted).count(DELIVERED) == 8, saying=lambda: broker.statuses(wanted))
        broker.make_due()
        broker.wait_until_done()
    assert len(receiver.log) == 16


def test_all_idle_lines_leave_their_places_once_few_are_left(
    receiver: Receiver, worker: Worker, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "IDLE_SECONDS", 10 * PATIENCE_SECONDS)
    alone = subscription(endpoint=receiver.url("/alone"))
    broker.publish_numbered(alone.event_type, 1)
    wait_until(lambda: [line.is_idle for line in worker.event_loop.lines.all()] == [True])
    monkeypatch.setattr(leases, "MIN_IDLE_SECONDS", 0.0)
    monkeypatch.setattr(leases, "MAX_IN_FLIGHT", 3)
    broker.publish_numbered(wanted.event_type, 1)
    wait_until(lambda: broker.statuses(wanted) == [DELIVERED])
    wait_until(lambda: worker.event_loop.lines.all() == [], PATIENCE_SECONDS / 2)
    assert worker.event_loop.lines.free_places() == (MAX_IN_FLIGHT, MAX_EXTRA_SLOTS)


@pytest.mark.parametrize(
    ("lines", "extra_slots", "seconds"),
    [(0, 0, 5.0), (2_000, 0, 2.5), (4_000, 0, 1.0), (2, 1_000, 2.5), (1_000, 1_000, 2.5), (2, 1_998, 1.0)],
)
def test_idle_lines_stay_for_less_time_the_more_slots_there_are(
    monkeypatch: pytest.MonkeyPatch, lines: int, extra_slots: int, seconds: float
) -> None:
    monkeypatch.setattr(leases, "IDLE_SECONDS", 5.0)
    assert leases.idle_seconds(lines, extra_slots) == seconds


def try_it(delivery_id: int) -> None:
    try_now([delivery_id])


def change_its_path(delivery_id: int) -> None:
    wanted = Delivery.objects.get(pk=delivery_id).subscription
    assert wanted
    wanted.endpoint += "/changed"
    wanted.save()


@pytest.mark.behaviour("4.9", "5.11")
@pytest.mark.parametrize(("act", "again"), [(try_it, True), (change_its_path, True), (cancel_it, False)])
def test_a_line_that_goes_on_hears_what_becomes_of_what_it_holds(
    wanted: Subscription,
    long_pauses: None,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[int], object],
    again: bool,
) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    worker, requests = stepped_worker_of(wanted.subscriber)
    held, hanging = requests
    worker.answer_all({held: 503})
    act(held.delivery_id)
    real = boot_clock.since_boot
    monkeypatch.setattr(boot_clock, "since_boot", lambda: real() + HOLDS_SECONDS)
    worker.go()
    assert [one.delivery_id for one in requests[2:]] == [held.delivery_id] * again
    assert (worker.wire.in_flight[0], Hold.objects.count(), len(worker.lines)) == (hanging, again, 1)


@pytest.mark.behaviour("4.7", "5.9", "11.9")
def test_a_held_delivery_goes_on_after_the_clock_was_set_back_behind_its_deferral(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    other = subscription(endpoint=receiver.url("/b"))
    receiver.on("/a", answer(500), answer(503), answer())
    broker.publish_numbered(wanted.event_type, 1)
    wait_until(Hold.objects.exists)
    Delivery.objects.update(due_at=Now() + timedelta(seconds=20))  # as stored before the clock was set back
    sent = 0
    while broker.statuses(wanted) != [DELIVERED]:
        broker.publish_numbered(other.event_type, 1, first=sent)
        sent += 1
        wait_until(lambda sent=sent: len(receiver.of("/b")) == sent, SOON)  # type: ignore[misc]
    held = Delivery.objects.get(subscription=wanted)
    assert held.due_at
    assert held.finished_at
    assert held.finished_at < held.due_at
