"""Search for messages and deliveries by what no index knows: time, headers, body, publisher, key."""

import datetime as dt
import re
import time
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from broker_project.core.api import pagination
from delivery.admin import search as admin_search
from delivery.admin.search import OF_CONTENTS
from delivery.models import Delivery, Message
from delivery.status import message_search
from subscriptions.models import EventType, Subscriber
from tests.support import factories
from tests.support.admin import browser_with
from tests.support.api import EVENT, client_of, publish, read_pages

pytestmark = pytest.mark.django_db

OPEN = "$$->'Body'->>'state' = 'open'"
MESSAGES, DELIVERIES = "/api/v1/messages", "/api/v1/deliveries"
ADMIN = "/admin/delivery/message/search/"
FIND = "/admin/find/"
KINDS = {"messages": "message", "deliveries": "delivery"}


@pytest.fixture
def stored(client: Client, event_type: EventType) -> list[int]:
    """Ten messages of the shop, odd ones open and of the team blue; one of another publisher, and one of a type."""
    factories.subscription(factories.subscriber("warehouse"), event_type, filter=OPEN)
    ids = []
    for number in range(10):
        body = b'{"state": "%s", "n": %d}' % (b"open" if number % 2 else b"shut", number)
        headers = {"X_Team": "blue"} if number % 2 else {}
        ids.append(publish(client, body, Idempotency_Key=f"order-{number}", **headers).json()["id"])
    return ids


def found(client: Client, path: str = MESSAGES, **query: str) -> list[int]:
    answer = client.get(path, query)
    assert answer.status_code == 200, answer.json()
    name = "id" if path == MESSAGES else "message_id"
    return [one[name] for one in answer.json()["items"]]


@pytest.mark.behaviour("2.16")
@pytest.mark.parametrize("path", [MESSAGES, DELIVERIES])
def test_by_body_header_key_publisher_and_event_type(management: Client, stored: list[int], path: str) -> None:
    odd = stored[1::2][::-1]
    every = stored[::-1] if path == MESSAGES else odd
    other = factories.publisher("other")
    factories.event_type("Shop.Other")
    publish(client_of(other), b'{"state": "open"}', event="Shop.Other", X_Team="red")
    assert found(management, path, filter=f"{OPEN} AND $$->'Body'->'n' > '4'") == odd[:3]
    assert found(management, path, header="x-team: blue") == odd
    assert found(management, path, header="X-Team: green") == []
    assert found(management, path, idempotency_key="order-3") == [stored[3]]
    assert found(management, path, idempotency_key="order-99") == []
    assert found(management, path, publisher="shop") == every
    assert found(management, path, publisher="shop", event_type=EVENT, header="X-Team") == odd
    assert found(management, path, publisher="shop", event_type="Shop.Other") == []
    assert found(management, path, subscriber="warehouse", header="X-Team", status="PENDING") == odd
    assert found(management, path, subscriber="warehouse", header="X-Team", status="REJECTED") == []
    assert found(management, path, subscriber="nobody", header="X-Team") == []


@pytest.mark.behaviour("2.16")
@pytest.mark.parametrize("path", [MESSAGES, DELIVERIES])
def test_by_time(management: Client, stored: list[int], path: str) -> None:
    now = timezone.now()
    for number, message_id in enumerate(stored):
        at = now - dt.timedelta(minutes=30 - number)
        Message.objects.filter(pk=message_id).update(published_at=at)
        Delivery.objects.filter(message=message_id).update(created_at=at)
    begin, end = now - dt.timedelta(minutes=27), now - dt.timedelta(minutes=23)
    within = [one for one in stored[3:7] if path == MESSAGES or stored.index(one) % 2][::-1]
    assert found(management, path, **{"from": begin.isoformat(), "to": end.isoformat()}) == within
    assert found(management, path, **{"from": now.isoformat()}) == []
    tomorrow = (now + dt.timedelta(days=1)).isoformat()
    assert found(management, path, to=tomorrow) == found(management, path)
    assert management.get(path, {"from": end.isoformat(), "to": begin.isoformat()}).status_code == 400
    assert management.get(path, {"filter": "$$->"}).status_code == 400


@pytest.mark.behaviour("2.16")
def test_pages_are_the_same_forwards_and_backwards(management: Client, stored: list[int]) -> None:
    assert [one["id"] for one in read_pages(management, MESSAGES, "header=X-Team", limit=2)] == stored[1::2][::-1]
    pages = read_pages(management, DELIVERIES, "header=X-Team&subscriber=warehouse", limit=2)
    assert [one["message_id"] for one in pages] == stored[1::2][::-1]


@pytest.mark.behaviour("2.16")
def test_a_search_ends_and_its_cursor_goes_on(
    management: Client, stored: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "SLICE_WITH_BODIES", 3)
    moments = iter(range(1000))
    monkeypatch.setattr(pagination, "monotonic", lambda: float(next(moments) * pagination.SEARCH_SECONDS / 2))
    url: Any = f"{MESSAGES}?filter=$$->'Body'->'n' < '2'"
    seen, until = [], []
    while url:
        answer = management.get(url).json()
        seen += [one["id"] for one in answer["items"]]
        until.append(answer.get("searched_until"))
        url = answer["next"]
    assert seen == [stored[1], stored[0]]
    assert [one is not None for one in until] == [True, True, True, False]
    assert until[0] > until[1] > until[2]


@pytest.mark.behaviour("2.16")
def test_keys_find_only_what_they_see(management: Client, client: Client, stored: list[int]) -> None:
    other = client_of(factories.publisher("other"))
    assert found(other, filter=OPEN) == []
    assert found(client, filter=OPEN, event_type=EVENT) == stored[1::2][::-1]
    assert found(client_of(factories.subscriber("else")), DELIVERIES, header="X-Team") == []


