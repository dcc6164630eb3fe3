"""Acknowledge, extend and return receipts, and what they answer (contract 9.2, 9.4)."""

import datetime as dt
import itertools
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import pytest
from django.db.models.functions import Now

from delivery.mailbox.acknowledge import UNKNOWN, ReceiptCode, ReceiptResult, acknowledge, extend, nack
from delivery.mailbox.receipts import FetchedMessage, Receipt
from delivery.mailbox.unread import expire_unread, return_overdue
from delivery.maintenance.partitions import open_days, today
from delivery.models import Delivery
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from delivery.worker.line import ActiveLine
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.support import mailboxes
from tests.support.api import client_of
from tests.support.broker import crash_while_sending, line_of, publish_numbered, settle, settlement, statuses
from tests.support.database import in_parallel

pytestmark = pytest.mark.behaviour("9.4")

CANCELLED, DELIVERED, EXPIRED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.EXPIRED
FAILED, IN_FLIGHT, PENDING = DeliveryStatus.FAILED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING
OK, CONFLICT = HTTPStatus.OK, HTTPStatus.CONFLICT
SAY: Final[dict[str, Callable[[int, list[Receipt]], dict[Receipt, ReceiptResult]]]] = {
    "ack": acknowledge,
    "nack": nack,
    "extend": lambda subscriber_id, receipts: extend(subscriber_id, receipts, seconds=60),
}


ACKNOWLEDGED = ReceiptCode.ACKNOWLEDGED
RETURNED, STALE, ENDED = ReceiptCode.RETURNED, ReceiptCode.STALE, ReceiptCode.ENDED


@pytest.fixture
def one(pulled: Subscription) -> Receipt:
    """The receipt of the one message there is."""
    publish_numbered(pulled.event_type, 1)
    (message,) = mailboxes.fetch_all(pulled)
    return message.receipt


def said(what: str, wanted: Subscription, receipt: Receipt) -> ReceiptResult:
    """Say it, and once more: the answer is the same, but for a time that has moved on."""
    results = [SAY[what](wanted.subscriber_id, [receipt])[receipt]._replace(until=None, seconds=None) for _ in range(2)]
    assert results[0] == results[1]
    return results[0]


def state() -> tuple[str, int, bool]:
    """Return the delivery's status, how often it was handed out, and whether it is in somebody's hands."""
    status, fetches, until = Delivery.objects.values_list("status", "fetches", "fetched_until").get()
    return status, fetches, until is not None


def hand_out_again(wanted: Subscription) -> None:
    mailboxes.time_out_hand_outs()
    assert len(mailboxes.fetch_all(wanted)) == 1


def newest_receipts() -> list[Receipt]:
    return [Receipt(pk, fetch_id or 0) for pk, fetch_id in Delivery.objects.values_list("pk", "fetch_id")]


def forget_and_hand_out_again(wanted: Subscription) -> None:
    """Hand it out in a database that was restored, or failed over, and does not know that it was fetched (4.10)."""
    Delivery.objects.update(status=PENDING, waits_for="TURN", fetches=0, fetched_until=None, fetch_id=None)
    assert len(mailboxes.fetch_all(wanted)) == 1


def give_it_back(wanted: Subscription) -> None:
    nack(wanted.subscriber_id, newest_receipts())


def begin_to_push(wanted: Subscription) -> tuple[ActiveLine, Outgoing]:
    give_it_back(wanted)
    mailboxes.switch_delivery_mode(wanted, DeliveryMode.PUSH)
    return crash_while_sending(line_of(wanted.subscriber))[:2]


def push_to_the_end(wanted: Subscription) -> None:
    line, delivery = begin_to_push(wanted)
    settle({line.id: line.claim.epoch}, settlements=[settlement(line, delivery)])


def cancel(wanted: Subscription) -> None:
    mailboxes.time_out_hand_outs()
    cancel_deliveries_of(wanted.pk, reason="cancelled")


def cancel_returned(wanted: Subscription) -> None:
    give_it_back(wanted)
    cancel_deliveries_of(wanted.pk, reason="cancelled")


def use_up(wanted: Subscription) -> None:
    Subscriber.objects.update(max_redeliveries=0)
    mailboxes.time_out_hand_outs()
    assert return_overdue() == 1


def expire(wanted: Subscription) -> None:
    mailboxes.time_out_hand_outs()
    mailboxes.let_days_pass(days=4)
    assert expire_unread() == 1


