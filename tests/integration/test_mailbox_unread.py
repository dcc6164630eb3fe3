"""What nobody reads for days, while it could be read, ends; never what is in flight (behaviour 9.6)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from broker_project.environment import LONGEST_DAYS
from delivery.mailbox.acknowledge import acknowledge
from delivery.mailbox.unread import expire_unread
from delivery.models import Delivery
from delivery.operations import release
from delivery.outcomes import redact_reason
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, PausedBy, Subscription
from tests.driving import activate, inactivate, line_of, publish_bodies, publish_numbered, retry_line_of, statuses
from tests.factories import subscription
from tests.mailboxes import age, fetched, switch

DELIVERED, EXPIRED, HELD = DeliveryStatus.DELIVERED, DeliveryStatus.EXPIRED, DeliveryStatus.HELD
IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    """One that has an endpoint as well, so that it may be switched."""
    return subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)


def reasons(wanted: Subscription) -> list[str]:
    return [*Delivery.objects.filter(subscription=wanted).oldest_first().values_list("reason", flat=True)]


def hold() -> None:
    Delivery.objects.update(status="HELD", due_at="9999-12-31T00:00:00Z")


@pytest.mark.behaviour("9.6", "2.10")
def test_what_nobody_reads_for_four_days_expires_but_never_in_flight(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 3)
    out, late = fetched(pulled, 1), fetched(pulled, 1)
    Delivery.objects.filter(pk=late[0].delivery_id).update(fetched_until="2026-01-01T00:00:00Z")
    age(days=3)
    assert expire_unread() == 0
    age(days=1)
    assert (expire_unread(), expire_unread()) == (2, 0)
    assert statuses(pulled) == [IN_FLIGHT, EXPIRED, EXPIRED]
    assert reasons(pulled) == ["", "unread for 4 days", "unread for 4 days"]
    assert redact_reason(reasons(pulled)[1]) == "unread for 4 days"
    acknowledge(pulled.subscriber_id, [out[0].receipt])
    assert statuses(pulled)[0] == DELIVERED


@pytest.mark.behaviour("9.6")
def test_how_many_days_is_a_setting_and_counts_at_once(pulled: Subscription, settings: Any) -> None:
    publish_numbered(pulled.event_type, 1)
    age(days=1)
    settings.MAILBOX_DAYS = LONGEST_DAYS
    assert expire_unread() == 0
    settings.MAILBOX_DAYS = 1
    assert (expire_unread(), reasons(pulled)) == (1, ["unread for 1 day"])


def pause(one: Subscription) -> None:
    Subscription.objects.filter(pk=one.pk).update(paused_since=Now(), paused_by=PausedBy.HAND)


def resume(one: Subscription) -> None:
    Subscription.objects.filter(pk=one.pk).update(paused_since=None, paused_by="")


CLOSED: dict[str, tuple[Callable[[Subscription], None], Callable[[Subscription], None]]] = {
    "pushed": (lambda one: switch(one, DeliveryMode.PUSH), lambda one: switch(one, DeliveryMode.PULL)),
    "paused": (pause, resume),
    "inactive": (inactivate, activate),
    "its subscriber inactive": (lambda one: inactivate(one.subscriber), lambda one: activate(one.subscriber)),
}


@pytest.mark.behaviour("9.6", "1.7", "9.8")
@pytest.mark.parametrize("how", CLOSED)
def test_the_days_in_which_it_could_not_be_read_do_not_count(pulled: Subscription, how: str) -> None:
    close, reopen = CLOSED[how]
    stranger = subscription(event_type=pulled.event_type, delivery_mode=DeliveryMode.PULL)
    publish_numbered(pulled.event_type, 2)
    age(days=3)
    close(pulled)
    age(days=9)
    assert (expire_unread(), statuses(stranger)) == (2, [EXPIRED] * 2)
    reopen(pulled)
    age(days=3)
    assert (expire_unread(), statuses(pulled)) == (0, [PENDING] * 2)
    age(days=1)
    assert (expire_unread(), statuses(pulled)) == (2, [EXPIRED] * 2)


@pytest.mark.behaviour("9.6", "2.13")
def test_the_days_of_what_was_delayed_begin_when_it_is_due(pulled: Subscription) -> None:
    publish_bodies(pulled.event_type, b"due", b"delayed")
    age(days=9)
    due, delayed = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk=due.pk).update(not_before=Now() - timedelta(days=3))
    Delivery.objects.filter(pk=delayed.pk).update(not_before="2999-01-01T00:00:00Z", due_at="9999-12-29T00:00:00Z")
    assert (expire_unread(), statuses(pulled)) == (0, [PENDING, PENDING])
    Delivery.objects.filter(pk=due.pk).update(not_before=Now() - timedelta(days=4))
    assert (expire_unread(), statuses(pulled)) == (1, [EXPIRED, PENDING])


@pytest.mark.behaviour("9.6", "3.6")
def test_the_days_of_what_was_held_begin_when_it_is_released(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 2)
    hold()
    age(days=9)
    assert (expire_unread(), statuses(pulled)) == (0, [HELD] * 2)
    release([Delivery.objects.oldest_first()[0].pk])
    assert (expire_unread(), statuses(pulled)) == (0, [PENDING, HELD])
    Delivery.objects.filter(status=PENDING).update(not_before=Now() - timedelta(days=4))
    assert (expire_unread(), statuses(pulled)) == (1, [EXPIRED, HELD])


@pytest.mark.behaviour("2.13", "3.6")
@pytest.mark.parametrize("mode", DeliveryMode)
def test_a_release_moves_no_time_that_is_still_to_come(pulled: Subscription, mode: DeliveryMode) -> None:
    switch(pulled, mode)
    publish_bodies(pulled.event_type, b"later", not_before="2999-01-01T00:00:00Z")
    publish_bodies(pulled.event_type, b"now")
    before = [*Delivery.objects.oldest_first().values_list("not_before", flat=True)]
    hold()
    release([one.pk for one in Delivery.objects.all()])
    later, now = Delivery.objects.oldest_first()
    assert (later.not_before, later.due_at) == (before[0], later.due_at)
    assert (now.not_before is None, now.due_at) == (mode == DeliveryMode.PUSH, None)


@pytest.mark.behaviour("9.6", "9.8")
@pytest.mark.parametrize("lane", ["main", "retry"])
def test_what_was_set_aside_before_the_switch_expires_too(pulled: Subscription, lane: str) -> None:
    publish_numbered(pulled.event_type, 1)
    line = line_of(pulled.subscriber) if lane == "main" else retry_line_of(pulled.subscriber)
    Delivery.objects.update(due_at="2026-01-01T00:00:00Z", line=line)
    age(days=4)
    assert (expire_unread(), statuses(pulled)) == (1, [EXPIRED])