def test_the_ends_of_a_range_are_found_by_bisection(stored: list[int]) -> None:
    began = time.monotonic()
    low, high = message_search.ids_between(
        Message.objects.all(), "published_at", timezone.now() - dt.timedelta(hours=1), timezone.now()
    )
    assert low <= stored[0] < stored[-1] < high
    assert time.monotonic() - began < 10


@pytest.fixture
def searching() -> Client:
    """The admin site of somebody who may see contents."""
    return browser_with("delivery.view_message", "delivery.view_delivery", "delivery.view_payload")


def shown(browser: Client, **asked: str) -> tuple[list[int], str]:
    """Return the ids that the page of the admin site shows, and the whole page."""
    page = browser.post(ADMIN, asked).content.decode()
    return [int(one) for one in re.findall(rf"/admin/delivery/{KINDS[asked['kind']]}/(\d+)/change/", page)], page


@pytest.mark.behaviour("2.16")
@pytest.mark.parametrize("kind", KINDS)
def test_the_admin_searches_for_both_kinds(searching: Client, stored: list[int], kind: str) -> None:
    store = Subscriber.objects.get()
    by_message = dict(Delivery.objects.values_list("message_id", "pk"))
    odd = [one if kind == "messages" else by_message[one] for one in stored[1::2]][::-1]
    assert shown(searching, kind=kind, filter=f"{OPEN} AND $$->'Body'->'n' > '4'")[0] == odd[:3]
    assert shown(searching, kind=kind, header="X-Team: blue", subscriber=str(store.pk), status="PENDING")[0] == odd
    assert shown(searching, kind=kind, idempotency_key="order-3")[0] == [odd[3]]
    assert shown(searching, kind=kind, event_type=str(EventType.objects.get(name=EVENT).pk), status="REJECTED")[0] == []


@pytest.mark.behaviour("2.16")
def test_the_admin_goes_on_with_a_search(searching: Client, stored: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_search, "MAX_SHOWN", 3)
    asked, seen = {"kind": "messages", "header": "X-Team"}, []
    while True:
        found, page = shown(searching, **asked)
        seen.append(found)
        goes_on = re.search(r'name="cursor" value="([^"]+)"', page)
        if not goes_on:
            break
        asked["cursor"] = goes_on[1]
    assert seen == [stored[5::2][::-1], stored[1:5:2][::-1]]
    found, page = shown(searching, **{**asked, "kind": "deliveries"})
    assert (found, "This search cannot be continued." in page) == ([], True)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"from_": "yesterday"}, "Enter a valid date/time."),
        ({"from_": "2026-12-24 18:00", "to": "2026-12-24"}, "This is not after the beginning."),
        ({"filter": "$$->"}, "Expected"),
        ({"status": "SENT"}, "Select a valid choice."),
        ({"event_type": "99"}, "Select a valid choice."),
        ({"cursor": "x"}, "This search cannot be continued."),
    ],
)
def test_the_admin_says_what_is_wrong_and_keeps_what_was_typed(
    searching: Client, stored: list[int], asked: dict[str, str], error: str
) -> None:
    found, page = shown(searching, kind="messages", header="X-Typed", **asked)
    assert (found, error in page, 'value="X-Typed"' in page) == ([], True, True)
    assert [escape(text) in page for name, text in asked.items() if name in {"from_", "to", "filter"}].count(False) == 0


def test_the_admin_searches_contents_only_with_permission(stored: list[int]) -> None:
    browser = browser_with("delivery.view_message")
    page = browser.get(ADMIN).content.decode()
    assert [f'name="{name}"' in page for name in (*OF_CONTENTS, "publisher")] == [False, False, False, True]
    assert "You do not have the permission to see bodies and headers" in page
    for asked in ({"filter": "$$->'Body'->'n' = '4'"}, {"header": "X-Team"}, {"idempotency_key": "order-3"}):
        assert shown(browser, kind="messages", **asked)[0] == stored[::-1], "as if it had not been asked"
    found, page = shown(browser, kind="deliveries")
    assert (found, "Select a valid choice." in page) == ([], True)
    assert browser_with("delivery.view_delivery").get(ADMIN).status_code == 403


@pytest.mark.behaviour("2.17")
def test_the_box_takes_any_id_or_name_and_goes_to_what_has_it(admin: Client, stored: list[int]) -> None:
    delivery = Delivery.objects.earliest("pk")
    subscription = delivery.subscription
    assert subscription
    leads_to = {
        f"msg_{stored[0]}": reverse("admin:delivery_message_change", args=[stored[0]]),
        f" dlv_{delivery.pk}": reverse("admin:delivery_delivery_change", args=[delivery.pk]),
        "Warehouse": reverse("admin:subscriptions_subscriber_change", args=[subscription.subscriber_id]),
        EVENT: reverse("admin:subscriptions_eventtype_change", args=[subscription.event_type_id]),
        subscription.endpoint: reverse("admin:subscriptions_subscription_change", args=[subscription.pk]),
    }
    assert {term: admin.get(FIND, {"q": term}).headers.get("Location") for term in leads_to} == leads_to
    both = admin.get(FIND, {"q": "wareho"}).content.decode()
    assert ("warehouse ←" in both, leads_to["Warehouse"] in both) == (True, True)
    assert "Nothing that you may see" in admin.get(FIND, {"q": "att_1"}).content.decode()
    assert "Nothing that you may see" in browser_with("delivery.view_line").get(FIND, {"q": EVENT}).content.decode()
