"""What lines tell of numbers that a mailbox takes over, gives back and ends (behaviour 4.10)."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from delivery.dispatch.claim import claim
from delivery.mailbox.acknowledge import acknowledge, give_back
from delivery.mailbox.unread import expire_unread
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, LineEvent
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from delivery.worker.settle import settle
from subscriptions.models import DeliveryMode, Subscription
from tests import factories
from tests.driving import (
    NO_ANSWER,
    begin_and_vanish,
    expire_lease,
    line_of,
    publish_numbered,
    retry_line_of,
    settlement,
)
from tests.mailboxes import age, fetched, hand_out, switch, time_out

PULL = DeliveryMode.PULL
PENDING = DeliveryStatus.PENDING


@pytest.fixture
def pushed(storage: None) -> Subscription:
    return factories.subscription()


def events() -> list[tuple[int, str, int | None, str]]:
    """Return what lines have told: which line, what, of which number, why."""
    return [*LineEvent.objects.order_by("id").values_list("line", "kind", "sequence", "reason")]


def pushed_before(pushed: Subscription, **answer: Any) -> Delivery:
    """Send it once, with this answer, and switch to PULL."""
    publish_numbered(pushed.event_type, 1)
    line, delivery, _ = begin_and_vanish(line_of(pushed.subscriber))
    stays = settlement(line, delivery, **{"status": PENDING, "pause": 0.0, **answer})
    settle({line.id: line.claim.epoch}, settlements=[stays])
    switch(pushed, PULL)
    return Delivery.objects.get()


def acknowledged_late(pushed: Subscription) -> None:
    fetched(pushed)
    time_out()
    (again,) = fetched(pushed)
    acknowledge(pushed.subscriber_id, [again.receipt])


def cancelled_when_timed_out(pushed: Subscription) -> None:
    for _ in range(2):
        fetched(pushed)
        time_out()
    cancel_deliveries_of(pushed.pk, reason="unwanted")


def expired_when_timed_out(pushed: Subscription) -> None:
    for _ in range(2):
        fetched(pushed)
        time_out()
    Delivery.objects.update(expires_at=timezone.now())
    assert expire_overdue() == 1


def returned_to_a_cancelling(pushed: Subscription) -> None:
    fetched(pushed)
    time_out()
    (again,) = fetched(pushed)
    Delivery.objects.update(cancel_requested=True)
    give_back(pushed.subscriber_id, [again.receipt])


ENDS = [acknowledged_late, cancelled_when_timed_out, expired_when_timed_out, returned_to_a_cancelling]


@pytest.mark.behaviour("4.10", "9.8")
@pytest.mark.parametrize("end", ENDS)
def test_a_number_that_the_endpoint_has_answered_is_in_no_doubt_for_having_timed_out_in_a_mailbox(
    pushed: Subscription, end: Callable[[Subscription], None]
) -> None:
    pushed_before(pushed, status_code=503)
    end(pushed)
    assert (Delivery.objects.get().sequence, events()) == (1, [])


@pytest.mark.behaviour("4.10", "9.8")
@pytest.mark.parametrize("end", ENDS)
def test_a_number_that_nobody_has_answered_is_told_of(
    pushed: Subscription, end: Callable[[Subscription], None]
) -> None:
    pushed_before(pushed, **NO_ANSWER)
    end(pushed)
    assert [event[:3] for event in events()] == [(line_of(pushed.subscriber).pk, "NUMBER_UNCERTAIN", 1)]


@pytest.mark.behaviour("4.10", "4.11", "9.8")
def test_so_is_one_whose_worker_vanished_and_that_was_fetched_then(pushed: Subscription) -> None:
    publish_numbered(pushed.event_type, 1)
    begin_and_vanish(line_of(pushed.subscriber))
    expire_lease(line_of(pushed.subscriber))
    claim([line_of(pushed.subscriber).pk], worker="next")
    switch(pushed, PULL)
    (one,) = fetched(pushed)
    acknowledge(pushed.subscriber_id, [one.receipt])
    assert [event[:3] for event in events()] == [(line_of(pushed.subscriber).pk, "NUMBER_UNCERTAIN", 1)]


@pytest.mark.behaviour("4.10", "9.6")
def test_a_number_lost_unread_in_the_retry_line_is_told_by_the_history_of_the_line_that_gave_it(
    pushed: Subscription,
) -> None:
    one = pushed_before(pushed, **NO_ANSWER)
    Delivery.objects.filter(pk=one.pk).update(line=retry_line_of(pushed.subscriber))
    age(days=5)
    assert expire_unread() == 1
    why = "expired from the mailbox; its number may never have been received"
    assert events() == [(line_of(pushed.subscriber).pk, "NUMBER_UNCERTAIN", 1, why)]


@pytest.mark.behaviour("4.11", "9.3")
def test_a_settle_said_again_lets_its_line_go_though_a_client_has_what_it_settled(pushed: Subscription) -> None:
    publish_numbered(pushed.event_type, 1)
    line, delivery, _ = begin_and_vanish(line_of(pushed.subscriber))
    lost = settlement(line, delivery, **NO_ANSWER)
    settle({line.id: line.claim.epoch}, settlements=[lost])
    hand_out(Delivery.objects.get())
    settle({line.id: line.claim.epoch}, settlements=[lost], states=[line.state(let_go=True)])
    assert line_of(pushed.subscriber).lease_until is None
