"""Subscriptions to patterns of event types, over the API and in the admin."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from subscriptions.models import EventKind, EventType, Subscription
from tests.support import factories
from tests.support.admin import SUBSCRIPTION_FORM
from tests.support.api import client_of, client_of_admin, invalid_fields

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.9")]

ROOT = "/api/v1/subscriptions"


@pytest.fixture(autouse=True)
def created() -> EventType:
    factories.subscriber("shop")
    return factories.event_type("Order.Created")


def post(client: Client, **events: object) -> Any:
    return client.post(ROOT, {"subscriber": "shop", "endpoint": "http://a.example/", **events})


def test_a_subscription_may_name_a_pattern_instead_of_an_event_type() -> None:
    made = post(client_of(), event_pattern="Order.*")
    body = client_of().get(made["Location"]).json()
    assert (made.status_code, body["event_type"], body["event_pattern"]) == (201, None, "Order.*")
    body = post(client_of(), event_type="Order.Created").json()
    assert (body["event_type"], body["event_pattern"]) == ("Order.Created", "")


@pytest.mark.parametrize(
    ("events", "pointer", "code"),
    [
        ({}, "#/event_type", "event_type_or_pattern"),
        ({"event_type": None, "event_pattern": ""}, "#/event_type", "event_type_or_pattern"),
        ({"event_type": "Order.Created", "event_pattern": "*"}, "#/event_type", "event_type_or_pattern"),
        ({"event_pattern": "Order*"}, "#/event_pattern", "event_pattern"),
        ({"event_pattern": ["*"]}, "#/event_pattern", "not_text"),
    ],
)
def test_a_subscription_has_an_event_type_or_a_pattern(events: dict[str, object], pointer: str, code: str) -> None:
    answer = post(client_of(), **events)
    assert answer.status_code == 400
    assert [(one["pointer"], one["code"]) for one in answer.json()["errors"]] == [(pointer, code)]


def test_a_pattern_is_fixed_after_creation() -> None:
    address = post(client_of(), event_pattern="Order.*")["Location"]
    answer = client_of().patch(address, {"event_pattern": "*"})
    assert invalid_fields(answer) == ["event_pattern"]
    with pytest.raises(IntegrityError, match="fixed"), transaction.atomic():
        Subscription.objects.update(event_pattern="*")
    with pytest.raises(IntegrityError, match="subscription_pattern"):
        Subscription.objects.create(
            subscriber=factories.subscriber(), event_pattern="Order", endpoint="http://a/", signing_secret="whsec_"
        )


def test_lists_by_event_type_show_the_patterns_that_reach_it() -> None:
    ids = {pattern: post(client_of(), event_pattern=pattern).json()["id"] for pattern in ("*", "Order.*", "Pay.*")}
    named = post(client_of(), event_type="Order.Created").json()["id"]
    factories.event_type("Order.Sync", EventKind.SYNC)

    def listed(**query: str) -> list[int]:
        return [one["id"] for one in client_of().get(ROOT, query).json()["items"]]

    assert listed(event_type="Order.Created") == [ids["*"], ids["Order.*"], named]
    assert listed(event_type="Order.Sync") == listed(event_type="Order.Nothing") == []
    assert listed(event_pattern="Pay.*") == [ids["Pay.*"]]


def test_the_admin_makes_shows_and_finds_patterns(created: EventType) -> None:
    admin, changelist = client_of_admin(), reverse("admin:subscriptions_subscription_changelist")
    shop = factories.subscriber("pattern-shop")
    form = {**SUBSCRIPTION_FORM, "subscriber": shop.pk, "endpoint": "http://a.example/", "status": "ACTIVE"}
    add = reverse("admin:subscriptions_subscription_add")
    refused = admin.post(add, form).text
    assert "for one event type or for one pattern" in refused
    assert "shown only once" in admin.post(add, {**form, "event_pattern": "Order.*"}).text
    by_type = admin.get(changelist, {"event_type__id__exact": created.pk}).text
    other = admin.get(changelist, {"event_type__id__exact": factories.event_type("Pay").pk}).text
    assert ("pattern-shop" in by_type, "Order.*" in by_type, "Order.*" in other) == (True, True, False)
    assert "pattern-shop" in admin.get(changelist, {"q": "Order.*"}).text
