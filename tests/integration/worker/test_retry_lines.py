"""Retry lines: their times, their turns, and their end (contract 5.3, 5.4)."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now

from broker_project.stack.load.receiver import Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery.dispatch.claim import claim
from delivery.models import Announcement, Attempt, Delivery, Lane, Line, LineEvent, LineEventKind
from delivery.operations import release
from delivery.statuses import DeliveryStatus
from delivery.worker.buffer import PageRequest
from delivery.worker.slots import SideEffects
from subscriptions.models import RetryPolicy, Subscriber, Subscription
from subscriptions.retry_policies import ACTIONS, OnExhausted
from tests.support import broker
from tests.support.behaviours import reset
from tests.support.factories import retry_policy, subscriber, subscription

DELIVERED, REJECTED, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.REJECTED, DeliveryStatus.PENDING
FAILED, IN_FLIGHT, HELD = DeliveryStatus.FAILED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.HELD
RETRY_ALL: dict[str, Any] = dict.fromkeys(ACTIONS, "RETRY_LANE") | {"jitter": 0.0}
TWICE: dict[str, Any] = {"max_retries": 2, "on_exhausted": OnExhausted.FAIL}

TURNS = 6


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription under a policy like Workfront's, but with two retries."""
    policy = retry_policy(**RETRY_ALL, initial_delay_seconds=600.0, max_delay_seconds=600.0, **TWICE)
    return subscription(endpoint=receiver.url("/a"), retry_policy=policy)


def wait_until_retrying(wanted: Subscription, count: int = 1) -> list[Delivery]:
    """Wait until `count` deliveries wait in the retry line; return them, oldest first."""
    line = broker.retry_line_of(wanted.subscriber)
    retried = Delivery.objects.open().filter(line=line, status=PENDING).order_by("id")
    wait_until(lambda: retried.count() == count, saying=lambda: [*Delivery.objects.values()])
    return [*retried]


def moved(wanted: Subscription) -> SideEffects:
    return SideEffects(to_line_id=broker.retry_line_of(wanted.subscriber).pk, meaning="retry_lane")


@pytest.mark.behaviour("5.3", "5.4")
@pytest.mark.parametrize("status", [302, 404, 429, 500, 503])
def test_new_messages_pass_the_retry_line(receiver: Receiver, wanted: Subscription, status: int) -> None:
    receiver.on("/a", answer(status), answer())
    line = broker.retry_line_of(wanted.subscriber)
    assert (line.lane, line.queue, line.epoch) == (Lane.RETRY, "retry", 0)
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 3)
        (retried,) = wait_until_retrying(wanted)
        wait_until(lambda: len(receiver.log) == 3)
        wait_until(lambda: broker.statuses(wanted) == [PENDING, DELIVERED, DELIVERED])
        assert retried.due_at
        assert timedelta(minutes=9) < retried.due_at - retried.created_at < timedelta(minutes=12)
        assert (retried.attempts, retried.sequence, retried.reason) == (1, 1, f"answered {status}")
        line.refresh_from_db()
        assert line.epoch == 0, "nobody claims it before something is due"
        broker.cut_pauses_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2", b"0"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3, 1]
    assert not any(request.is_flagged for request in receiver.log)
    assert [*Attempt.objects.order_by("id").values_list("meaning", flat=True)] == ["retry_lane", None, None, None]
    line.refresh_from_db()
    assert (line.epoch > 0, line.last_sequence) == (True, 0)
    assert [*Delivery.objects.filter(line=line).values_list("sequence", flat=True)] == [1]


@pytest.mark.behaviour("5.3")
def test_new_messages_pass_one_whose_request_timed_out(receiver: Receiver, wanted: Subscription) -> None:
    Subscription.objects.filter(pk=wanted.pk).update(timeout_seconds=1)
    beside = subscription(wanted.subscriber, endpoint=receiver.url("/b"))
    receiver.on("/a", hang)
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.publish_numbered(beside.event_type, 3)
        (retried,) = wait_until_retrying(wanted)
        wait_until(lambda: broker.statuses(beside) == [DELIVERED] * 3)
        assert (retried.attempts, retried.uncertain) == (1, True)
        assert "timed out" in retried.reason
        assert receiver.bodies("/b") == [b"0", b"1", b"2"]
        receiver.on("/a", answer())
        broker.cut_pauses_until_done()
    assert receiver.bodies("/a") == [b"0", b"0"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3, 4, 1]


