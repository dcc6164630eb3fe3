"""Payloads and the schemas of their event types, from the publisher's side."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delivery.models import Message
from subscriptions import edit
from subscriptions.models import EventType
from tests import factories
from tests.clients import Answer, client_of

pytestmark = pytest.mark.django_db

NAME = "Order.Paid"
SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"minLength": 1}, "n": {"maximum": 10}}}


@pytest.fixture
def order_paid() -> EventType:
    return factories.event_type(NAME, schema=SCHEMA)


@pytest.fixture
def shop() -> Client:
    return client_of(factories.publisher("shop"))


def published(client: Client, body: str | bytes) -> Answer:
    return client.post(f"/api/v1/events/{NAME}", body, content_type="application/json")


@pytest.mark.behaviour("2.5")
def test_a_payload_that_satisfies_the_schema_is_stored_to_the_letter(order_paid: EventType, shop: Client) -> None:
    body = b' {"n": 1.0e1, "id": "twice", "id" : "o-1"} '
    assert published(shop, body).status_code == 202
    assert bytes(Message.objects.get().body) == body


@pytest.mark.behaviour("2.5")
def test_a_payload_that_breaks_the_schema_is_refused_with_all_that_is_wrong(
    order_paid: EventType, shop: Client
) -> None:
    answer = published(shop, '{"n": 11}')
    assert (answer.status_code, answer.json()) == (
        422,
        {
            "type": "urn:broker:schema_violated",
            "code": "schema_violated",
            "title": "Schema violated",
            "status": 422,
            "detail": "The body does not satisfy the schema of Order.Paid; see errors.",
            "errors": [
                {"pointer": "#/n", "code": "schema", "detail": "this value is greater than the maximum of 10"},
                {"pointer": "#", "code": "schema", "detail": "'id' is missing"},
            ],
        },
    )
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    "body", ['{"id": "\\ud800"}', '{"id": "o", "n": 1e99999999999999999999}', "[" * 900 + "]" * 900]
)
@pytest.mark.behaviour("2.5")
def test_what_cannot_be_judged_is_refused(order_paid: EventType, shop: Client, body: str) -> None:
    assert (published(shop, body).status_code, Message.objects.count()) == (422, 0)


@pytest.mark.behaviour("2.5", "2.7")
def test_one_broken_item_refuses_its_batch_and_says_which(order_paid: EventType, shop: Client) -> None:
    many = {f"m{n}": 1 for n in range(20)}
    edit.change(
        EventType.objects.filter(pk=order_paid.pk),
        changes={"schema": {"additionalProperties": {"type": "string"}}},
    )
    events = [{"event": NAME, "body": {"id": "fine"}}, {"event": NAME, "body": many}]
    answer = shop.post("/api/v1/events", {"events": events}, content_type="application/json")
    fine, broken = answer.json()["results"]
    assert (answer.status_code, answer.json()["code"], fine) == (422, "invalid_items", {"status": "valid"})
    assert (broken["status"], broken["code"], len(broken["errors"])) == ("invalid", "schema_violated", 10)
    assert broken["errors"][0] == {"pointer": "#/m0", "code": "schema", "detail": 'this value is not of type "string"'}
    assert not Message.objects.exists()


@pytest.mark.behaviour("1.1", "3.7")
def test_a_changed_schema_counts_from_the_next_publish_on(order_paid: EventType, shop: Client) -> None:
    address = f"/api/v1/event-types/{NAME}"
    management = client_of()
    statuses = []
    for schema in (SCHEMA, {"type": "array"}, None, SCHEMA):
        assert management.patch(address, {"schema": schema}, content_type="application/json").status_code == 200
        statuses.append([published(shop, body).status_code for body in ('{"id": "o-1"}', "[]", "5")])
    assert statuses == [[202, 422, 422], [422, 202, 422], [202, 202, 202], [202, 422, 422]]


def test_a_schema_that_is_already_known_costs_no_statement(order_paid: EventType, shop: Client) -> None:
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as captured:
            assert published(shop, '{"id": "o-1"}').status_code == 202
        counts.append(len(captured))
    EventType.objects.update(schema=None)
    with CaptureQueriesContext(connection) as captured:
        assert published(shop, '{"id": "o-1"}').status_code == 202
    assert counts[1] == len(captured)


def test_a_schema_that_other_hands_have_broken_is_said(order_paid: EventType, shop: Client) -> None:
    EventType.objects.update(schema={"type": "strnig"})
    answer = published(shop, "{}")
    assert (answer.status_code, answer.json()["code"]) == (422, "schema_violated")
    assert answer.json()["errors"][0]["detail"].startswith("The schema itself cannot be used. At /type: ")
