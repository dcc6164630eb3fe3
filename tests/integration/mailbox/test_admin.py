"""Mailboxes in the admin: status, returning, purging."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from delivery.admin import mailboxes
from delivery.mailbox.acknowledge import acknowledge
from delivery.models import Delivery
from delivery.status.delivery_search import fetched_by_clients
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.support import factories
from tests.support.admin import form_shown, save_form
from tests.support.broker import line_of, publish_numbered, statuses
from tests.support.database import execute
from tests.support.mailboxes import fetch_all, pulled_subscription, time_out_hand_outs
from tests.support.query_plans import explained_statements

pytestmark = pytest.mark.django_db

MAILBOXES = "admin:delivery_mailbox_changelist"


HANDED_OUT = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, fetches, waits_for, fetched_until)
SELECT n, %s, %s, 'IN_FLIGHT', 2, 1, 'RETURN', now() + (60 + n) * interval '1 s'
  FROM generate_series(1, 20000) n
"""

CANCELLED, IN_FLIGHT, PENDING = DeliveryStatus.CANCELLED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


def mailbox_page(of: Subscription, what: str = "change") -> str:
    return reverse(f"admin:delivery_mailbox_{what}", args=[of.subscriber_id])


def page_text(admin: Client, url: str) -> str:
    """Return what a page says, without its markup."""
    answer = admin.get(url)
    assert answer.status_code == 200
    return " ".join(re.sub(r"<[^>]*>", " ", answer.content.decode()).split())


def post_form(admin: Client, url: str, **form: object) -> str:
    """Post a form; return what the page that follows has to say."""
    answer = admin.post(url, form, follow=True)
    return " ".join(map(str, answer.context["messages"]))


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
def test_the_list_shows_the_counts_of_each_mailbox(admin: Client, wanted: Subscription) -> None:
    fetch_all(wanted, most=1)
    shown = standing(admin, reverse(MAILBOXES))
    counts = {name: shown[name] for name in ("available", "in_flight", "waiting", "redelivered", "expired")}
    assert counts == {"available": "2", "in_flight": "1", "waiting": "0", "redelivered": "0", "expired": "0"}
    time_out_hand_outs()
    shown = standing(admin, reverse(MAILBOXES))
    assert (shown["available"], shown["in_flight"], shown["redelivered"]) == ("3", "0", "1")


def test_only_subscribers_with_pull_subscriptions_have_a_mailbox(admin: Client, wanted: Subscription) -> None:
    factories.subscription(factories.subscriber("pushed-to"), wanted.event_type)
    assert [box.name for box in admin.get(reverse(MAILBOXES)).context["cl"].result_list] == ["archive"]
    push = {"delivery_mode": DeliveryMode.PUSH, "endpoint": "http://archive.example/"}
    Subscription.objects.filter(pk=wanted.pk).update(**push)
    assert [*admin.get(reverse(MAILBOXES)).context["cl"].result_list] == []
    assert admin.get(mailbox_page(wanted, "purge")).status_code == 404


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
    (one,) = fetch_all(wanted, most=1)
    time_out_hand_outs()
    fetch_all(wanted, most=2)
    with CaptureQueriesContext(connection) as few:
        shown = page_text(admin, mailbox_page(wanted))
    page = admin.get(mailbox_page(wanted)).content.decode()
    assert f"{one.delivery_id} {wanted.events} 1 " in shown, "it was handed out once before"
    assert page.count("?delivery=") == 2
    assert "1 PULL, 1 of them fetchable now" in shown
    fetch_all(wanted, most=1)
    with CaptureQueriesContext(connection) as more:
        page_text(admin, mailbox_page(wanted))
    assert len(more) == len(few) <= 14