@pytest.mark.behaviour("5.3")
@pytest.mark.parametrize(("pause", "rest"), [(600.0, 5), (100.0, 1)])
def test_a_retry_line_gathers_due_deliveries(receiver: Receiver, storage: None, pause: float, rest: int) -> None:
    policy = retry_policy(**RETRY_ALL, initial_delay_seconds=pause, max_delay_seconds=pause, **TWICE)
    wanted = subscription(endpoint=receiver.url("/a"), retry_policy=policy)
    receiver.on("/a", answer(500))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        wait_until_retrying(wanted)
        Delivery.objects.update(waits_for="RETRY", due_at=Now())
        wait_until(lambda: len(receiver.log) == 2)
        (retried,) = wait_until_retrying(wanted)
    line = broker.retry_line_of(wanted.subscriber)
    assert retried.due_at
    assert line.due_at
    earlier = retried.due_at - line.due_at
    assert pause - rest - 50 < earlier.total_seconds() <= pause - rest, "what is due meanwhile goes in one turn"


@pytest.mark.behaviour("5.1", "5.3")
def test_used_up_retries_fail_the_delivery(receiver: Receiver, wanted: Subscription) -> None:
    receiver.on("/a", answer(500))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.cut_pauses_until_done()
    (ended,) = Delivery.objects.final()
    assert (ended.status, ended.reason, ended.attempts) == (FAILED, "retries used up: answered 500", 3)
    assert broker.attempts_of(ended.pk) == [(1, 500), (2, 500), (3, 500)]
    assert [*Attempt.objects.order_by("id").values_list("meaning", flat=True)] == ["retry_lane", "retry_lane", "end"]
    assert not LineEvent.objects.exists(), "somebody has received it"


@pytest.mark.behaviour("5.2", "5.3")
def test_retries_stay_in_the_retry_line_under_any_policy(receiver: Receiver, wanted: Subscription) -> None:
    receiver.on("/a", answer(500), answer(503), answer())
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        wait_until_retrying(wanted)
        Subscription.objects.update(retry_policy=None)
        broker.cut_pauses_until_done()
    assert broker.statuses(wanted) == [DELIVERED]
    assert [*Attempt.objects.order_by("id").values_list("meaning", flat=True)] == ["retry_lane", "retry_lane", None]


@pytest.mark.behaviour("5.3")
@pytest.mark.parametrize(("honours", "waits"), [(True, 7200.0), (False, 600.0)])
def test_retry_after_in_the_retry_line(receiver: Receiver, wanted: Subscription, honours: bool, waits: float) -> None:
    RetryPolicy.objects.filter(is_preset=False).update(respect_retry_after=honours, max_delay_seconds=86_400.0)
    receiver.on("/a", answer(429, Retry_After="7200"), answer())
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        (retried,) = wait_until_retrying(wanted)
    assert retried.due_at
    assert (retried.due_at - Attempt.objects.get().started_at).total_seconds() == pytest.approx(waits, abs=60.0)


@pytest.mark.behaviour("4.10", "5.3")
def test_a_refused_delivery_keeps_its_number_in_the_retry_line(receiver: Receiver, wanted: Subscription) -> None:
    receiver.close_port()
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        (retried,) = wait_until_retrying(wanted)
        assert (retried.sequence, retried.unreceived, retried.uncertain) == (1, True, False)
        receiver.open_port()
        broker.publish_numbered(wanted.event_type, 1, first=1)
        wait_until(lambda: receiver.log)
        broker.cut_pauses_until_done()
    assert [(request.body, request.sequence) for request in receiver.log] == [(b"1", 2), (b"0", 1)]
    assert not LineEvent.objects.exists()


@pytest.mark.behaviour("4.10", "5.3")
@pytest.mark.parametrize("is_up", [True, False], ids=["reset", "refused"])
def test_unanswered_failures_are_in_the_history(receiver: Receiver, wanted: Subscription, is_up: bool) -> None:
    receiver.on("/a", reset)
    if not is_up:
        receiver.close_port()
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.cut_pauses_until_done()
    assert broker.statuses(wanted) == [FAILED]
    assert [*LineEvent.objects.values_list("line__lane", "kind", "sequence", "reason")] == [
        ("main", LineEventKind.NUMBER_UNCERTAIN, 1, "failed; it may never have been received")
    ]


