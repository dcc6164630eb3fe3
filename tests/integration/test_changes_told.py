"""What changes through the API is told in the log."""

from typing import Any, Final

import pytest
from django.test import Client
from django.urls import resolve

from subscriptions.api.resources import Noted
from subscriptions.models import Scope
from tests import factories
from tests.clients import client_with

pytestmark = pytest.mark.django_db

JSON = "application/json"
ANY = {"If-Match": "*"}


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    events = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    kept = ("key", "method", "path", "fields", "made")
    return [
        {name: event[name] for name in kept if name in event} for event in events if event["event"] == "api.changed"
    ]


def test_who_changed_what_is_told_without_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    key, token = factories.api_key()
    client = client_with(token)
    with caplog.at_level("INFO"):
        made = {"name": "shop", "headers": {"Authorization": "Bearer hidden"}}
        assert client.post("/api/v1/subscribers", made, JSON).status_code == 201
        assert client.patch("/api/v1/subscribers/shop", {"description": "x"}, JSON, headers=ANY).status_code == 200
        assert client.post("/api/v1/subscribers/shop/inactivate", content_type=JSON, headers=ANY).status_code == 200
        assert client.delete("/api/v1/subscribers/shop", headers=ANY).status_code == 204
    by = {"key": key.prefix}
    assert told(caplog) == [
        {**by, "method": "POST", "path": "/api/v1/subscribers", "fields": ["headers", "name"], "made": "shop"},
        {**by, "method": "PATCH", "path": "/api/v1/subscribers/shop", "fields": ["description"]},
        {**by, "method": "POST", "path": "/api/v1/subscribers/shop/inactivate", "fields": []},
        {**by, "method": "DELETE", "path": "/api/v1/subscribers/shop", "fields": []},
    ]
    assert "hidden" not in caplog.text
    assert token not in caplog.text


def test_what_is_read_or_refused_is_not_told(caplog: pytest.LogCaptureFixture, management: Client) -> None:
    with caplog.at_level("INFO"):
        management.get("/api/v1/subscribers")
        assert management.post("/api/v1/subscribers", {"nonsense": 1}, JSON).status_code == 400
        assert Client().post("/api/v1/subscribers", {"name": "shop"}, JSON).status_code == 401
    assert told(caplog) == []


STEPPING_IN: Final = {Scope.CONFIGURE, Scope.OPERATE, Scope.KEYS}
PURGING: Final = "/api/v1/mailboxes/{name}/purge"
SOME: Final = {"{id}": "4711", "{name}": "some", "{event_type}": "Some.Type", "{token}": "some"}


def is_told(path: str) -> bool:
    for name, value in SOME.items():
        path = path.replace(name, value)
    view: Any = resolve(path).func
    return issubclass(view.cls, Noted)


def test_every_operation_that_changes_something_is_told_and_no_other() -> None:
    operations = {
        (method, path): {scope for one in operation.get("security", ()) for scope in one["apiKey"]}
        for path, methods in Client().get("/api/v1/openapi.json").json()["paths"].items()
        for method, operation in methods.items()
        if method != "get"
    }
    wanted = {one for one, scopes in operations.items() if scopes & STEPPING_IN or one[1] == PURGING}
    assert len(wanted) > 30
    assert {one for one in operations if is_told(one[1])} == wanted


def test_stepping_in_is_told_with_what_it_made_and_a_dry_run_is_not(caplog: pytest.LogCaptureFixture) -> None:
    key, token = factories.api_key()
    client, one = client_with(token), factories.subscription()
    asked = {"subscription": one.pk}
    with caplog.at_level("INFO"):
        assert client.post("/api/v1/replays", {**asked, "dry_run": True}, JSON).status_code == 200
        answer = client.post("/api/v1/replays", {**asked, "dry_run": False}, JSON)
        assert client.post("/api/v1/event-type-file?dry_run=true", {"event_types": []}, JSON).status_code == 200
        assert client.post(f"/api/v1/subscriptions/{one.pk}/pause", {"reason": "hidden"}, JSON).status_code == 200
        assert client.post(f"/api/v1/subscriptions/{one.pk}/cancel-deliveries", content_type=JSON).status_code == 200
    by = {"key": key.prefix, "method": "POST"}
    assert told(caplog) == [
        {**by, "path": "/api/v1/replays", "fields": ["dry_run", "subscription"], "made": str(answer.json()["id"])},
        {**by, "path": f"/api/v1/subscriptions/{one.pk}/pause", "fields": ["reason"]},
        {**by, "path": f"/api/v1/subscriptions/{one.pk}/cancel-deliveries", "fields": []},
    ]
    assert "hidden" not in caplog.text


def test_publishing_and_trying_are_not_told(caplog: pytest.LogCaptureFixture, management: Client) -> None:
    event_type = factories.event_type()
    with caplog.at_level("INFO"):
        assert management.post(f"/api/v1/events/{event_type.name}", {"a": 1}, JSON).status_code == 202
        assert management.post("/api/v1/scripts/test", {}, JSON).status_code == 400
    assert told(caplog) == []
