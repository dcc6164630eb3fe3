"""How a mailbox stands (behaviour 9.5)."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from delivery.mailbox import mailbox_status
from delivery.mailbox.acknowledge import give_back
from delivery.mailbox.mailbox_status import MailboxStatus, mailboxes_of
from delivery.mailbox.unread import expire_unread
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, Message
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.driving import activate, inactivate, publish_bodies, publish_numbered
from tests.factories import subscription
from tests.mailboxes import age, fetched, pulled_subscription, switch, time_out


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return pulled_subscription(event_type=event_type)


def standing_of(wanted: Subscription) -> MailboxStatus:
    return mailboxes_of([wanted.subscriber_id])[wanted.subscriber_id]


def counts(wanted: Subscription) -> tuple[int, ...]:
    """Return how many are available, in flight, waiting, redelivered and expired."""
    one = standing_of(wanted)
    return one.available, one.in_flight, one.waiting, one.redelivered, one.expired


def count_to(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few = mailbox_status.STANDINGS.replace(str(mailbox_status.COUNTED_AT_MOST), str(number))
    monkeypatch.setattr(mailbox_status, "STANDINGS", few)


@pytest.mark.behaviour("9.5")
def test_every_message_is_counted_where_it_stands(pulled: Subscription) -> None:
    beside = pulled_subscription(pulled.subscriber)
    assert counts(pulled) == (0, 0, 0, 0, 0)
    publish_numbered(pulled.event_type, 4)
    publish_numbered(beside.event_type, 3)
    publish_bodies(pulled.event_type, b"later", not_before="2999-01-01T00:00:00Z")
    assert counts(pulled) == (7, 0, 1, 0, 0)
    returned, *_ = fetched(pulled, 3)
    give_back(pulled.subscriber_id, [returned.receipt])
    assert counts(pulled) == (5, 2, 1, 1, 0)
    time_out()
    assert counts(pulled) == (7, 0, 1, 3, 0)
    fetched(pulled, 1)
    assert counts(pulled) == (6, 1, 1, 3, 0)
    inactivate(beside)
    assert counts(pulled) == (3, 1, 4, 3, 0)
    inactivate(pulled.subscriber)
    assert counts(pulled) == (0, 1, 7, 3, 0)
    activate(beside)
    activate(pulled.subscriber)
    age(days=5)
    expire_unread()
    assert counts(pulled) == (0, 1, 1, 1, 6)


@pytest.mark.behaviour("9.5", "1.6", "3.6")
def test_what_is_held_or_paused_waits(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 3)
    held, *_ = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk=held.pk).update(status="HELD", due_at="9999-12-31T00:00:00Z")
    assert counts(pulled) == (2, 0, 1, 0, 0)
    Subscription.objects.filter(pk=pulled.pk).update(paused_since="2026-01-01T00:00:00Z", paused_by="HAND")
    assert counts(pulled) == (0, 0, 3, 0, 0)


@pytest.mark.behaviour("9.5")
def test_a_mailbox_that_can_get_nothing_is_seen(pulled: Subscription) -> None:
    def subscriptions() -> tuple[int, int]:
        one = standing_of(pulled)
        return one.subscriptions, one.fetchable_subscriptions

    subscription(pulled.subscriber)
    beside = subscription(pulled.subscriber, delivery_mode=DeliveryMode.PULL)
    assert subscriptions() == (2, 2)
    inactivate(beside)
    assert subscriptions() == (2, 1)
    Subscription.objects.filter(pk=pulled.pk).update(paused_since="2026-01-01T00:00:00Z", paused_by="HAND")
    assert subscriptions() == (2, 0)
    activate(beside)
    inactivate(pulled.subscriber)
    assert subscriptions() == (2, 0)
    switch(beside, DeliveryMode.PUSH)
    assert subscriptions() == (1, 0)
    assert standing_of(subscription()).subscriptions == 0


@pytest.mark.behaviour("9.5", "2.10")
def test_what_is_pushed_counts_nowhere_however_it_ends(pulled: Subscription) -> None:
    pushed = subscription(pulled.subscriber)
    publish_numbered(pushed.event_type, 1)
    publish_bodies(pushed.event_type, b"too late", ttl=60.0)
    Delivery.objects.filter(expires_at__isnull=False).update(expires_at="2026-01-01T00:00:00Z")
    assert (expire_overdue(), counts(pulled)) == (1, (0, 0, 0, 0, 0))


@pytest.mark.behaviour("9.5")
def test_the_oldest_that_is_available_has_its_age(pulled: Subscription) -> None:
    assert (standing_of(pulled).oldest_published_at, standing_of(pulled).oldest_age_seconds) == (None, None)
    publish_numbered(pulled.event_type, 3)
    fetched(pulled, 1)
    second = Message.objects.order_by("id")[1]
    one = standing_of(pulled)
    assert one.oldest_published_at == second.published_at
    assert one.oldest_age_seconds is not None
    assert one.oldest_age_seconds > 0


@pytest.mark.behaviour("9.5")
def test_a_mailbox_is_counted_no_further_than_it_says(pulled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_numbered(pulled.event_type, 2)
    count_to(1, monkeypatch)
    assert counts(pulled) == (1, 0, 0, 0, 0)


@pytest.mark.behaviour("9.5")
@pytest.mark.parametrize("oldest", ["returned", "timed out", "set aside", "of another subscription"])
def test_the_oldest_is_found_however_few_are_counted(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch, oldest: str
) -> None:
    beside = pulled_subscription(pulled.subscriber)
    publish_numbered(beside.event_type if oldest == "of another subscription" else pulled.event_type, 1)
    if oldest in {"returned", "timed out"}:
        (one,) = fetched(pulled, 1)
        time_out()
        if oldest == "returned":
            give_back(pulled.subscriber_id, [one.receipt])
    if oldest == "set aside":
        Delivery.objects.update(due_at="2026-01-01T00:00:00Z", attempts=1)
    publish_numbered(pulled.event_type, 6)
    count_to(2, monkeypatch)
    assert standing_of(pulled).oldest_published_at == Message.objects.earliest("id").published_at
    assert counts(pulled)[0] == 2


@pytest.mark.behaviour("9.5")
@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_oldest_of_what_has_timed_out_is_not_what_did_so_first(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    publish_numbered(pulled.event_type, 6)
    out = [one.delivery_id for one in fetched(pulled)]
    for number, delivery_id in enumerate(out[before:]):
        Delivery.objects.filter(pk=delivery_id).update(fetched_until=Now() - timedelta(hours=1 + number))
    count_to(3, monkeypatch)
    assert standing_of(pulled).oldest_published_at == Message.objects.order_by("id")[before].published_at


@pytest.mark.behaviour("9.5", "9.8")
def test_what_was_set_aside_before_the_switch_is_available_whenever_it_was_due(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 3)
    Delivery.objects.update(due_at="2999-01-01T00:00:00Z", attempts=1)
    assert counts(pulled) == (3, 0, 0, 0, 0)
    inactivate(pulled)
    assert counts(pulled) == (0, 0, 3, 0, 0)


@pytest.mark.behaviour("9.5")
def test_several_mailboxes_are_looked_at_at_once_also_those_of_nobody(pulled: Subscription) -> None:
    stranger = pulled_subscription(event_type=pulled.event_type)
    publish_numbered(pulled.event_type, 2)
    fetched(stranger, 1)
    ids: list[Any] = [pulled.subscriber_id, stranger.subscriber_id, 0]
    assert [(mailboxes_of(ids)[one].available, mailboxes_of(ids)[one].in_flight) for one in ids] == [
        (2, 0),
        (1, 1),
        (0, 0),
    ]
    assert Delivery.objects.count() == 4
