"""What a client gives back without having begun it: a hand-out that was no try never ends a message (behaviour 9.7)."""

from typing import Any

import pytest

from delivery.mailbox.acknowledge import give_back
from delivery.mailbox.mailbox import Fetched
from delivery.mailbox.results import ReceiptCode
from delivery.mailbox.unread import return_overdue
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventType, Subscriber, Subscription
from tests.clients import client_of
from tests.driving import publish_numbered, statuses
from tests.mailboxes import fetched, pulled_subscription, time_out
from tests.publishing import JSON, problem

CANCELLED, FAILED, RETURNED, STALE = ReceiptCode.CANCELLED, ReceiptCode.FAILED, ReceiptCode.RETURNED, ReceiptCode.STALE


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    """A mailbox with one message, which may be tried once only."""
    pulled = pulled_subscription(event_type=event_type)
    Subscriber.objects.update(max_redeliveries=0)
    publish_numbered(event_type, 1)
    return pulled


def returned(pulled: Subscription, one: Fetched, *, not_attempted: bool) -> ReceiptCode:
    return give_back(pulled.subscriber_id, [one.receipt], not_attempted=not_attempted)[one.receipt].code


@pytest.mark.behaviour("9.7")
@pytest.mark.parametrize("fails", ["given back", "timed out"])
def test_what_nobody_has_begun_is_available_again_until_somebody_fails_with_it(
    pulled: Subscription, fails: str
) -> None:
    for redeliveries in range(3):
        (one,) = fetched(pulled)
        assert one.redeliveries == redeliveries
        assert returned(pulled, one, not_attempted=True) == RETURNED
        assert statuses(pulled) == [DeliveryStatus.PENDING]
    (one,) = fetched(pulled)
    if fails == "given back":
        assert returned(pulled, one, not_attempted=False) == FAILED
    else:
        time_out()
        assert return_overdue() == 1
    assert statuses(pulled) == [DeliveryStatus.FAILED]


@pytest.mark.behaviour("9.4")
def test_to_return_it_twice_is_answered_alike_and_a_receipt_that_is_stale_returns_nothing(pulled: Subscription) -> None:
    (one,) = fetched(pulled)
    assert [returned(pulled, one, not_attempted=True) for _ in range(2)] == [RETURNED] * 2
    fetched(pulled)
    assert returned(pulled, one, not_attempted=True) == STALE
    assert statuses(pulled) == [DeliveryStatus.IN_FLIGHT]


def test_what_timed_out_is_returned_untried_as_long_as_nobody_has_seen_to_it(pulled: Subscription) -> None:
    (one,) = fetched(pulled)
    time_out()
    assert returned(pulled, one, not_attempted=True) == RETURNED
    assert [again.fetch for again in fetched(pulled)] == [2]


def test_what_is_asked_to_be_cancelled_ends_though_nobody_has_begun_it(pulled: Subscription) -> None:
    (one,) = fetched(pulled)
    cancel_deliveries_of(pulled.pk, reason="cancelled")
    assert returned(pulled, one, not_attempted=True) == CANCELLED
    assert statuses(pulled) == [DeliveryStatus.CANCELLED]


@pytest.mark.parametrize(
    ("said", "status"),
    [({"not_attempted": True}, "PENDING"), ({"not_attempted": False}, "FAILED"), ({}, "FAILED")],
)
def test_clients_say_so_when_they_return_it(pulled: Subscription, said: dict[str, Any], status: str) -> None:
    reader, address = client_of(pulled.subscriber), f"/api/v1/mailboxes/{pulled.subscriber.name}"
    (one,) = reader.post(f"{address}/next", {}, content_type=JSON).json()["messages"]
    told = reader.post(f"{address}/nack", {"receipt": one["receipt"], **said}, content_type=JSON)
    assert (told.status_code, told.json()["delivery_status"]) == (200, status)


@pytest.mark.parametrize(("what", "not_attempted"), [("nack", "yes"), ("nack", None), ("ack", True), ("extend", True)])
def test_only_who_returns_something_says_whether_it_was_tried(
    pulled: Subscription, what: str, not_attempted: object
) -> None:
    reader, address = client_of(pulled.subscriber), f"/api/v1/mailboxes/{pulled.subscriber.name}"
    said = {"receipt": "A" * 27, "not_attempted": not_attempted}
    assert problem(reader.post(f"{address}/{what}", said, content_type=JSON)) == (400, "invalid")
