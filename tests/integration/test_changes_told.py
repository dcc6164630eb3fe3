"""What changes through the API is told in the log."""

from typing import Any

import pytest
from django.test import Client

from tests import factories
from tests.clients import client_with

pytestmark = pytest.mark.django_db

JSON = "application/json"
ANY = {"If-Match": "*"}


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    events = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    kept = ("key", "method", "path", "fields")
    return [{name: event[name] for name in kept} for event in events if event["event"] == "api.changed"]


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
        {**by, "method": "POST", "path": "/api/v1/subscribers", "fields": ["headers", "name"]},
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
