"""What publishers send, one by one and in batches, and what is stored."""

import time
from typing import Any, LiteralString

import psycopg
import pytest
from django.test import Client
from structlog.testing import capture_logs

from broker_project.stack.load.wait import PATIENCE_SECONDS
from delivery.dispatch import notify
from delivery.models import Delivery, IdempotencyKey, Message
from subscriptions.models import EventKind, EventType, Status, Subscriber
from tests.support import factories
from tests.support.api import EVENT, client_of, problem_of, publish, publish_batch, stored_bodies
from tests.support.database import execute


@pytest.mark.behaviour("2.1")
def test_a_publish_stores_a_message_and_its_deliveries(client: Client, event_type: EventType) -> None:
    wanted = [factories.subscription(event_type=event_type) for _ in range(3)]
    factories.subscription()  # of another event type

    answer = publish(client, b'{"n": 1}')

    message = Message.objects.get()
    assert answer.status_code == 202
    assert answer.json() == {"id": message.pk, "outcome": "ROUTED", "deliveries": 3}
    assert answer["Location"] == f"/api/v1/messages/{message.pk}"
    deliveries = Delivery.objects.oldest_first()
    assert [(row.subscription_id, row.message_id, row.status) for row in deliveries] == [
        (subscription.pk, message.pk, "PENDING") for subscription in wanted
    ]


@pytest.mark.behaviour("2.1")
@pytest.mark.django_db(transaction=True)
def test_failed_publish_stores_nothing(client: Client, event_type: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    factories.subscription(event_type=event_type)
    woken: list[object] = []
    monkeypatch.setattr(notify, "wake", lambda *call: woken.append(call))
    execute("ALTER TABLE delivery_idempotencykey ADD CONSTRAINT no CHECK (key <> 'fails')")
    try:
        answer = publish(client, Idempotency_Key="fails")
    finally:
        execute("ALTER TABLE delivery_idempotencykey DROP CONSTRAINT no")

    assert answer.status_code == 409
    assert (Message.objects.count(), Delivery.objects.count(), IdempotencyKey.objects.count()) == (0, 0, 0)
    assert woken == []


@pytest.mark.behaviour("2.2")
@pytest.mark.parametrize(
    ("header_filter", "sent", "qualifies"),
    [
        ("", None, True),
        ("", "proj1008", True),
        ("proj1008", "proj1008", True),
        ("proj1008", None, False),
        ("proj1008", "PROJ1008", False),
        ("proj1008", "proj10081", False),
        ("a b", "a  b", False),
        ("%", "proj1008", False),
    ],
)
def test_header_filters_are_literal(
    client: Client, event_type: EventType, header_filter: str, sent: str | None, qualifies: bool
) -> None:
    factories.subscription(event_type=event_type, header_filter_string=header_filter)

    answer = publish(client, b'{"FILTER_STRING": "proj1008"}', **({"Filter_String": sent} if sent else {}))

    assert answer.json()["deliveries"] == int(qualifies)


@pytest.mark.behaviour("2.2", "1.7")
@pytest.mark.parametrize(
    ("subscription_status", "subscriber_status", "qualifies"),
    [
        (Status.ACTIVE, Status.ACTIVE, True),
        (Status.INACTIVE, Status.ACTIVE, False),
        (Status.ACTIVE, Status.INACTIVE, False),
    ],
)
def test_only_active_subscriptions_qualify(
    client: Client, event_type: EventType, subscription_status: Status, subscriber_status: Status, qualifies: bool
) -> None:
    subscriber = factories.subscriber(status=subscriber_status)
    subscription = factories.subscription(subscriber, event_type, status=subscription_status)

    assert publish(client).json()["deliveries"] == int(qualifies)

    subscription.status = Status.ACTIVE
    subscription.save()
    Subscriber.objects.update(status=Status.ACTIVE)
    assert Delivery.objects.count() == int(qualifies)  # nothing comes later
    assert publish(client).json()["deliveries"] == 1  # a change counts from the next publish on


@pytest.mark.behaviour("2.4")
def test_an_unrouted_message_is_stored_and_listed(client: Client) -> None:
    answer = publish(client)

    assert (answer.status_code, answer.json()["outcome"], answer.json()["deliveries"]) == (202, "UNROUTED", 0)
    listed = client.get("/api/v1/messages?outcome=UNROUTED").json()["items"]
    assert [(item["id"], item["outcome"]) for item in listed] == [(answer.json()["id"], "UNROUTED")]
    assert client.get("/api/v1/messages?outcome=ROUTED").json()["items"] == []


@pytest.mark.behaviour("11.2")
@pytest.mark.django_db(transaction=True)
def test_an_unrouted_message_enters_no_line_and_is_logged(client: Client, event_type: EventType) -> None:
    wanted = factories.subscription(event_type=event_type, header_filter_string="eu")
    with capture_logs() as logged:
        routed = publish(client, FILTER_STRING="eu").json()
        unrouted = publish(client, FILTER_STRING="us").json()
    assert [(one["event"], one["message_id"]) for one in logged] == [("message.unrouted", unrouted["id"])]
    assert [*Delivery.objects.values_list("message_id", "subscription_id")] == [(routed["id"], wanted.pk)]


BODIES = [
    b'{"b": 1, "a": 2}',
    b' {\n"a"\t:1.000 ,"a":2}\r\n',
    b"[12345678901234567890123456789, 1e400, -0.0]",
    b"[" + b"9" * 5000 + b"]",
    b'"\\u0000 \\ud800 \xc3\xa9"',
    b"null",
    b"[" * 900 + b"]" * 900,
]


@pytest.mark.behaviour("2.5")
@pytest.mark.parametrize("body", BODIES)
def test_a_json_body_is_stored_byte_for_byte(client: Client, body: bytes) -> None:
    assert publish(client, body).status_code == 202
    assert publish_batch(client, f'{{"events": [ {{"event":"{EVENT}","body": {body.decode()} }} ]}}').status_code == 202

    assert stored_bodies() == [body, body.strip()]


@pytest.mark.behaviour("2.5")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b'{"a": 1',
        b"{} x",
        b"{'a': 1}",
        b"[NaN]",
        b"[-Infinity]",
        b"[1,]",
        b'"\x01"',
        b'{"a": "\xff"}',
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        b"[" * 2000 + b"]" * 2000,
    ],
)
def test_a_json_event_type_refuses_other_bodies(client: Client, body: bytes) -> None:
    assert problem_of(publish(client, body)) == (400, "malformed_payload")
    assert stored_bodies() == []


