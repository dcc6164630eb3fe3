"""HTTP clients of the API, with a key of whoever calls."""

import time
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from broker_project.accounts import sessions
from subscriptions.credentials.issue import Owner
from tests.factories import api_key

Answer = Any
"""A response as the test client returns it; its own type is not public."""


def client_of(owner: Owner = None) -> Client:
    """Return a client with a key of a publisher, of a subscriber, or of management."""
    return client_with(api_key(owner)[1])


def client_with(token: str) -> Client:
    return Client(headers={"Authorization": f"Bearer {token}"})


def api_document() -> dict[str, Any]:
    """Return the OpenAPI document, also while tests are collected: then the host of tests is nobody's yet."""
    found: dict[str, Any] = Client(SERVER_NAME="localhost").get("/api/v1/openapi.json").json()
    return found


def client_of_admin() -> Client:
    """Return a browser in which a superuser has just been seen; without a password, since hashing one takes long."""
    client = Client()
    client.force_login(User.objects.create(username="admin", is_staff=True, is_superuser=True))
    session = client.session
    sessions.see(session, now=time.time())
    session.save()
    return client