def acknowledge_it(wanted: Subscription) -> None:
    acknowledge(wanted.subscriber_id, newest_receipts())


def acknowledge_the_next(wanted: Subscription) -> None:
    hand_out_again(wanted)
    acknowledge(wanted.subscriber_id, newest_receipts())


@pytest.mark.behaviour("9.2")
@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize(
    ("what", "result", "after"),
    [
        ("ack", ReceiptResult(OK, ACKNOWLEDGED, DELIVERED), (DELIVERED, 1, False)),
        ("nack", ReceiptResult(OK, RETURNED, PENDING), (PENDING, 1, False)),
        ("extend", ReceiptResult(OK, ReceiptCode.EXTENDED, IN_FLIGHT), (IN_FLIGHT, 1, True)),
    ],
)
def test_the_newest_receipt_counts_also_when_it_is_late(
    pulled: Subscription, one: Receipt, what: str, result: ReceiptResult, after: tuple[str, int, bool], *, is_late: bool
) -> None:
    if is_late:
        mailboxes.time_out_hand_outs()
    assert (said(what, pulled, one), state()) == (result, after)


@pytest.mark.parametrize(
    ("meanwhile", "status", "ack", "nack", "extend"),
    [
        (give_it_back, PENDING, (CONFLICT, RETURNED), (OK, RETURNED), (CONFLICT, RETURNED)),
        (hand_out_again, IN_FLIGHT, (CONFLICT, STALE), (CONFLICT, STALE), (CONFLICT, STALE)),
        (forget_and_hand_out_again, IN_FLIGHT, (CONFLICT, STALE), (CONFLICT, STALE), (CONFLICT, STALE)),
        (begin_to_push, IN_FLIGHT, (CONFLICT, STALE), (CONFLICT, STALE), (CONFLICT, STALE)),
        (push_to_the_end, DELIVERED, (CONFLICT, ENDED), (CONFLICT, ENDED), (CONFLICT, ENDED)),
        (acknowledge_it, DELIVERED, (OK, ACKNOWLEDGED), (CONFLICT, ACKNOWLEDGED), (CONFLICT, ACKNOWLEDGED)),
        (acknowledge_the_next, DELIVERED, (CONFLICT, ENDED), (CONFLICT, ENDED), (CONFLICT, ENDED)),
        (cancel, CANCELLED, (CONFLICT, ENDED), (OK, ReceiptCode.CANCELLED), (CONFLICT, ENDED)),
        (cancel_returned, CANCELLED, (CONFLICT, ENDED), (CONFLICT, ENDED), (CONFLICT, ENDED)),
        (use_up, FAILED, (CONFLICT, ENDED), (OK, ReceiptCode.FAILED), (CONFLICT, ENDED)),
        (expire, EXPIRED, (CONFLICT, ENDED), (CONFLICT, ENDED), (CONFLICT, ENDED)),
    ],
)
def test_a_receipt_is_answered_by_the_current_state(
    pulled: Subscription,
    one: Receipt,
    meanwhile: Callable[[Subscription], object],
    status: DeliveryStatus,
    ack: tuple[HTTPStatus, ReceiptCode],
    nack: tuple[HTTPStatus, ReceiptCode],
    extend: tuple[HTTPStatus, ReceiptCode],
) -> None:
    meanwhile(pulled)
    before = Delivery.objects.values().get()
    expected = {"ack": ack, "nack": nack, "extend": extend}
    assert {what: said(what, pulled, one) for what in expected} == {
        what: ReceiptResult(*answer, status) for what, answer in expected.items()
    }
    assert Delivery.objects.values().get() == before


@pytest.mark.parametrize("what", [*SAY])
def test_a_receipt_of_nothing_or_somebody_else_does_nothing(pulled: Subscription, one: Receipt, what: str) -> None:
    stranger = mailboxes.pulled_subscription(event_type=pulled.event_type)
    before = Delivery.objects.values().get()
    assert said(what, stranger, one) == UNKNOWN
    assert said(what, pulled, Receipt(2**63 - 1, 1)) == UNKNOWN
    acknowledge(pulled.subscriber_id, [one])
    assert said(what, stranger, one) == UNKNOWN
    assert before["status"] == IN_FLIGHT