@pytest.mark.behaviour("2.5")
@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"<a/>"])
def test_another_content_type_takes_any_bytes(client: Client, body: bytes) -> None:
    factories.event_type("Raw", content_type="application/xml")

    assert publish(client, body, "application/xml; charset=latin1", "Raw").status_code == 202
    assert stored_bodies() == [body]
    assert Message.objects.get().content_type == "application/xml; charset=latin1"


@pytest.mark.behaviour("2.11")
def test_a_content_type_that_is_left_out_is_that_of_the_event_type(client: Client) -> None:
    wanted = "$$->'Header'->'Content-Type'->>0 = 'application/json'"
    factories.subscription(event_type=EventType.objects.get(name=EVENT), filter=wanted)
    assert publish(client, content_type="").json()["deliveries"] == 1
    assert "Content-Type" not in dict(Message.objects.get().headers)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        ({"event": "Unknown"}, 404, "unknown_event_type"),
        ({"event": "..%2Fup"}, 404, "not_found"),
        ({"event": "%00"}, 404, "unknown_event_type"),
        ({"event": "%F0%9F%98%80"}, 404, "unknown_event_type"),
        ({"event": "E" * 300}, 404, "unknown_event_type"),
        ({"content_type": "text/plain"}, 415, "unsuitable_content_type"),
        ({"Content_Encoding": "gzip"}, 415, "encoded_body"),
        ({"body": b'"' + b"x" * 1024 * 1024 + b'"'}, 413, "body_too_large"),
        ({"Filter_String": ""}, 400, "invalid_metadata"),
        ({"Idempotency_Key": "k" * 256}, 400, "invalid_metadata"),
        ({"Idempotency_Key": "a b"}, 400, "invalid_metadata"),
        ({"CallbackURL": "https://example.com"}, 400, "invalid_metadata"),
        ({"Broker_Durability": "for ever"}, 400, "invalid_metadata"),
    ],
)
def test_a_refused_publish_says_why(client: Client, sent: dict[str, Any], status: int, code: str) -> None:
    assert problem_of(publish(client, **sent)) == (status, code)
    assert stored_bodies() == []


@pytest.mark.behaviour("1.2")
def test_a_publisher_limited_to_event_types_publishes_those_only(event_type: EventType) -> None:
    limited = client_of(factories.publisher(event_types=[event_type]))
    factories.event_type("Other")

    assert publish(limited).status_code == 202
    assert problem_of(publish(limited, event="Other")) == (403, "event_type_not_allowed")


