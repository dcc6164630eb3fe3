"""Many messages in one publish: all or none, in order, answered one by one."""

import pytest
from django.test import Client

from delivery.models import Message
from subscriptions.models import EventType
from tests import factories
from tests.publishing import EVENT, batch, problem, stored_bodies


@pytest.mark.behaviour("2.7", "2.6")
def test_a_batch_is_stored_in_its_order_and_answered_item_by_item(client: Client, event_type: EventType) -> None:
    factories.subscription(event_type=event_type, header_filter_string="eu")
    text = f"""{{"events": [
        {{"event": "{EVENT}", "body": {{"n" : 1.0}}, "filter_string": "eu"}},
        {{"event": "{EVENT}", "body": 2, "idempotency_key": "k"}},
        {{"event": "{EVENT}", "body_base64": "Mw==", "headers": {{"X-A": "b"}}}},
        {{"event": "{EVENT}", "body": 2, "idempotency_key": "k"}}
    ]}}"""

    answer = batch(client, text)

    messages = list(Message.objects.order_by("id"))
    ids = [message.pk for message in messages]
    assert answer.status_code == 202
    assert answer.json()["results"] == [
        {"id": ids[0], "outcome": "ROUTED", "deliveries": 1},
        {"id": ids[1], "outcome": "UNROUTED", "deliveries": 0},
        {"id": ids[2], "outcome": "UNROUTED", "deliveries": 0},
        {"id": ids[1], "outcome": "UNROUTED", "deliveries": 0, "replayed": True},
    ]
    assert stored_bodies() == [b'{"n" : 1.0}', b"2", b"3"]
    assert messages[2].headers == [["X-A", "b"]]


@pytest.mark.behaviour("2.7")
def test_one_invalid_item_refuses_its_batch_with_a_result_for_each(client: Client) -> None:
    answer = batch(
        client,
        f'{{"events": [{{"event": "{EVENT}", "body": 1}}, {{"event": "None", "body": 1}}, {{"event": "{EVENT}"}}]}}',
    )

    assert problem(answer) == (422, "invalid_items")
    assert [(item["status"], item.get("code")) for item in answer.json()["results"]] == [
        ("valid", None),
        ("invalid", "unknown_event_type"),
        ("invalid", "invalid_metadata"),
    ]
    assert stored_bodies() == []


@pytest.mark.behaviour("2.7")
def test_a_key_reused_within_a_batch_refuses_it(client: Client) -> None:
    item = '{{"event": "{}", "body": {}, "idempotency_key": "k"}}'

    answer = batch(client, f'{{"events": [{item.format(EVENT, 1)}, {item.format(EVENT, 2)}]}}')

    assert (*problem(answer), answer.json()["position"]) == (422, "idempotency_key_reused", 1)
    assert stored_bodies() == []


@pytest.mark.behaviour("2.7")
@pytest.mark.parametrize(("items", "status"), [(0, 400), (1, 202), (1000, 202), (1001, 400)])
def test_a_batch_has_1_to_1000_items(client: Client, items: int, status: int) -> None:
    text = ",".join(f'{{"event": "{EVENT}", "body": {number}}}' for number in range(items))

    assert batch(client, f'{{"events": [{text}]}}').status_code == status
    assert stored_bodies() == ([b"%d" % number for number in range(items)] if status == 202 else [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"events": {}}',
        '{"events": [1]}',
        '{"events": [{"event": "E", "body": 1,}]}',
        '{"events": [{"event": "E", "event": "E", "body": 1}]}',
        '{"events": []} x',
        '{"more": []}',
        '{"events": [{"event": "E", "body": NaN}]}',
        '{"events": [{"event": "E", "body": ' + "[" * 3000 + "]" * 3000 + "}]}",
    ],
)
def test_what_is_no_batch_is_a_400(client: Client, text: str) -> None:
    assert problem(batch(client, text)) == (400, "malformed_body")


@pytest.mark.parametrize(
    "fields",
    [
        '"event": 5, "body": 1',
        '"event": null, "body": 1',
        '"event": "A", "body": 1, "body_base64": "MQ=="',
        '"event": "A", "body_base64": "?"',
        '"event": "A", "body": 1, "headers": []',
        '"event": "A", "body": 1, "headers": {"X": 5}',
        '"event": "A", "body": 1, "headers": {"X Y": "5"}',
        '"event": "A", "body": 1, "headers": {"X": "a\\r\\nb"}',
        '"event": "A", "body": 1, "headers": {"X": "\\u0000"}',
        '"event": "A", "body": 1, "headers": {"X": "\\ud800"}',
        '"event": "A", "body": 1, "filter_string": "\\ud800"',
        '"event": "A", "body": 1, "filter_string": "\\u0000"',
        '"event": "A", "body": 1, "idempotency_key": ""',
        '"event": "A", "body": 1, "idempotency_key": "\\u00e9"',
        '"event": "A", "body": 1, "colour": "red"',
        '"event": "A", "body": 1, "content_type": "application/json; x=\\r\\nX-Injected: yes"',
        '"event": "A", "body": 1, "content_type": "application/json; x=\\ud800"',
        '"event": "A", "body": 1, "content_type": "application/json; x=' + "x" * 255 + '"',
        '"event": "A", "body": 1, "headers": {' + ",".join(f'"X-{n}": "x"' for n in range(101)) + "}",
        '"event": "A", "body": 1, "headers": {' + ",".join(f'"X-{n}": "{"x" * 8000}"' for n in range(5)) + "}",
    ],
)
def test_a_malformed_item_is_told_what_to_change(client: Client, fields: str) -> None:
    factories.event_type("A")

    answer = batch(client, f'{{"events": [{{{fields}}}]}}')

    assert problem(answer) == (422, "invalid_items")
    assert [item["code"] for item in answer.json()["results"]] == ["invalid_metadata"]