@pytest.mark.parametrize("what", [*SAY])
def test_twenty_equal_calls_at_once_are_answered_alike(pulled: Subscription, what: str) -> None:
    publish_numbered(pulled.event_type, 5)
    receipts = [message.receipt for message in mailboxes.fetch_all(pulled)]
    orders = itertools.cycle([receipts, receipts[::-1]])
    start = threading.Barrier(20)

    def say() -> dict[Receipt, tuple[HTTPStatus, ReceiptCode]]:
        mine = next(orders)
        start.wait()
        return {one: (answer.status, answer.code) for one, answer in SAY[what](pulled.subscriber_id, mine).items()}

    first, *others = in_parallel(20, say)
    assert {answer[0] for answer in first.values()} == {OK}
    assert all(other == first for other in others)
    ended = Delivery.objects.final().count()
    assert (Delivery.objects.count(), ended) == (5, 5 if what == "ack" else 0)


@pytest.mark.behaviour("9.3")
def test_one_of_a_simultaneous_acknowledgement_and_return_counts(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 20)
    receipts = [message.receipt for message in mailboxes.fetch_all(pulled)]
    says = itertools.cycle([acknowledge, nack])
    start = threading.Barrier(2)

    def say() -> set[Receipt]:
        mine = next(says)
        start.wait()
        answers = [mine(pulled.subscriber_id, [one])[one].status == OK for one in receipts]
        return {one for one, counted in zip(receipts, answers, strict=True) if counted}

    shares = in_parallel(2, say)
    assert (sum(map(len, shares)), len(set[Receipt]().union(*shares))) == (20, 20)


def test_an_acknowledged_receipt_is_known_as_long_as_its_day_is_kept(pulled: Subscription, one: Receipt) -> None:
    acknowledge(pulled.subscriber_id, [one])
    day = today() - dt.timedelta(days=3)
    open_days(day, ahead=0)
    Delivery.objects.update(closed_on=day, finished_at=Now() - dt.timedelta(days=3))
    assert said("ack", pulled, one) == ReceiptResult(OK, ACKNOWLEDGED, DELIVERED)
    Delivery.objects.all().delete()
    assert said("ack", pulled, one) == UNKNOWN


@pytest.mark.behaviour("9.8")
def test_a_returned_message_wakes_its_pushed_line(pulled: Subscription, one: Receipt, woken: list[list[int]]) -> None:
    nack(pulled.subscriber_id, [one])
    (again,) = mailboxes.fetch_all(pulled)
    mailboxes.switch_delivery_mode(pulled, DeliveryMode.PUSH)
    nack(pulled.subscriber_id, [again.receipt])
    assert woken == [[line_of(pulled.subscriber).pk]]


@pytest.fixture
def pulled_once(storage: None, event_type: EventType) -> Subscription:
    """A mailbox with one message, which may be tried once only."""
    pulled = mailboxes.pulled_subscription(event_type=event_type)
    Subscriber.objects.update(max_redeliveries=0)
    publish_numbered(event_type, 1)
    return pulled


def returned(pulled: Subscription, one: FetchedMessage, *, not_attempted: bool) -> ReceiptCode:
    return nack(pulled.subscriber_id, [one.receipt], not_attempted=not_attempted)[one.receipt].code


@pytest.mark.behaviour("9.7")
@pytest.mark.parametrize("fails", ["given back", "timed out"])
def test_an_unattempted_message_is_there_until_an_attempt_fails(pulled_once: Subscription, fails: str) -> None:
    for redeliveries in range(3):
        (one,) = mailboxes.fetch_all(pulled_once)
        assert one.redeliveries == redeliveries
        assert returned(pulled_once, one, not_attempted=True) == RETURNED
        assert statuses(pulled_once) == [DeliveryStatus.PENDING]
    (one,) = mailboxes.fetch_all(pulled_once)
    if fails == "given back":
        assert returned(pulled_once, one, not_attempted=False) == ReceiptCode.FAILED
    else:
        mailboxes.time_out_hand_outs()
        assert return_overdue() == 1
    assert statuses(pulled_once) == [DeliveryStatus.FAILED]


@pytest.mark.parametrize(
    ("said", "status"), [({"not_attempted": True}, "PENDING"), ({"not_attempted": False}, "FAILED"), ({}, "FAILED")]
)
def test_clients_say_so_when_they_return_it(pulled_once: Subscription, said: dict[str, Any], status: str) -> None:
    reader, address = client_of(pulled_once.subscriber), f"/api/v1/mailboxes/{pulled_once.subscriber.name}"
    (one,) = reader.post(f"{address}/next", {}).json()["messages"]
    told = reader.post(f"{address}/nack", {"receipt": one["receipt"], **said})
    assert (told.status_code, told.json()["delivery_status"]) == (200, status)
