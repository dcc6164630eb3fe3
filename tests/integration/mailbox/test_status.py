"""How mailboxes stand, and lists of what they have handed out (contract 9.2, 9.5)."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from delivery.mailbox import mailbox_status
from delivery.mailbox.acknowledge import nack
from delivery.mailbox.mailbox_status import MailboxStatus, mailboxes_of
from delivery.mailbox.unread import expire_unread
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, Message
from delivery.status import delivery_search
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.support import mailboxes
from tests.support.api import client_of, client_of_admin, read_pages
from tests.support.broker import activate, crash_while_sending, inactivate, line_of, publish_bodies, publish_numbered
from tests.support.database import execute
from tests.support.factories import subscriber, subscription

pytestmark = pytest.mark.behaviour("9.5")

IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


def standing_of(wanted: Subscription) -> MailboxStatus:
    return mailboxes_of([wanted.subscriber_id])[wanted.subscriber_id]


def counts(wanted: Subscription) -> tuple[int, ...]:
    """Return how many are available, in flight, waiting, redelivered and expired."""
    one = standing_of(wanted)
    return one.available, one.in_flight, one.waiting, one.redelivered, one.expired


def count_to(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few = mailbox_status.MAILBOX_STATUS.replace(str(mailbox_status.MAX_COUNTED), str(number))
    monkeypatch.setattr(mailbox_status, "MAILBOX_STATUS", few)


def test_every_message_is_counted_where_it_stands(pulled: Subscription) -> None:
    beside = mailboxes.pulled_subscription(pulled.subscriber)
    assert counts(pulled) == (0, 0, 0, 0, 0)
    publish_numbered(pulled.event_type, 4)
    publish_numbered(beside.event_type, 3)
    publish_bodies(pulled.event_type, b"later", not_before="2999-01-01T00:00:00Z")
    assert counts(pulled) == (7, 0, 1, 0, 0)
    returned, *_ = mailboxes.fetch_all(pulled, 3)
    nack(pulled.subscriber_id, [returned.receipt])
    assert counts(pulled) == (5, 2, 1, 1, 0)
    mailboxes.time_out_hand_outs()
    assert counts(pulled) == (7, 0, 1, 3, 0)
    mailboxes.fetch_all(pulled, 1)
    assert counts(pulled) == (6, 1, 1, 3, 0)
    inactivate(beside)
    assert counts(pulled) == (3, 1, 4, 3, 0)
    inactivate(pulled.subscriber)
    assert counts(pulled) == (0, 1, 7, 3, 0)
    activate(beside)
    activate(pulled.subscriber)
    mailboxes.let_days_pass(days=5)
    expire_unread()
    assert counts(pulled) == (0, 1, 1, 1, 6)


@pytest.mark.behaviour("1.6", "3.6")
def test_held_and_paused_deliveries_count_as_waiting(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 3)
    held, *_ = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk=held.pk).update(status="HELD", waits_for="RELEASE")
    assert counts(pulled) == (2, 0, 1, 0, 0)
    Subscription.objects.filter(pk=pulled.pk).update(paused_since="2026-01-01T00:00:00Z", paused_by="HAND")
    assert counts(pulled) == (0, 0, 3, 0, 0)


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
    mailboxes.switch_delivery_mode(beside, DeliveryMode.PUSH)
    assert subscriptions() == (1, 0)
    assert standing_of(subscription()).subscriptions == 0


@pytest.mark.behaviour("2.10")
def test_pushed_deliveries_are_not_counted(pulled: Subscription) -> None:
    pushed = subscription(pulled.subscriber)
    publish_numbered(pushed.event_type, 1)
    publish_bodies(pushed.event_type, b"too late", ttl=60.0)
    Delivery.objects.filter(expires_at__isnull=False).update(expires_at="2026-01-01T00:00:00Z")
    assert (expire_overdue(), counts(pulled)) == (1, (0, 0, 0, 0, 0))


def test_the_oldest_that_is_available_has_its_age(pulled: Subscription) -> None:
    assert (standing_of(pulled).oldest_published_at, standing_of(pulled).oldest_age_seconds) == (None, None)
    publish_numbered(pulled.event_type, 3)
    mailboxes.fetch_all(pulled, 1)
    second = Message.objects.order_by("id")[1]
    one = standing_of(pulled)
    assert one.oldest_published_at == second.published_at
    assert one.oldest_age_seconds is not None
    assert one.oldest_age_seconds > 0


@pytest.mark.parametrize("oldest", ["returned", "timed out", "set aside", "of another subscription"])
def test_the_oldest_is_found_anyway(pulled: Subscription, monkeypatch: pytest.MonkeyPatch, oldest: str) -> None:
    beside = mailboxes.pulled_subscription(pulled.subscriber)
    publish_numbered(beside.event_type if oldest == "of another subscription" else pulled.event_type, 1)
    if oldest in {"returned", "timed out"}:
        (one,) = mailboxes.fetch_all(pulled, 1)
        mailboxes.time_out_hand_outs()
        if oldest == "returned":
            nack(pulled.subscriber_id, [one.receipt])
    if oldest == "set aside":
        Delivery.objects.update(waits_for="RETRY", due_at="2026-01-01T00:00:00Z", attempts=1)
    publish_numbered(pulled.event_type, 6)
    count_to(2, monkeypatch)
    assert standing_of(pulled).oldest_published_at == Message.objects.earliest("id").published_at
    assert counts(pulled)[0] == 2


@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_oldest_may_not_be_the_first(pulled: Subscription, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    publish_numbered(pulled.event_type, 6)
    out = [one.delivery_id for one in mailboxes.fetch_all(pulled)]
    for number, delivery_id in enumerate(out[before:]):
        Delivery.objects.filter(pk=delivery_id).update(fetched_until=Now() - timedelta(hours=1 + number))
    count_to(3, monkeypatch)
    assert standing_of(pulled).oldest_published_at == Message.objects.order_by("id")[before].published_at


@pytest.mark.behaviour("9.8")
def test_deferred_deliveries_are_available_after_a_switch(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 3)
    Delivery.objects.update(waits_for="RETRY", due_at="2999-01-01T00:00:00Z", attempts=1)
    assert counts(pulled) == (3, 0, 0, 0, 0)
    inactivate(pulled)
    assert counts(pulled) == (0, 0, 3, 0, 0)


@pytest.fixture(params=[delivery_search.FEW, 1], ids=["few", "many"])
def mixed(request: Any, monkeypatch: pytest.MonkeyPatch, storage: None, event_type: EventType) -> Subscriber:
    """Somebody who fetches and is sent to, beside a stranger; of each sort some, in no order of time or id."""
    few, all_in_flight = str(delivery_search.FEW), delivery_search.ALL_IN_FLIGHT
    monkeypatch.setattr(delivery_search, "ALL_IN_FLIGHT", all_in_flight.replace(few, str(request.param)))
    pending = [part.replace(few, str(request.param)) for part in delivery_search.PARTS[DeliveryStatus.PENDING]]
    monkeypatch.setitem(delivery_search.PARTS, DeliveryStatus.PENDING, pending)
    wanted = subscriber("wanted")
    boxes = [mailboxes.pulled_subscription(one, event_type) for one in (wanted, wanted, subscriber("other"))]
    subscription(wanted, event_type)
    publish_numbered(event_type, 8)
    crash_while_sending(line_of(wanted))
    for one in boxes[1:]:
        assert mailboxes.fetch_all(one, 12)
    mailboxes.time_out_hand_outs()
    handed_out = Delivery.objects.filter(fetched_until__isnull=False).order_by("-id").values_list("pk", flat=True)
    for number, pk in enumerate(handed_out):
        hours = 1 + number if number % 3 else -1 - number
        Delivery.objects.filter(pk=pk).update(fetched_until=Now() - timedelta(hours=hours))
    return wanted


def standing_by_hand() -> dict[int, str]:
    """Return how each delivery stands."""
    return dict(
        execute(
            "SELECT id, CASE WHEN fetched_until <= clock_timestamp() THEN 'PENDING' ELSE status END"
            " FROM delivery_open ORDER BY id DESC"
        )
    )


@pytest.mark.behaviour("9.2", "10.1")
@pytest.mark.parametrize("status", [None, PENDING, IN_FLIGHT])
def test_timed_out_deliveries_are_listed_as_pending(mixed: Subscriber, status: str | None) -> None:
    every = {pk: shown for pk, shown in standing_by_hand().items() if status in {None, shown}}
    own = {*Delivery.objects.filter(subscription__subscriber=mixed).values_list("pk", flat=True)}
    assert {*every.values()} == ({status} if status else {PENDING, IN_FLIGHT})
    asked = f"&status={status}" if status else ""
    for client, query, wanted in (
        (client_of(), "", {*every}),
        (client_of(), "subscriber=wanted", {*every} & own),
        (client_of(mixed), "", {*every} & own),
    ):
        shown = [(one["id"], one["status"]) for one in read_pages(client, "/api/v1/deliveries", query + asked)]
        assert shown == [(pk, every[pk]) for pk in every if pk in wanted]


@pytest.mark.behaviour("9.2", "10.1")
@pytest.mark.parametrize("status", [PENDING, IN_FLIGHT])
@pytest.mark.parametrize("of", ["all", "line", "subscription", "message"])
def test_the_admin_lists_it_alike(mixed: Subscriber, status: str, of: str) -> None:
    one = Delivery.objects.filter(fetched_until__lte=Now(), subscription__subscriber=mixed).earliest("pk")
    every_way: dict[str, dict[str, Any]] = {
        "all": {},
        "line": {"line__id__exact": one.line_id},
        "subscription": {"subscription__id__exact": one.subscription_id},
        "message": {"message__id": one.message_id},
    }
    asked = every_way[of]
    filters = {name.removesuffix("__exact"): value for name, value in asked.items()}
    every = standing_by_hand()
    wanted = Delivery.objects.filter(**filters).order_by("-pk").values_list("pk", flat=True)
    page = client_of_admin().get("/admin/delivery/delivery/", {**asked, "status__exact": status})
    shown = [row.pk for row in page.context["cl"].result_list]
    assert shown == [pk for pk in wanted if every[pk] == status]


@pytest.mark.behaviour("9.2")
def test_a_timed_out_delivery_and_its_message_show_pending(management: Client, mixed: Subscriber) -> None:
    late = Delivery.objects.filter(fetched_until__lte=Now()).earliest("pk")
    assert management.get(f"/api/v1/deliveries/{late.pk}").json()["status"] == PENDING
    of_message = management.get(f"/api/v1/messages/{late.message_id}").json()["deliveries"]
    assert {one["id"]: one["status"] for one in of_message}[late.pk] == PENDING
