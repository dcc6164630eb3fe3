"""What is announced of mailboxes and told in lines (contract 4.10, 5.7)."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from django.utils import timezone

from delivery.announcements import announce
from delivery.dispatch.claim import claim
from delivery.mailbox.acknowledge import acknowledge, nack
from delivery.mailbox.unread import expire_unread
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Announcement, Delivery, LineEvent, Message
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from subscriptions.edit import change
from subscriptions.models import DeliveryMode, PausedBy, Subscriber, Subscription
from tests.support import broker, factories, mailboxes

PULL = DeliveryMode.PULL
RESUMED = "Broker.Line.Resumed"

PENDING = DeliveryStatus.PENDING


@pytest.fixture
def pushed(storage: None) -> Subscription:
    return factories.subscription()


def events() -> list[tuple[int, str, int | None, str]]:
    """Return what lines have told: which line, what, of which number, why."""
    return [*LineEvent.objects.order_by("id").values_list("line", "kind", "sequence", "reason")]


def paused(wanted: Subscription, by: PausedBy) -> None:
    Subscription.objects.filter(pk=wanted.pk).update(paused_since=timezone.now(), paused_by=by)


@pytest.mark.behaviour("5.6", "5.7", "9.8")
def test_a_switch_to_pull_that_ends_a_suspension_says_that_it_goes_on(pushed: Subscription) -> None:
    paused(pushed, PausedBy.POLICY)
    switched = change(Subscription.objects.filter(pk=pushed.pk), changes={"delivery_mode": PULL})
    assert (switched.paused_since, switched.paused_by) == (None, "")
    why = "it is fetched from now on"
    assert events() == [(broker.line_of(pushed.subscriber).pk, "RESUMED", None, f"subscription {pushed.pk}: {why}")]
    told = Announcement.objects.values_list("kind", "line", "subscription", "details").get()
    says = {"pause": "SUSPENDED", "reason": why}
    assert told == (RESUMED, broker.line_of(pushed.subscriber).pk, pushed.pk, says)


@pytest.mark.behaviour("5.7", "9.8")
def test_a_subscription_to_broker_events_resumes_without_an_announcement(storage: None) -> None:
    itself = factories.subscription(event_pattern="Broker.*")
    paused(itself, PausedBy.POLICY)
    change(Subscription.objects.filter(pk=itself.pk), changes={"delivery_mode": PULL})
    assert ([kind for _, kind, *_ in events()], Announcement.objects.count()) == (["RESUMED"], 0)


@pytest.mark.behaviour("5.7", "9.8")
@pytest.mark.parametrize("by", ["", PausedBy.HAND])
def test_a_switch_to_pull_that_ends_no_suspension_is_no_news(pushed: Subscription, by: PausedBy) -> None:
    if by:
        paused(pushed, by)
    switched = change(Subscription.objects.filter(pk=pushed.pk), changes={"delivery_mode": PULL})
    assert (switched.paused_by, events(), Announcement.objects.count()) == (by, [], 0)


@pytest.mark.behaviour("5.7", "9.7")
def test_a_failure_in_a_mailbox_says_how_often_it_was_fetched(storage: None) -> None:
    ops = factories.subscription(event_pattern="Broker.Delivery.*")
    pulled = mailboxes.pulled_subscription()
    Subscriber.objects.filter(pk=pulled.subscriber_id).update(max_redeliveries=1)
    broker.publish_numbered(pulled.event_type, 1)
    for _ in range(2):
        (one,) = mailboxes.fetch_all(pulled)
        nack(pulled.subscriber_id, [one.receipt])
    assert broker.statuses(pulled) == ["FAILED"]
    announce()
    said = orjson.loads(Message.objects.get(delivery__subscription=ops).body)
    assert (said["status"], said["attempts"], said["fetches"]) == ("FAILED", 0, 2)


def pushed_before(pushed: Subscription, **answer: Any) -> Delivery:
    """Send it once, with this answer, and switch to PULL."""
    broker.publish_numbered(pushed.event_type, 1)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(pushed.subscriber))
    stays = broker.settlement(line, delivery, **{"status": PENDING, "pause": 0.0, **answer})
    broker.settle({line.id: line.claim.epoch}, settlements=[stays])
    mailboxes.switch_delivery_mode(pushed, PULL)
    return Delivery.objects.get()


def acknowledged_late(pushed: Subscription) -> None:
    mailboxes.fetch_all(pushed)
    mailboxes.time_out_hand_outs()
    (again,) = mailboxes.fetch_all(pushed)
    acknowledge(pushed.subscriber_id, [again.receipt])


def cancelled_when_timed_out(pushed: Subscription) -> None:
    for _ in range(2):
        mailboxes.fetch_all(pushed)
        mailboxes.time_out_hand_outs()
    cancel_deliveries_of(pushed.pk, reason="unwanted")


def expired_when_timed_out(pushed: Subscription) -> None:
    for _ in range(2):
        mailboxes.fetch_all(pushed)
        mailboxes.time_out_hand_outs()
    Delivery.objects.update(expires_at=timezone.now())
    assert expire_overdue() == 1


def returned_to_a_cancelling(pushed: Subscription) -> None:
    mailboxes.fetch_all(pushed)
    mailboxes.time_out_hand_outs()
    (again,) = mailboxes.fetch_all(pushed)
    Delivery.objects.update(cancel_requested=True)
    nack(pushed.subscriber_id, [again.receipt])


ENDS = [acknowledged_late, cancelled_when_timed_out, expired_when_timed_out, returned_to_a_cancelling]


@pytest.mark.behaviour("4.10", "9.8")
@pytest.mark.parametrize("answer", [{"status_code": 503}, broker.NO_ANSWER], ids=["answered", "not answered"])
@pytest.mark.parametrize("end", ENDS)
def test_a_number_is_uncertain_only_if_the_endpoint_did_not_answer(
    pushed: Subscription, end: Callable[[Subscription], None], answer: dict[str, Any]
) -> None:
    pushed_before(pushed, **answer)
    end(pushed)
    uncertain = [(broker.line_of(pushed.subscriber).pk, "NUMBER_UNCERTAIN", 1)] if answer is broker.NO_ANSWER else []
    assert (Delivery.objects.get().sequence, [event[:3] for event in events()]) == (1, uncertain)


@pytest.mark.behaviour("4.10", "4.11", "9.8")
def test_a_number_is_uncertain_after_a_lost_worker_and_a_fetch(pushed: Subscription) -> None:
    broker.publish_numbered(pushed.event_type, 1)
    broker.crash_while_sending(broker.line_of(pushed.subscriber))
    broker.expire_lease(broker.line_of(pushed.subscriber))
    claim([broker.line_of(pushed.subscriber).pk], worker="next")
    mailboxes.switch_delivery_mode(pushed, PULL)
    (one,) = mailboxes.fetch_all(pushed)
    acknowledge(pushed.subscriber_id, [one.receipt])
    assert [event[:3] for event in events()] == [(broker.line_of(pushed.subscriber).pk, "NUMBER_UNCERTAIN", 1)]


@pytest.mark.behaviour("4.10", "9.6")
def test_a_number_lost_unread_in_the_retry_line_is_in_the_history_of_the_main_line(pushed: Subscription) -> None:
    one = pushed_before(pushed, **broker.NO_ANSWER)
    Delivery.objects.filter(pk=one.pk).update(line=broker.retry_line_of(pushed.subscriber))
    mailboxes.let_days_pass(days=5)
    assert expire_unread() == 1
    why = "expired from the mailbox; its number may never have been received"
    assert events() == [(broker.line_of(pushed.subscriber).pk, "NUMBER_UNCERTAIN", 1, why)]


@pytest.mark.behaviour("4.11", "9.3")
def test_a_settle_said_again_lets_its_line_go_though_a_client_has_what_it_settled(pushed: Subscription) -> None:
    broker.publish_numbered(pushed.event_type, 1)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(pushed.subscriber))
    lost = broker.settlement(line, delivery, **broker.NO_ANSWER)
    broker.settle({line.id: line.claim.epoch}, settlements=[lost])
    mailboxes.hand_out(Delivery.objects.get())
    broker.settle({line.id: line.claim.epoch}, settlements=[lost], states=[line.update()])
    assert broker.line_of(pushed.subscriber).lease_until is None
