"""Filters in the admin: tried in the lab, explained on a message's page."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags

from delivery.models import Message
from delivery.playground import trials
from subscriptions.filters import document, parse_filter
from subscriptions.models import EventType, Subscription
from tests import factories
from tests.clients import Answer
from tests.publishing import publish

pytestmark = pytest.mark.django_db

OPEN = "$$->'Body'->>'state' = 'open'"
LAB = "/admin/delivery/message/filter-lab/"


@pytest.fixture
def subscription(event_type: EventType) -> Subscription:
    return factories.subscription(event_type=event_type, filter=OPEN, header_filter_string="eu")


def shown(answer: Answer) -> str:
    """Return the page's text, blanks joined."""
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_a_subscription_leads_to_the_lab_with_its_filters_and_the_newest_message(
    admin: Client, client: Client, subscription: Subscription
) -> None:
    publish(client, b'{"state": "shut"}', FILTER_STRING="eu")
    publish(client, b'{"state": "open"}', FILTER_STRING="eu")
    action = reverse("admin:subscriptions_subscription_test_filter", args=[subscription.pk])
    page = admin.get(action, follow=True)
    newest = Message.objects.order_by("-pk")[0]
    assert (page.context["message"].pk, page.context["verdict"].qualifies) == (newest.pk, True)
    assert "<strong>1</strong> passes, header filter included." in shown(page)
    assert f'href="/admin/subscriptions/subscription/{subscription.pk}/change/">Back to' in shown(page)
    assert "newest 2 messages" in shown(page)


def test_an_edited_filter_is_tried_on_a_chosen_message(admin: Client, client: Client, event_type: EventType) -> None:
    publish(client, b'{"state": "<b>shut</b>"}')
    chosen = Message.objects.get()
    publish(client, b'{"state": "open"}')
    page = admin.post(LAB, {"message": chosen.pk, "filter": f"{OPEN} or $$->'Body'->>'nothing' = '1'"})
    assert [term.result for term in page.context["verdict"].filter.terms] == ["false", "null"]
    assert "&lt;b&gt;shut&lt;/b&gt;" in shown(page)
    assert "<b>shut</b>" not in shown(page)
    assert "<em>nothing</em>" in shown(page)


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"filter": "$$->>'Body' == 'b'"}, "filter", "line 1, column 14"),
        ({"filter": OPEN}, "message", "Choose an event type"),
        ({"filter": OPEN, "message": "5"}, "message", "no such message"),
        ({"filter": OPEN, "message": "x"}, "message", "whole number"),
        ({"filter": OPEN, "message": "9" * 30}, "message", "less than or equal"),
    ],
)
def test_the_lab_says_what_it_cannot_try(admin: Client, fields: dict[str, str], field: str, said: str) -> None:
    errors = admin.post(LAB, fields).context["form"].errors
    assert said in " ".join(errors[field])


def test_a_pattern_subscription_leads_to_a_lab_without_errors(admin: Client, event_type: EventType) -> None:
    made = factories.subscription(event_pattern="Test.*", filter=OPEN)
    page = admin.get(LAB, {"subscription": made.pk})
    assert (page.context["form"].errors, page.context["form"]["filter"].value()) == ({}, OPEN)
    assert "choose one of its event types" in shown(page)


def test_a_message_of_another_type_than_chosen_is_refused(admin: Client, client: Client, event_type: EventType) -> None:
    publish(client, b"1")
    fields = {"event_type": factories.event_type().pk, "message": Message.objects.get().pk}
    (error,) = admin.post(LAB, fields).context["form"].errors["message"]
    assert error == f"This message is of {event_type}; choose that event type, or none."


def test_the_header_filter_counts(client: Client, event_type: EventType) -> None:
    for place in ("eu", "us", "eu"):
        publish(client, b'{"state": "open"}', FILTER_STRING=place)
    for wanted in (None, parse_filter(OPEN)):
        trial = trials.try_filters(wanted, event_type, header_filter_string="eu")
        assert trial == trials.Trial(tried=3, matching=2, failing=0)