def test_a_page_reads_only_the_hand_outs_that_it_shows(wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(HANDED_OUT, [line_of(wanted.subscriber).pk, wanted.pk])
    with explained_statements(monkeypatch) as statements:
        found = fetched_by_clients(wanted.subscriber_id, limit=100)
    times = Delivery.objects.filter(pk__in=found).values_list("message", flat=True)
    assert sorted(times) == [*range(1, 101)]
    assert [one.rows_read for one in statements] == [100]


def test_a_subscribers_page_leads_to_its_mailbox(admin: Client, wanted: Subscription) -> None:
    fetch_all(wanted, most=1)

    def page(of: Subscriber) -> str:
        return reverse("admin:subscriptions_subscriber_place", args=[of.pk, "overview"])

    assert "2 available, 1 in flight" in page_text(admin, page(wanted.subscriber))
    assert mailbox_page(wanted) in admin.get(page(wanted.subscriber)).content.decode()
    other = factories.subscription(event_type=wanted.event_type)
    assert mailbox_page(other) not in admin.get(page(other.subscriber)).content.decode()


def test_the_page_of_a_delivery_shows_its_hand_outs(admin: Client, wanted: Subscription) -> None:
    (one,) = fetch_all(wanted, most=1)
    page = reverse("admin:delivery_delivery_change", args=[one.delivery_id])
    assert re.search(r"Fetches:? 1 In flight until:? in \d", page_text(admin, page))
    acknowledge(wanted.subscriber_id, [one.receipt])
    assert re.search(r"Fetches:? 1 In flight until:? - ", page_text(admin, page))
    assert Delivery.objects.get(pk=one.delivery_id).status == DeliveryStatus.DELIVERED


def test_switching_a_subscription_to_push_keeps_its_messages(admin: Client, wanted: Subscription) -> None:
    values = form_shown(admin, wanted)
    save_form(admin, wanted, {**values, "delivery_mode": "PUSH"})
    assert Subscription.objects.get().delivery_mode == DeliveryMode.PULL, "it has no endpoint"
    sent = {**values, "delivery_mode": "PUSH", "endpoint": "http://archive.example/"}
    assert save_form(admin, wanted, sent).status_code == 302
    assert Subscription.objects.get().delivery_mode == DeliveryMode.PUSH
    assert statuses(wanted) == [DeliveryStatus.PENDING] * 3


@pytest.mark.behaviour("9.4")
def test_messages_in_flight_are_returned_after_a_confirmation(admin: Client, wanted: Subscription) -> None:
    one, other = fetch_all(wanted, most=2)
    back = mailbox_page(wanted, "give_back")
    asked = page_text(admin, back)
    assert f"dlv_{one.delivery_id}, fetched once dlv_{other.delivery_id}, fetched once" in asked
    assert statuses(wanted) == [IN_FLIGHT, IN_FLIGHT, PENDING]
    assert post_form(admin, back, _selected_action=chosen(admin, back)) == "Returned 2 of 2."
    assert statuses(wanted) == [PENDING] * 3
    assert [again.redeliveries for again in fetch_all(wanted)] == [1, 1, 0]
    assert LogEntry.objects.get().get_change_message() == "Returned 2 of 2."


def chosen(admin: Client, url: str) -> list[str]:
    """Return what the form that asks would send."""
    return re.findall(r'name="_selected_action" value="([^"]*)"', admin.get(url).content.decode())


def test_one_message_is_returned_alone(admin: Client, wanted: Subscription) -> None:
    one, _ = fetch_all(wanted, most=2)
    only = f"{mailbox_page(wanted, 'give_back')}?delivery={one.delivery_id}"
    assert post_form(admin, only, _selected_action=chosen(admin, only)) == "Returned 1 of 1."
    assert statuses(wanted) == [PENDING, IN_FLIGHT, PENDING]


@pytest.mark.behaviour("9.7")
def test_returning_says_which_deliveries_end(admin: Client, wanted: Subscription) -> None:
    Subscriber.objects.update(max_redeliveries=1)
    fetch_all(wanted, most=1)
    time_out_hand_outs()
    again, once, asked = fetch_all(wanted)
    Delivery.objects.filter(pk=asked.delivery_id).update(cancel_requested=True)
    back = mailbox_page(wanted, "give_back")
    question = page_text(admin, back)
    assert "Return all 3 in flight?" in question
    assert "1 will be available again, 2 will end." in question
    failed, cancelled = "its redeliveries are used up", "its cancellation was requested"
    assert f"dlv_{again.delivery_id}, fetched 2 times: ends as FAILED, because {failed}" in question
    assert f"dlv_{once.delivery_id}, fetched once dlv_{asked.delivery_id}" in question
    assert f"dlv_{asked.delivery_id}, fetched once: ends as CANCELLED, because {cancelled}" in question
    note = "Returned 1 of 3; 1 FAILED, redeliveries used up; 1 CANCELLED, as requested."
    assert post_form(admin, back, _selected_action=chosen(admin, back)) == note
    assert statuses(wanted) == [DeliveryStatus.FAILED, PENDING, CANCELLED]
    assert LogEntry.objects.get().get_change_message() == note


def test_those_next_to_time_out_come_back(admin: Client, wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "MAX_SHOWN", 2)
    last = fetch_all(wanted)[-1]
    back = mailbox_page(wanted, "give_back")
    assert len(chosen(admin, back)) == 2
    assert "Return the 2 next to time out, of 3 in flight" in page_text(admin, back)
    only = f"{back}?delivery={last.delivery_id}"
    assert chosen(admin, only) == [f"{last.delivery_id}.{last.fetch_id}"], "though it is not among those"


def test_a_message_that_is_no_longer_in_flight_is_reported(admin: Client, wanted: Subscription) -> None:
    done, _ = fetch_all(wanted, most=2)
    acknowledge(wanted.subscriber_id, [done.receipt])
    answer = admin.get(f"{mailbox_page(wanted, 'give_back')}?delivery={done.delivery_id}", follow=True)
    assert [*map(str, answer.context["messages"])] == [f"Delivery {done.delivery_id} is not in flight."]


@pytest.mark.behaviour("9.3")
def test_a_later_hand_out_is_not_returned(admin: Client, wanted: Subscription) -> None:
    fetch_all(wanted, most=1)
    back = mailbox_page(wanted, "give_back")
    shown = chosen(admin, back)
    time_out_hand_outs()
    (again,) = fetch_all(wanted, most=1)
    assert post_form(admin, back, _selected_action=shown) == "Returned 0 of 1."
    assert statuses(wanted) == [IN_FLIGHT, PENDING, PENDING]
    assert acknowledge(wanted.subscriber_id, [again.receipt])[again.receipt].status == 200
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("forged", ["", "1", "1.", "x.1", "1.1.1", "٣.1"])
def test_forged_receipts_return_nothing(admin: Client, wanted: Subscription, forged: str) -> None:
    fetch_all(wanted, most=1)
    assert post_form(admin, mailbox_page(wanted, "give_back"), _selected_action=forged) == "Returned 0 of 0."
    assert statuses(wanted) == [IN_FLIGHT, PENDING, PENDING]


def test_without_messages_in_flight_nothing_is_asked(admin: Client, wanted: Subscription) -> None:
    answer = admin.get(mailbox_page(wanted, "give_back"), follow=True)
    assert answer.redirect_chain == [(mailbox_page(wanted), 302)]
    assert [*map(str, answer.context["messages"])] == ["Nothing is in flight."]


@pytest.mark.behaviour("9.7")
def test_a_mailbox_is_purged_after_a_confirmation(admin: Client, wanted: Subscription) -> None:
    (one,) = fetch_all(wanted, most=1)
    purge = mailbox_page(wanted, "purge")
    counts = "2 available, 0 waiting, and 1 in flight unless acknowledged"
    assert f"Cancel all messages in this mailbox: {counts}?" in page_text(admin, purge)
    assert CANCELLED not in statuses(wanted)
    note = "Cancelled 2 deliveries; 1 in flight will be cancelled unless acknowledged."
    assert post_form(admin, purge) == note
    assert statuses(wanted) == [IN_FLIGHT, CANCELLED, CANCELLED]
    acknowledge(wanted.subscriber_id, [one.receipt])
    assert statuses(wanted) == [DeliveryStatus.DELIVERED, CANCELLED, CANCELLED]
    assert LogEntry.objects.get().get_change_message() == note
