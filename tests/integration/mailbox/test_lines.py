"""Mailboxes and lines: PULL deliveries are in no line, and switching keeps their place (contract 9.1, 9.8)."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import begin_delayed
from delivery.mailbox import long_poll
from delivery.mailbox.acknowledge import acknowledge, nack
from delivery.mailbox.unread import return_overdue
from delivery.models import Attempt, Delivery, Line
from delivery.operations import cancel_deliveries_of
from delivery.replay.backfill_job import count
from delivery.replay.eligibility import NotNew
from delivery.replay.resend import SentDelivery, create_deliveries
from delivery.status.line_status import LineState, line_statuses
from delivery.statuses import DeliveryStatus
from delivery.worker.round_trip import mark_of
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.support import broker, mailboxes
from tests.support.api import client_of
from tests.support.broker import lines_with_due_work
from tests.support.factories import subscription

pytestmark = pytest.mark.behaviour("9.1", "9.8")

PUSH, PULL = DeliveryMode.PUSH, DeliveryMode.PULL
CANCELLED, DELIVERED, EXPIRED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.EXPIRED
IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


@pytest.fixture
def pushed(receiver: Receiver, storage: None, event_type: EventType) -> Subscription:
    return subscription(event_type=event_type, endpoint=receiver.url("/a"))


@pytest.fixture
def pulled(pushed: Subscription) -> Subscription:
    """Another subscription of the same subscriber to the same events."""
    return mailboxes.pulled_subscription(pushed.subscriber, pushed.event_type)


def row_of(delivery_id: int) -> dict[str, Any]:
    return dict(Delivery.objects.values().get(pk=delivery_id))


def deliveries_of(wanted: Subscription) -> list[Delivery]:
    return [*Delivery.objects.filter(subscription=wanted).oldest_first()]


def test_pull_deliveries_do_not_block_the_line(receiver: Receiver, pushed: Subscription, pulled: Subscription) -> None:
    broker.publish_numbered(pushed.event_type, 3)
    with broker.running_worker():
        wait_until(lambda: broker.statuses(pushed) == [DELIVERED] * 3)
    assert receiver.bodies("/a") == [b"0", b"1", b"2"]
    assert [(one.status, one.waits_for, one.attempts, one.sequence) for one in deliveries_of(pulled)] == [
        (PENDING, "TURN", 0, None)
    ] * 3
    assert lines_with_due_work() == []


@pytest.mark.parametrize("told", [{}, {"ttl": 60.0}], ids=["plain", "timed"])
def test_publishing_wakes_the_line_of_what_is_sent_and_hints_at_what_is_fetched(
    pushed: Subscription, woken: list[list[int]], monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]
) -> None:
    hinted: list[set[int]] = []
    monkeypatch.setattr(long_poll, "hint", hinted.append)
    stranger = mailboxes.pulled_subscription(event_type=pushed.event_type)
    broker.publish_bodies(pushed.event_type, b"0", b"1", **told)
    assert (woken, hinted) == ([[broker.line_of(pushed.subscriber).pk]], [{stranger.subscriber_id}])
    mailboxes.switch_delivery_mode(pushed, PULL)
    broker.publish_bodies(pushed.event_type, b"2", **told)
    assert (len(woken), hinted[1:]) == (1, [{stranger.subscriber_id, pushed.subscriber_id}])


@pytest.mark.behaviour("2.8")
def test_a_message_for_one_destination_is_fetched_by_it_alone(pushed: Subscription, woken: list[list[int]]) -> None:
    stranger = mailboxes.pulled_subscription(event_type=pushed.event_type)
    broker.publish_bodies(pushed.event_type, b"0", destination=stranger.subscriber.name)
    assert (broker.statuses(stranger), broker.statuses(pushed), woken) == ([PENDING], [], [])


@pytest.mark.behaviour("2.13")
def test_due_ones_wake_lines_that_send(pushed: Subscription, pulled: Subscription, woken: list[list[int]]) -> None:
    broker.publish_numbered(pushed.event_type, 2)
    woken.clear()
    delayed = {"waits_for": "START", "not_before": "2026-01-01T00:00:00Z"}
    Delivery.objects.filter(subscription=pulled).update(**delayed)
    assert (begin_delayed(), woken) == (2, [])
    Delivery.objects.update(**delayed)
    assert (begin_delayed(), woken) == (4, [[broker.line_of(pushed.subscriber).pk]])


@pytest.mark.behaviour("5.8")
def test_resubmitting_to_a_mailbox_is_quiet(pushed: Subscription, pulled: Subscription, woken: list[list[int]]) -> None:
    broker.publish_numbered(pulled.event_type, 1)
    woken.clear()
    for wanted, lines in ((pulled, []), (pushed, [[broker.line_of(pushed.subscriber).pk]])):
        (one,) = deliveries_of(wanted)
        assert one.message_id
        create_deliveries([SentDelivery(one.pk, one.message_id, wanted.pk, None)], senders=broker.QUEUE_SENDERS)
        assert (broker.statuses(wanted), woken) == ([PENDING] * 2, lines)


def test_mailbox_messages_do_not_count_in_the_line(pushed: Subscription, pulled: Subscription) -> None:
    broker.publish_numbered(pushed.event_type, 3)
    line = broker.line_of(pulled.subscriber)
    assert line_statuses([line.pk])[line.pk].waiting == 3
    mailboxes.switch_delivery_mode(pushed, PULL)
    Subscription.objects.filter(pk=pulled.pk).update(paused_since="2026-01-01T00:00:00Z", paused_by="HAND")
    standing = line_statuses([line.pk])[line.pk]
    assert (standing.state, standing.waiting) == (LineState.IDLE, 0)


def test_pull_frees_a_held_line_and_push_sends_from_its_place(receiver: Receiver, pushed: Subscription) -> None:
    beside = subscription(pushed.subscriber, endpoint=receiver.url("/b"))
    receiver.on("/a", answer(503))
    broker.publish_numbered(pushed.event_type, 2)
    broker.publish_numbered(beside.event_type, 1)
    with broker.running_worker():
        broker.wait_until_held(pushed.subscriber)
    broker.hold_for_minutes(pushed.subscriber)
    assert lines_with_due_work() == []

    mailboxes.switch_delivery_mode(pushed, PULL)
    assert lines_with_due_work() == [broker.line_of(pushed.subscriber).pk]
    with broker.running_worker():
        wait_until(lambda: broker.statuses(beside) == [DELIVERED])
    broker.publish_numbered(pushed.event_type, 1, first=2)
    assert broker.statuses(pushed) == [PENDING] * 3

    receiver.on("/a", answer())
    mailboxes.switch_delivery_mode(pushed, PUSH)
    broker.run_worker_until_done()
    assert receiver.bodies("/a")[-3:] == [b"0", b"1", b"2"]


@pytest.mark.behaviour("4.15")
@pytest.mark.parametrize(("status", "fields"), [(DELIVERED, {}), (PENDING, {"pause": 0.0, "status_code": 503})])
def test_a_request_in_flight_is_not_fetched_and_ends_as_its_answer_says_although_its_subscription_is_switched(
    pushed: Subscription, status: DeliveryStatus, fields: dict[str, Any]
) -> None:
    broker.publish_numbered(pushed.event_type, 2)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(pushed.subscriber))
    mailboxes.switch_delivery_mode(pushed, PULL)
    assert mailboxes.fetch_bodies(pushed) == [b"1"]
    broker.settle({line.id: line.claim.epoch}, settlements=[broker.settlement(line, delivery, status, **fields)])
    assert (broker.statuses(pushed), len(broker.attempts_of(delivery.id))) == ([status, IN_FLIGHT], 1)
    assert broker.settle({line.id: line.claim.epoch}, marks=[mark_of(line, delivery)]).started == {}


@pytest.mark.behaviour("9.3")
@pytest.mark.parametrize("is_late", [False, True])
def test_no_line_takes_what_is_handed_out_however_late_that_is(pushed: Subscription, *, is_late: bool) -> None:
    broker.publish_numbered(pushed.event_type, 2)
    first, second = deliveries_of(pushed)
    (taken,) = claim([broker.line_of(pushed.subscriber).pk], worker="w")
    assert [one.id for one in broker.outgoing_of(taken)] == [first.pk, second.pk]
    mailboxes.hand_out(first, second)
    if is_late:
        mailboxes.time_out_hand_outs()
    assert (broker.outgoing_of(taken), lines_with_due_work()) == ([], [])


@pytest.mark.behaviour("9.3")
def test_a_line_does_not_mark_what_was_handed_out_since_it_was_read(pushed: Subscription) -> None:
    broker.publish_numbered(pushed.event_type, 1)
    (one,) = deliveries_of(pushed)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(pushed.subscriber))
    broker.settle({line.id: line.claim.epoch}, settlements=[broker.settlement(line, delivery, **broker.NO_ANSWER)])
    mailboxes.hand_out(one)
    before = row_of(one.pk)
    assert broker.settle({line.id: line.claim.epoch}, marks=[mark_of(line, delivery)]).started == {}
    assert row_of(one.pk) == before


@pytest.mark.behaviour("9.3", "4.11")
@pytest.mark.parametrize("status", [DELIVERED, PENDING])
@pytest.mark.parametrize("cancel_requested", [False, True])
def test_a_settle_said_again_leaves_what_was_handed_out_since(
    pushed: Subscription, status: DeliveryStatus, *, cancel_requested: bool
) -> None:
    broker.publish_numbered(pushed.event_type, 1)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(pushed.subscriber))
    broker.settle({line.id: line.claim.epoch}, settlements=[broker.settlement(line, delivery, **broker.NO_ANSWER)])
    mailboxes.hand_out(*deliveries_of(pushed))
    Delivery.objects.update(cancel_requested=cancel_requested)
    before = row_of(delivery.id)
    again = broker.settle({line.id: line.claim.epoch}, settlements=[broker.settlement(line, delivery, status)])
    assert (again.ended, row_of(delivery.id), Attempt.objects.count()) == (frozenset(), before, 1)


@pytest.mark.behaviour("9.3", "4.11", "11.3")
@pytest.mark.parametrize("cancel_requested", [False, True])
def test_a_crashed_line_leaves_its_client_what_it_has(pushed: Subscription, *, cancel_requested: bool) -> None:
    broker.publish_numbered(pushed.event_type, 1)
    line = broker.line_of(pushed.subscriber)
    (taken,) = claim([line.pk], worker="vanished")
    assert len(broker.outgoing_of(taken)) == 1
    mailboxes.hand_out(*deliveries_of(pushed))
    Delivery.objects.update(cancel_requested=cancel_requested)
    before = [*Delivery.objects.values()]
    broker.expire_lease(line)
    (mended,) = claim([line.pk], worker="next")
    assert (mended.epoch > taken.epoch, [*Delivery.objects.values()]) == (True, before)


@pytest.mark.behaviour("5.8")
@pytest.mark.parametrize("was_handed_out", [False, True])
def test_a_subscription_that_was_fetched_from_is_not_backfilled(pulled: Subscription, *, was_handed_out: bool) -> None:
    broker.publish_numbered(pulled.event_type, 1)
    if was_handed_out:
        mailboxes.hand_out(*deliveries_of(pulled))
        mailboxes.time_out_hand_outs()
    cancel_deliveries_of(pulled.pk, reason="cancelled")
    broker.inactivate(pulled)
    pulled.refresh_from_db()
    with pytest.raises(NotNew) if was_handed_out else nullcontext():
        count(pulled, None)


def test_a_delivery_says_how_often_and_until_when_it_is_handed_out(pulled: Subscription) -> None:
    broker.publish_numbered(pulled.event_type, 3)
    late, out, waiting = deliveries_of(pulled)
    mailboxes.hand_out(late)
    mailboxes.time_out_hand_outs()
    for _ in range(2):
        mailboxes.hand_out(out)
    client = client_of(pulled.subscriber)
    of_it = f"/api/v1/deliveries?subscription={pulled.pk}"
    shown = {one["id"]: one for one in client.get(of_it).json()["items"]}
    told = [(shown[one.pk]["fetches"], shown[one.pk]["status"]) for one in (late, out, waiting)]
    assert told == [(1, "PENDING"), (2, "IN_FLIGHT"), (0, "PENDING")]
    assert (bool(shown[out.pk]["fetched_until"]), shown[waiting.pk]["fetched_until"]) == (True, None)
    assert {one["due_at"] for one in shown.values()} == {None}
    in_flight = client.get(f"{of_it}&status=IN_FLIGHT").json()["items"]
    assert [one["id"] for one in in_flight] == [out.pk]


def test_each_switch_of_mode_continues_where_the_other_mode_ended(receiver: Receiver, pushed: Subscription) -> None:
    broker.publish_numbered(pushed.event_type, 2)
    with broker.running_worker():
        wait_until(lambda: broker.statuses(pushed) == [DELIVERED] * 2)
    mailboxes.switch_delivery_mode(pushed, PULL)
    broker.publish_numbered(pushed.event_type, 4, first=2)
    messages = mailboxes.fetch_all(pushed, 2)
    acknowledge(pushed.subscriber_id, [one.receipt for one in messages])
    assert [one.content.body for one in messages] == [b"2", b"3"]
    mailboxes.switch_delivery_mode(pushed, PUSH)
    broker.publish_numbered(pushed.event_type, 1, first=6)
    broker.run_worker_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"4", b"5", b"6"]
    numbers = Delivery.objects.oldest_first().values_list("sequence", flat=True)
    assert [*numbers] == [1, 2, None, None, 3, 4, 5]


@pytest.mark.parametrize("lane", ["main", "retry"])
def test_deferred_deliveries_are_fetched_in_order_at_once_after_a_switch(pushed: Subscription, lane: str) -> None:
    broker.publish_numbered(pushed.event_type, 2)
    line = broker.line_of(pushed.subscriber) if lane == "main" else broker.retry_line_of(pushed.subscriber)
    first = Delivery.objects.oldest_first()[0]
    Delivery.objects.filter(pk=first.pk).update(
        waits_for="RETRY", due_at="2999-01-01T00:00:00Z", line=line, sequence=1, attempts=1
    )
    mailboxes.switch_delivery_mode(pushed, PULL)
    assert Delivery.objects.get(pk=first.pk).next_try_at is None
    assert mailboxes.fetch_bodies(pushed) == [b"0", b"1"]
    rows = Delivery.objects.oldest_first().values_list("line", "sequence", "attempts")
    assert [*rows] == [(broker.line_of(pushed.subscriber).pk, 1, 1), (broker.line_of(pushed.subscriber).pk, None, 0)]


def test_the_oldest_of_many_deferred_deliveries_is_fetched_first(pushed: Subscription) -> None:
    broker.publish_numbered(pushed.event_type, 80)
    for number, one in enumerate(Delivery.objects.oldest_first()):
        Delivery.objects.filter(pk=one.pk).update(
            waits_for="RETRY", due_at=Now() + timedelta(seconds=20 - number), attempts=1
        )
    mailboxes.switch_delivery_mode(pushed, PULL)
    assert mailboxes.fetch_bodies(pushed, 3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("how", ["acknowledged", "returned", "timed out"])
def test_fetched_messages_are_pushed_only_afterwards(receiver: Receiver, pushed: Subscription, how: str) -> None:
    mailboxes.switch_delivery_mode(pushed, PULL)
    broker.publish_numbered(pushed.event_type, 2)
    (first,) = mailboxes.fetch_all(pushed, 1)
    mailboxes.switch_delivery_mode(pushed, PUSH)
    with broker.running_worker():
        wait_until(lambda: broker.statuses(pushed) == [IN_FLIGHT, DELIVERED])
        if how == "acknowledged":
            acknowledge(pushed.subscriber_id, [first.receipt])
        elif how == "returned":
            nack(pushed.subscriber_id, [first.receipt])
        else:
            mailboxes.time_out_hand_outs()
            return_overdue()
        broker.wait_until_done()
    assert receiver.bodies("/a") == [b"1"] + [b"0"] * (how != "acknowledged")
    flags = [one.is_flagged for one in receiver.log]
    assert flags == [False] + [how == "timed out"] * (how != "acknowledged")


@pytest.mark.behaviour("4.15")
def test_a_line_ends_the_request_in_flight_and_begins_no_other(receiver: Receiver, pushed: Subscription) -> None:
    gate = receiver.gate("/a")
    broker.publish_numbered(pushed.event_type, 3)
    with broker.running_worker():
        wait_until(lambda: receiver.bodies("/a") == [b"0"])
        mailboxes.switch_delivery_mode(pushed, PULL)
        broker.publish_numbered(pushed.event_type, 1, first=3)
        gate.open()
        wait_until(lambda: broker.statuses(pushed)[0] == DELIVERED)
        wait_until(lambda: not Line.objects.filter(lease_until__isnull=False).exists())
    assert (receiver.bodies("/a"), mailboxes.fetch_bodies(pushed)) == ([b"0"], [b"1", b"2", b"3"])