def test_a_messages_page_matches_deliveries_with_subscriptions(
    admin: Client, client: Client, event_type: EventType
) -> None:
    made = factories.subscription(event_type=event_type, endpoint="PUT:https://tracker.example:8443/hook?a=b")
    publish(client, b"1")
    page = shown(admin.get(f"/admin/delivery/message/{Message.objects.get().pk}/change/"))
    assert page.count(f">{made.pk}: {made}, tracker.example:8443</a>") == 2
    assert "by today&#x27;s configuration" in page


def test_an_event_type_without_messages_has_nothing_to_try_on(admin: Client, subscription: Subscription) -> None:
    page = admin.get(LAB, {"subscription": subscription.pk})
    assert page.context["form"].errors == {"message": ["No message of this event type is stored yet."]}


@pytest.mark.parametrize("query", [{}, {"subscription": "x"}, {"message": "9" * 30}, {"event_type": "x"}])
def test_the_lab_opens_whatever_its_address_says(admin: Client, query: dict[str, str]) -> None:
    assert "Try it" in shown(admin.get(LAB, query))


def test_a_filter_is_tried_on_no_more_than_fits_into_memory(
    client: Client, event_type: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "TRIED_BYTES", 45)
    monkeypatch.setattr(trials, "AT_ONCE", 1)
    for state in ("open", "shut", "open"):
        publish(client, b'{"state": "%s"}' % state.encode())
    trial = trials.try_filters(parse_filter(OPEN), event_type)
    assert trial == trials.Trial(tried=2, matching=1, failing=0)


def test_a_filter_is_tried_on_no_more_than_takes_a_moment(
    client: Client, event_type: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        publish(client, b'{"state": "open", "huge": 1e999999}')
    costly = parse_filter("$$->'Body'->>'state' like '_%'")
    monkeypatch.setattr(document, "MOST_WORK", 15)
    assert trials.try_filters(costly, event_type) == trials.Trial(tried=2, matching=2, failing=0)
    failing = parse_filter("$$->'Body'->'huge' = '1'")
    assert trials.try_filters(failing, event_type) == trials.Trial(tried=3, matching=0, failing=3)


@pytest.mark.parametrize(
    ("address", "way"),
    [
        (LAB, ["Messages", "Filter lab"]),
        ("/admin/subscriptions/eventtype/import/", ["Event types", "Import event types"]),
    ],
)
def test_a_page_says_where_it_is(admin: Client, address: str, way: list[str]) -> None:
    text = strip_tags(shown(admin.get(address)))
    assert " chevron_right ".join(way) in " ".join(text.split())


def test_only_who_may_see_messages_enters_the_lab(db: None) -> None:
    assert Client().get(LAB).status_code == 302


def test_a_messages_page_says_who_gets_it_and_why(admin: Client, client: Client, subscription: Subscription) -> None:
    factories.subscription(event_type=subscription.event_type, filter="$$->'Body'->'huge' = '1'")
    publish(client, b'{"state": "<i>shut</i>", "huge": 1e999999}', FILTER_STRING="eu")
    page = shown(admin.get(f"/admin/delivery/message/{Message.objects.get().pk}/change/"))
    for said in (
        "does not",
        "The filter is false.",
        "held",
        "The filter fails: the delivery is HELD.",
        "131072 digits",
    ):
        assert said in page
    assert "&lt;i&gt;shut&lt;/i&gt;" in page
    assert "<i>shut</i>" not in page


def test_a_broken_filter_is_not_saved_in_the_admin(admin: Client, subscription: Subscription) -> None:
    address = reverse("admin:subscriptions_subscription_change", args=[subscription.pk])
    form = {
        "endpoint": subscription.endpoint,
        "headers": "{}",
        "position": "0",
        "script": "",
        "output": "AS_PUBLISHED",
        "delivery_mode": "PUSH",
    }
    page = admin.post(address, {**form, "header_filter_string": "eu", "filter": "$$->>'a"})
    assert "line 1, column 6" in " ".join(page.context["adminform"].form.errors["filter"])
    admin.post(address, {**form, "header_filter_string": "eu", "filter": f"NOT {OPEN}"})
    subscription.refresh_from_db()
    assert subscription.filter == f"NOT {OPEN}"
