"""SYNC: what goes with a call, and what is checked of it (behaviour 2)."""

import json
from typing import Any

import pytest
from django.test import Client

from delivery.models import Message
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.clients import client_of
from tests.publishing import EVENT, batch, problem, publish
from tests.receiver import Receiver

pytestmark = pytest.mark.usefixtures("calls")


@pytest.fixture(autouse=True)
def event_type(calls: None) -> EventType:
    return factories.event_type(EVENT, EventKind.SYNC)


@pytest.mark.behaviour("2.6")
@pytest.mark.behaviour("2.14")
@pytest.mark.behaviour("6.7")
@pytest.mark.parametrize(
    "header",
    [
        {"Idempotency_Key": "order-1"},
        {"Broker_Destination": "shop"},
        {"CallbackURL": "http://127.0.0.1:9/"},
        {"Broker_Durability": "volatile"},
        {"Broker_Not_Before": "2001-01-01T00:00:00Z"},
        {"Broker_TTL": "90"},
    ],
)
def test_what_has_no_meaning_with_a_call_is_refused(
    client: Client, asked: Subscription, receiver: Receiver, header: dict[str, Any]
) -> None:
    answered = publish(client, **header)
    assert problem(answered) == (400, "invalid_metadata")
    ((name, _),) = header.items()
    assert name.replace("_", "-") in answered.json()["detail"]
    assert (receiver.log, Message.objects.count()) == ([], 0)


@pytest.mark.behaviour("2.7")
def test_a_batch_takes_no_call(client: Client, asked: Subscription, receiver: Receiver) -> None:
    answered = batch(client, json.dumps({"events": [{"event": EVENT, "body": {}}]}))
    assert problem(answered) == (422, "invalid_items")
    (result,) = answered.json()["results"]
    assert (result["code"], "publish it by itself" in result["detail"]) == ("invalid_metadata", True)
    assert (receiver.log, Message.objects.count()) == ([], 0)


@pytest.mark.behaviour("2.5")
def test_a_call_is_checked_like_any_publish(client: Client, asked: Subscription, receiver: Receiver) -> None:
    EventType.objects.update(schema={"required": ["n"]})
    assert problem(publish(client, b"{")) == (400, "malformed_payload")
    assert problem(publish(client, b"{}")) == (422, "schema_violated")
    assert problem(publish(client, b"x", "text/plain")) == (415, "unsuitable_content_type")
    limited = factories.publisher(event_types=[factories.event_type()])
    assert problem(publish(client_of(limited), b'{"n": 1}')) == (403, "event_type_not_allowed")
    assert (receiver.log, Message.objects.count()) == ([], 0)
    assert publish(client, b'{"n": 1}').status_code == 200
