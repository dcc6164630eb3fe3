"""Mailboxes for operators: how they stand, and what clients have (behaviour 9.5)."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from delivery.mailbox.acknowledge import acknowledge
from delivery.models import Delivery
from delivery.status.in_flight import in_flight_of
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests import factories
from tests.admin_of_mailboxes import address, text_of
from tests.driving import line_of, publish_numbered, statuses
from tests.mailboxes import fetched, pulled_subscription, time_out
from tests.plans import explaining

pytestmark = pytest.mark.django_db

MAILBOXES = "admin:delivery_mailbox_changelist"


@pytest.fixture
def wanted(storage: None, event_type: EventType) -> Subscription:
    """Return what an archive fetches: three messages are there."""
    made = pulled_subscription(factories.subscriber("archive", mailbox_ordered=False), event_type)
    publish_numbered(event_type, 3)
    return made


def standing(admin: Client, url: str) -> dict[str, str]:
    """Return what the only mailbox of the list says, column by column."""
    (row,) = re.findall(r"<tr[^>]*>(?:(?!</tr>).)*archive.*?</tr>", admin.get(url).content.decode(), re.DOTALL)
    cells = re.findall(r"field-(\w+)[^>]*>(.*?)</t[dh]>", row, re.DOTALL)
    return {name: " ".join(re.sub(r"<[^>]*>", " ", cell).split()) for name, cell in cells}


@pytest.mark.behaviour("9.5")
def test_the_list_says_how_each_mailbox_stands(admin: Client, wanted: Subscription) -> None:
    fetched(wanted, most=1)
    shown = standing(admin, reverse(MAILBOXES))
    counts = {name: shown[name] for name in ("available", "in_flight", "waiting", "redelivered", "expired")}
    assert counts == {"available": "2", "in_flight": "1", "waiting": "0", "redelivered": "0", "expired": "0"}
    time_out()
    shown = standing(admin, reverse(MAILBOXES))
    assert (shown["available"], shown["in_flight"], shown["redelivered"]) == ("3", "0", "1")


def test_only_whoever_fetches_has_a_mailbox(admin: Client, wanted: Subscription) -> None:
    factories.subscription(factories.subscriber("pushed-to"), wanted.event_type)
    assert [box.name for box in admin.get(reverse(MAILBOXES)).context["cl"].result_list] == ["archive"]
    Subscription.objects.filter(pk=wanted.pk).update(
        delivery_mode=DeliveryMode.PUSH, endpoint="http://archive.example/"
    )
    assert [*admin.get(reverse(MAILBOXES)).context["cl"].result_list] == []
    assert admin.get(address(wanted, "purge")).status_code == 404


def test_all_mailboxes_of_a_page_are_read_at_once(admin: Client, wanted: Subscription) -> None:
    with CaptureQueriesContext(connection) as one:
        admin.get(reverse(MAILBOXES))
    for number in range(20):
        pulled_subscription(factories.subscriber(f"box-{number}"), wanted.event_type)
    with CaptureQueriesContext(connection) as many:
        assert len(admin.get(reverse(MAILBOXES)).context["cl"].result_list) == 20, "as many as a page has"
    assert len(many) == len(one) <= 8


def test_a_mailbox_is_found_by_its_subscribers_name(admin: Client, wanted: Subscription) -> None:
    pulled_subscription(factories.subscriber("shop"), wanted.event_type)
    found = admin.get(reverse(MAILBOXES), {"q": "ARCH"}).context["cl"].result_list
    assert [box.name for box in found] == ["archive"]


@pytest.mark.behaviour("9.5")
def test_its_page_shows_what_clients_have_in_few_queries(admin: Client, wanted: Subscription) -> None:
    (one,) = fetched(wanted, most=1)
    time_out()
    fetched(wanted, most=2)
    with CaptureQueriesContext(connection) as few:
        shown = text_of(admin, address(wanted))
    page = admin.get(address(wanted)).content.decode()
    assert f"{one.delivery_id} {wanted.events} 1 " in shown, "it was handed out once before"
    assert page.count("?delivery=") == 2
    assert "1 PULL, 1 of them can be fetched from now" in shown
    fetched(wanted, most=1)
    with CaptureQueriesContext(connection) as more:
        text_of(admin, address(wanted))
    assert len(more) == len(few) <= 14


HANDED_OUT = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, fetches, due_at, fetched_until)
SELECT n, %s, %s, 'IN_FLIGHT', 2, 1, '9999-12-28 00:00+00', now() + n * interval '1 s' FROM generate_series(1, 20000) n
"""


def test_however_much_clients_have_only_what_is_shown_is_read(
    wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(HANDED_OUT, [line_of(wanted.subscriber).pk, wanted.pk])
    with explaining(monkeypatch) as statements:
        found = in_flight_of(wanted.subscriber_id, limit=100)
    times = Delivery.objects.filter(pk__in=found).values_list("message", flat=True)
    assert sorted(times) == [*range(1, 101)]
    assert [one.rows_read for one in statements] == [100]


def test_a_subscribers_page_leads_to_its_mailbox(admin: Client, wanted: Subscription) -> None:
    fetched(wanted, most=1)

    def page(of: Subscriber) -> str:
        return reverse("admin:subscriptions_subscriber_change", args=[of.pk])

    assert "2 available, 1 in flight" in text_of(admin, page(wanted.subscriber))
    assert address(wanted) in admin.get(page(wanted.subscriber)).content.decode()
    other = factories.subscription(event_type=wanted.event_type)
    assert address(other) not in admin.get(page(other.subscriber)).content.decode()


def test_a_deliverys_page_says_how_often_it_was_handed_out_and_until_when(admin: Client, wanted: Subscription) -> None:
    (one,) = fetched(wanted, most=1)
    page = reverse("admin:delivery_delivery_change", args=[one.delivery_id])
    assert re.search(r"Fetches:? 1 In flight until:? \d", text_of(admin, page))
    acknowledge(wanted.subscriber_id, [one.receipt])
    assert re.search(r"Fetches:? 1 In flight until:? - ", text_of(admin, page))
    assert Delivery.objects.get(pk=one.delivery_id).status == DeliveryStatus.DELIVERED


def test_a_subscription_is_switched_in_its_form_and_keeps_what_waits(admin: Client, wanted: Subscription) -> None:
    page = reverse("admin:subscriptions_subscription_change", args=[wanted.pk])
    form = admin.get(page).context["adminform"].form
    values = {name: "" if form[name].value() is None else form[name].value() for name in form.fields}
    admin.post(page, {**values, "delivery_mode": "PUSH"})
    assert Subscription.objects.get().delivery_mode == DeliveryMode.PULL, "it has no endpoint"
    sent = {**values, "delivery_mode": "PUSH", "endpoint": "http://archive.example/"}
    assert admin.post(page, sent).status_code == 302
    assert Subscription.objects.get().delivery_mode == DeliveryMode.PUSH
    assert statuses(wanted) == [DeliveryStatus.PENDING] * 3