@pytest.mark.behaviour("5.1", "5.5", "5.7")
@pytest.mark.parametrize(
    ("terms", "status", "kind", "reason", "attempts"),
    [
        (TWICE, 500, "Broker.Delivery.Failed", "retries used up: answered 500", 3),
        (TWICE | {"on_exhausted": "REJECT"}, 500, "Broker.Delivery.Rejected", "retries used up: answered 500", 3),
        ({"on_client_error": "END"}, 404, "Broker.Delivery.Rejected", "answered 404", 1),
    ],
)
def test_failures_are_announced(
    receiver: Receiver,
    wanted: Subscription,
    nobody_announces: None,
    terms: dict[str, Any],
    status: int,
    kind: str,
    reason: str,
    attempts: int,
) -> None:
    RetryPolicy.objects.filter(is_preset=False).update(**terms)
    subscription(endpoint=receiver.url("/announced"), event_pattern="Broker.*")
    receiver.on("/a", answer(status))
    broker.publish_numbered(wanted.event_type, 1)
    with broker.running_worker():
        broker.cut_pauses_until_done()
    (row,) = Announcement.objects.all()
    ends = kind.removeprefix("Broker.Delivery.").upper()
    assert (row.kind, row.details) == (kind, {"status": ends, "reason": reason, "attempts": attempts, "fetches": None})
    assert (row.subscription_id, row.delivery_id) == (wanted.pk, Delivery.objects.get().pk)


@pytest.mark.behaviour("4.9", "5.3")
def test_retries_follow_the_current_policy(receiver: Receiver, wanted: Subscription) -> None:
    receiver.on("/a", answer(500), answer(500), answer(404))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        wait_until_retrying(wanted)
        Subscription.objects.update(retry_policy=None)
        Delivery.objects.open().update(waits_for="RETRY", due_at=Now())
        wait_until(lambda: Attempt.objects.count() == 2)
        (retried,) = wait_until_retrying(wanted)
        assert (retried.status, retried.attempts) == (PENDING, 2)
        broker.cut_pauses_until_done()
    assert (broker.statuses(wanted), len(receiver.log)) == ([REJECTED], 3)