@pytest.mark.behaviour("1.2")
def test_publishers_read_their_own_messages_and_subscribers_do_not_publish(client: Client) -> None:
    publish(client)
    foreign = publish(client_of(factories.publisher())).json()["id"]
    subscriber = client_of(factories.subscriber())

    assert len(client.get("/api/v1/messages").json()["items"]) == 1
    assert problem_of(client.get(f"/api/v1/messages/{foreign}")) == (404, "not_found")
    assert problem_of(publish(subscriber)) == (403, "forbidden")
    assert problem_of(publish(Client())) == (401, "unauthenticated")


@pytest.mark.behaviour("2.11")
def test_headers_of_the_publishers_connection_are_not_stored(client: Client) -> None:
    publish(client, X_Team="blue", Cookie="session=1", traceparent="00-1-2-03", ce_id="7", Te="trailers")

    names = {name.lower() for name, _ in Message.objects.get().headers}
    assert {"x-team", "traceparent", "ce-id"} <= names
    assert not names & {"authorization", "cookie", "host", "content-length", "te", "connection"}


@pytest.mark.behaviour("2.7")
@pytest.mark.parametrize(("events", "limit", "status"), [(1, 4, 202), (1, 3, 413), (2, 8, 202), (2, 7, 413)])
def test_a_publish_of_too_many_deliveries_is_refused_before_anything_is_stored(
    client: Client, event_type: EventType, settings: Any, events: int, limit: int, status: int
) -> None:
    settings.MAX_DELIVERIES = limit
    for _ in range(4):
        factories.subscription(event_type=event_type)
    item = f'{{"event": "{EVENT}", "body": 1}}'

    answer = publish(client) if events == 1 else publish_batch(client, f'{{"events": [{item}, {item}]}}')

    assert answer.status_code == status
    assert Delivery.objects.count() == (events * 4 if status == 202 else 0)
    if status == 413:
        assert problem_of(answer) == (413, "too_many_deliveries")
        assert f"would become {events * 4} deliveries, and one request may become {limit}:" in answer.json()["detail"]
        assert not Message.objects.exists()


CONFIGURATION: dict[str, LiteralString] = {
    table: f"SELECT FROM {table} FOR UPDATE"
    for table in (
        "subscriptions_subscription",
        "subscriptions_subscriber",
        "subscriptions_eventtype",
        "subscriptions_publisher",
        "subscriptions_apikey",
        "delivery_line",
    )
}


@pytest.mark.behaviour("11.5")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["TOPIC", "QUEUE"])
@pytest.mark.parametrize("locked", CONFIGURATION)
def test_a_publish_waits_for_no_row_that_somebody_has_locked(
    client: Client, elsewhere: psycopg.Connection[Any], kind: EventKind, locked: str
) -> None:
    event_type = factories.event_type("Shop.Locked", kind)
    factories.subscription(event_type=event_type)
    assert publish(client, event=event_type.name).status_code == 202  # senders have their lines
    assert elsewhere.execute(CONFIGURATION[locked]).fetchall()
    began = time.monotonic()
    answers = [publish(client, event=event_type.name), publish(client, event=event_type.name, Idempotency_Key="k")]
    assert ([one.status_code for one in answers], Delivery.objects.count()) == ([202, 202], 3)
    assert time.monotonic() - began < PATIENCE_SECONDS


@pytest.mark.behaviour("2.7", "2.6")
def test_a_batch_is_stored_in_its_order_and_answered_item_by_item(client: Client, event_type: EventType) -> None:
    factories.subscription(event_type=event_type, header_filter_string="eu")
    text = f"""{{"events": [
        {{"event": "{EVENT}", "body": {{"n" : 1.0}}, "filter_string": "eu"}},
        {{"event": "{EVENT}", "body": 2, "idempotency_key": "k"}},
        {{"event": "{EVENT}", "body_base64": "Mw==", "headers": {{"X-A": "b"}}}},
        {{"event": "{EVENT}", "body": 2, "idempotency_key": "k"}}
    ]}}"""

    answer = publish_batch(client, text)

    messages = list(Message.objects.order_by("id"))
    ids = [message.pk for message in messages]
    assert answer.status_code == 202
    unrouted = {"outcome": "UNROUTED", "deliveries": 0}
    assert answer.json()["results"] == [
        {"id": ids[0], "outcome": "ROUTED", "deliveries": 1},
        *({"id": one, **unrouted} for one in ids[1:3]),
        {"id": ids[1], **unrouted, "replayed": True},
    ]
    assert stored_bodies() == [b'{"n" : 1.0}', b"2", b"3"]
    assert messages[2].headers == [["X-A", "b"]]


