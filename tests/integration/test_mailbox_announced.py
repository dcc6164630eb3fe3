"""What is announced of a switch to PULL, and of what fails in a mailbox (behaviour 5.7)."""

import orjson
import pytest
from django.utils import timezone

from delivery.announcements import announce
from delivery.mailbox.acknowledge import give_back
from delivery.models import Announcement, LineEvent, Message
from subscriptions.edit import change
from subscriptions.models import DeliveryMode, PausedBy, Subscriber, Subscription
from tests import factories
from tests.driving import line_of, publish_numbered, statuses
from tests.mailboxes import fetched, pulled_subscription

PULL = DeliveryMode.PULL
RESUMED = "Broker.Line.Resumed"


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
    assert events() == [(line_of(pushed.subscriber).pk, "RESUMED", None, f"subscription {pushed.pk}: {why}")]
    told = Announcement.objects.values_list("kind", "line", "subscription", "details").get()
    says = {"pause": "SUSPENDED", "reason": why}
    assert told == (RESUMED, line_of(pushed.subscriber).pk, pushed.pk, says)


@pytest.mark.behaviour("5.7", "9.8")
def test_what_tells_of_the_broker_itself_goes_on_without_a_word(storage: None) -> None:
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
    pulled = pulled_subscription()
    Subscriber.objects.filter(pk=pulled.subscriber_id).update(max_redeliveries=1)
    publish_numbered(pulled.event_type, 1)
    for _ in range(2):
        (one,) = fetched(pulled)
        give_back(pulled.subscriber_id, [one.receipt])
    assert statuses(pulled) == ["FAILED"]
    announce()
    said = orjson.loads(Message.objects.get(delivery__subscription=ops).body)
    assert {name: said.get(name) for name in ("status", "attempts", "fetches")} == {
        "status": "FAILED",
        "attempts": 0,
        "fetches": 2,
    }