@pytest.mark.behaviour("4.11", "5.3")
def test_a_repeated_settle_leaves_the_next_request_alone(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    main, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    retried = broker.settlement(main, delivery, PENDING, status_code=500, pause=0.0, side_effects=moved(wanted))
    assert broker.settle(main, settlements=[retried]).ended == {delivery.id}
    broker.crash_while_sending(broker.retry_line_of(wanted.subscriber))
    assert broker.settle(main, settlements=[retried]).ended == frozenset()
    ended = broker.settlement(main, delivery)
    assert broker.settle(main, settlements=[ended]).ended == frozenset()
    assert (broker.statuses(wanted), broker.attempts_of(delivery.id)) == ([IN_FLIGHT], [(1, 500)])


@pytest.mark.behaviour("4.10", "4.11", "5.3")
@pytest.mark.parametrize("then", ["waits", "is in flight", "has ended"])
def test_numbers_go_on_after_the_last_moved_to_the_retry_line(wanted: Subscription, then: str) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    line, retry_line = broker.line_of(wanted.subscriber), broker.retry_line_of(wanted.subscriber)
    main, first, number = broker.crash_while_sending(line)
    ended = broker.settlement(main, first, PENDING, status_code=500, pause=0.0, side_effects=moved(wanted))
    broker.settle(main, settlements=[ended])
    if then != "waits":
        retry, _, _ = broker.crash_while_sending(retry_line)
        if then == "has ended":
            broker.settle(retry, settlements=[broker.settlement(retry, first)])
    broker.expire_lease(line)
    (taken,) = claim([line.pk], worker="next")
    assert (taken.last_sequence, taken.holds) == (number, ())
    expected = {"waits": PENDING, "is in flight": IN_FLIGHT, "has ended": DELIVERED}[then]
    assert broker.statuses(wanted) == [expected, PENDING]
    assert not Delivery.objects.get(pk=first.id).uncertain, "what the retry line has in flight is its own"
    assert [one.id for one in broker.outgoing_of(taken)] == [
        *Delivery.objects.filter(line=line).values_list("pk", flat=True)
    ]


@pytest.mark.behaviour("4.11", "5.3", "11.3")
def test_a_crash_of_a_retry_line_flags_and_holds_nothing(receiver: Receiver, wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    Delivery.objects.update(
        line=broker.retry_line_of(wanted.subscriber), waits_for="RETRY", due_at=Now(), sequence=F("id"), attempts=1
    )
    line = broker.retry_line_of(wanted.subscriber)
    _, vanished, number = broker.crash_while_sending(line)
    broker.expire_lease(line)
    (taken,) = claim([line.pk], worker="next")
    assert (taken.holds, taken.last_sequence) == ((), 0)
    broker.expire_lease(line)
    with broker.running_worker():
        broker.wait_until_done()
    assert sorted((request.delivery_id, request.is_flagged) for request in receiver.log) == [
        (vanished.id, True),
        (vanished.id + 1, False),
    ]
    assert receiver.log[0].sequence == number == vanished.id


@pytest.mark.behaviour("3.6", "5.3")
def test_a_delivery_released_in_a_retry_line_is_sent_by_it(receiver: Receiver, wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    Delivery.objects.update(line=broker.retry_line_of(wanted.subscriber), status=HELD, waits_for="RELEASE")
    assert len(release([*Delivery.objects.values_list("pk", flat=True)])) == 1
    with broker.running_worker():
        broker.wait_until_done()
    assert (broker.statuses(wanted), receiver.bodies("/a")) == ([DELIVERED], [b"0"])


@pytest.mark.behaviour("2.13", "3.6")
def test_a_delivery_released_early_waits_for_its_time(storage: None) -> None:
    broker.publish_numbered(subscription().event_type, 1)
    Delivery.objects.update(status=HELD, waits_for="RELEASE", not_before=Now() + timedelta(hours=1))
    release([*Delivery.objects.values_list("pk", flat=True)])
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.next_try_at) == (PENDING, delivery.not_before)


@pytest.fixture
def owner(storage: None) -> Subscriber:
    return subscriber()


def due_retries(owner: Subscriber, count: int, *, since: float) -> Subscription:
    """Return a subscription with `count` deliveries in the retry line, due for `since` seconds."""
    made = subscription(owner)
    broker.publish_numbered(made.event_type, count)
    due = {"waits_for": "RETRY", "due_at": Now() - timedelta(seconds=since)}
    Delivery.objects.filter(subscription=made).update(line=broker.retry_line_of(owner), attempts=1, **due)
    return made


def page_of(line: Line, epoch: int) -> list[int]:
    """Return whose deliveries a page of the line has, in order, where it was claimed under that epoch."""
    Line.objects.filter(pk=line.pk).update(epoch=epoch)
    hand = broker.read_page(PageRequest(line.pk, epoch, TURNS))
    taken = iter(lambda: hand.take(deferred_next=True), None)
    return [delivery.destination.subscription_id for delivery in taken]


@pytest.mark.behaviour("5.3", "5.4")
def test_subscriptions_take_turns_in_a_retry_line(owner: Subscriber) -> None:
    first, second = due_retries(owner, 20, since=3600.0), due_retries(owner, 2, since=1.0)
    ours = [page_of(broker.retry_line_of(owner), epoch) for epoch in (1, 2)]
    assert sorted(ours) == [
        [first.pk, second.pk, first.pk, second.pk, first.pk, first.pk],
        [second.pk, first.pk, second.pk, first.pk, first.pk, first.pk],
    ]


@pytest.mark.behaviour("5.3", "5.4")
def test_each_subscription_begins_a_turn_as_often_as_the_others(owner: Subscriber) -> None:
    due = {due_retries(owner, 5, since=60.0 * number).pk for number in range(3)}
    begins = [page_of(broker.retry_line_of(owner), epoch)[0] for epoch in range(TURNS)]
    assert set(begins[:3]) == due
    assert begins[:3] == begins[3:]


@pytest.mark.behaviour("5.3", "5.4")
def test_subscriptions_without_due_retries_have_no_turn(owner: Subscriber) -> None:
    for _ in range(4):
        subscription(owner)
    due = [due_retries(owner, 5, since=60.0).pk for _ in range(2)]
    for _ in range(4):
        subscription(owner)
    begins = [page_of(broker.retry_line_of(owner), epoch)[0] for epoch in range(TURNS)]
    assert sorted(begins) == sorted(due * (TURNS // 2))
    assert begins[:2] * (TURNS // 2) == begins