@pytest.mark.behaviour("2.7")
def test_one_invalid_item_refuses_its_batch_with_a_result_for_each(client: Client) -> None:
    answer = publish_batch(
        client,
        f'{{"events": [{{"event": "{EVENT}", "body": 1}}, {{"event": "None", "body": 1}}, {{"event": "{EVENT}"}}]}}',
    )

    assert problem_of(answer) == (422, "invalid_items")
    told = [(item["status"], item.get("code")) for item in answer.json()["results"]]
    assert told == [("valid", None), ("invalid", "unknown_event_type"), ("invalid", "invalid_metadata")]
    assert stored_bodies() == []


@pytest.mark.behaviour("2.7")
def test_a_key_reused_within_a_batch_refuses_it(client: Client) -> None:
    item = '{{"event": "{}", "body": {}, "idempotency_key": "k"}}'

    answer = publish_batch(client, f'{{"events": [{item.format(EVENT, 1)}, {item.format(EVENT, 2)}]}}')

    assert (*problem_of(answer), answer.json()["position"]) == (422, "idempotency_key_reused", 1)
    assert stored_bodies() == []


@pytest.mark.behaviour("2.7")
@pytest.mark.parametrize(("items", "status"), [(0, 400), (1, 202), (1000, 202), (1001, 400)])
def test_a_batch_has_1_to_1000_items(client: Client, items: int, status: int) -> None:
    text = ",".join(f'{{"event": "{EVENT}", "body": {number}}}' for number in range(items))

    assert publish_batch(client, f'{{"events": [{text}]}}').status_code == status
    assert stored_bodies() == ([b"%d" % number for number in range(items)] if status == 202 else [])


@pytest.mark.behaviour("2.2", "2.7")
@pytest.mark.parametrize(
    ("header", "named", "field"),
    [
        ("FILTER_STRING", "FILTER_STRING", "filter_string"),
        ("Filter-String", "FILTER_STRING", "filter_string"),
        ("Idempotency-Key", "Idempotency-Key", "idempotency_key"),
        ("CallbackURL", "CallbackURL", "callback_url"),
        ("Broker-Destination", "Broker-Destination", "destination"),
        ("Broker-TTL", "Broker-TTL", "ttl"),
        ("Broker-Not-Before", "Broker-Not-Before", "not_before"),
    ],
)
def test_a_header_about_one_event_is_refused_on_a_batch(client: Client, header: str, named: str, field: str) -> None:
    batch = f'{{"events": [{{"event": "{EVENT}", "body": 1}}]}}'

    answer = client.post("/api/v1/events", batch, headers={header: "1"})

    assert problem_of(answer) == (400, "invalid_metadata")
    assert answer.json()["detail"] == f"In a batch each event has its own {named}: give it in the field '{field}'."
    assert stored_bodies() == []


@pytest.mark.behaviour("2.2", "2.7")
@pytest.mark.parametrize(
    ("header", "field"),
    [
        ("FILTER_STRING", "filter_string"),
        ("filter-string", "filter_string"),
        ("Broker-Ttl", "ttl"),
        ("content-type", "content_type"),
    ],
)
def test_a_header_that_is_a_field_is_refused_in_an_item(client: Client, header: str, field: str) -> None:
    batch = f'{{"events": [{{"event": "{EVENT}", "body": 1, "headers": {{"{header}": "90"}}}}]}}'

    answer = client.post("/api/v1/events", batch)

    assert answer.status_code == 422
    assert f"An event of a batch has no header {header}: give it in the field '{field}'." in answer.content.decode()
    assert stored_bodies() == []


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
def test_a_malformed_batch_is_refused(client: Client, text: str) -> None:
    assert problem_of(publish_batch(client, text)) == (400, "malformed_body")


def test_a_long_name_that_stands_twice_is_shortened(client: Client) -> None:
    name = "\u00e9" * 100_000
    refused = publish_batch(client, f'{{"events": [{{"{name}": 1, "{name}": 2}}]}}')
    assert problem_of(refused) == (400, "malformed_body")
    assert "stands twice" in refused.json()["detail"]
    assert len(refused.content) < 1000


@pytest.mark.parametrize(
    "fields",
    [
        '"event": "A", "body": 1, "body_base64": "MQ=="',
        '"event": "A", "body_base64": "?"',
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
def test_a_malformed_item_is_refused_with_the_reason(client: Client, fields: str) -> None:
    factories.event_type("A")

    answer = publish_batch(client, f'{{"events": [{{{fields}}}]}}')

    assert problem_of(answer) == (422, "invalid_items")
    assert [item["code"] for item in answer.json()["results"]] == ["invalid_metadata"]
