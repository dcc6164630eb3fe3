"""Search for messages and deliveries by what no index knows: time, headers, body, publisher, key."""

import datetime as dt
import time
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from broker_project.core.api import pagination
from delivery.models import Delivery, Message
from delivery.status import message_search
from subscriptions.models import EventType
from tests.support import factories
from tests.support.api import EVENT, client_of, publish, read_pages

pytestmark = pytest.mark.django_db

OPEN = "$$->'Body'->>'state' = 'open'"
MESSAGES, DELIVERIES = "/api/v1/messages", "/api/v1/deliveries"


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
