"""SYNC: what the publisher is answered, and what is refused (contract 7.1, 7.2)."""

import json
import time
from typing import Any

import pytest
from django.test import Client
from standardwebhooks import Webhook
from structlog.testing import capture_logs

from broker_project.stack.load.receiver import Receiver, answer, hang, raw
from delivery.models import Attempt, Delivery, Message
from subscriptions.models import EventType, Status, Subscription
from tests.support import factories
from tests.support.api import (
    EVENT,
    FAILING_BODY,
    FAILING_FILTER,
    SYNC_PATH,
    client_of,
    problem_of,
    publish,
    publish_batch,
    recorded_calls,
    said_of,
)
from tests.support.behaviours import close, dripping, endless, reset

NO_NAME = "secret-host.invalid"


@pytest.mark.behaviour("7.1", "10.3")
@pytest.mark.parametrize(
    ("status", "body", "headers", "recorded_as"),
    [
        (200, b'{"price": 5}', {"Content-Type": "application/json"}, "DELIVERED"),
        (201, b"<a/>", {"Content-Type": "text/xml; charset=utf-8"}, "DELIVERED"),
        (204, b"", {}, "DELIVERED"),
        (200, b"\x1f\x8b\x08...", {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, "DELIVERED"),
        (302, b"elsewhere", {"Content-Type": "text/html"}, "FAILED"),
        (404, b'{"detail": "no"}', {"Content-Type": "application/problem+json"}, "FAILED"),
        (502, b"mine", {}, "FAILED"),
        (503, b"later", {"Retry-After": "7"}, "FAILED"),
        (504, b"mine too", {"Content-Type": "text/plain"}, "FAILED"),
        (599, b"\xff\0\xfe", {"Content-Type": "application/octet-stream"}, "FAILED"),
    ],
)
def test_the_publisher_gets_the_answer(
    client: Client,
    asked: Subscription,
    receiver: Receiver,
    status: int,
    body: bytes,
    headers: dict[str, Any],
    recorded_as: str,
) -> None:
    named: dict[str, Any] = {name.replace("-", "_"): value for name, value in headers.items()}
    receiver.on(SYNC_PATH, answer(status, body, **named))

    answered = publish(client, b'{"n": 1}')

    assert said_of(answered) == (status, body, "answered")
    passed_on = ("Content-Type", "Content-Encoding", "Retry-After")
    assert {name: answered[name] for name in passed_on if name in answered} == headers
    message = Message.objects.get()
    assert answered["Broker-Message-Id"] == str(message.pk)
    reason = "" if recorded_as == "DELIVERED" else f"answered {status}"
    assert recorded_calls() == [("ROUTED", recorded_as, reason, 1)]


@pytest.mark.behaviour("7.1")
def test_only_headers_of_the_body_are_passed_on(client: Client, asked: Subscription, receiver: Receiver) -> None:
    hostile: dict[str, Any] = {
        "Set_Cookie": "a=b",
        "Location": "http://127.0.0.1:9/",
        "Server": "x",
        "Broker_Outcome": "unrouted",
        "Content_Type": "text/plain",
        "Connection": "close",
        "Authorization": "Bearer x",
    }
    receiver.on(SYNC_PATH, answer(307, b"there", **hostile))

    answered = publish(client)

    assert said_of(answered) == (307, b"there", "answered")
    assert answered["Content-Type"] == "text/plain"
    assert {"Set-Cookie", "Location", "Server", "Connection", "Authorization"}.isdisjoint(answered.headers)
    assert len(receiver.log) == 1, "the redirect is not followed"


@pytest.mark.behaviour("7.1")
def test_the_request_of_a_call(client: Client, asked: Subscription, receiver: Receiver) -> None:
    body = b'{"n":   1}'

    answered = publish(client, body, X_Tenant="blue", traceparent="00-1-2-03", Prefer="wait=5", Cookie="a=b")

    (request,) = receiver.of(SYNC_PATH)
    delivery = Delivery.objects.get()
    assert request.body == body
    assert Webhook(asked.signing_secret).verify(body, dict(request.headers), json_parse=False) is None
    expected = {
        "webhook-id": f"dlv_{delivery.pk}",
        "webhook-attempt": "1",
        "broker-event-type": EVENT,
        "broker-message-id": answered["Broker-Message-Id"],
        "x-tenant": "blue",
        "traceparent": "00-1-2-03",
        "content-type": "application/json",
    }
    assert expected.items() <= request.headers.items()
    assert {"webhook-sequence", "prefer", "cookie", "authorization"}.isdisjoint(request.headers)


@pytest.mark.behaviour("7.1")
@pytest.mark.parametrize("other", ["", "$$->'Body'->>'n' = '2'"])
def test_a_call_without_subscription_gets_an_empty_answer(client: Client, event_type: EventType, other: str) -> None:
    if other:
        factories.subscription(event_type=event_type, filter=other)
    factories.subscription(event_type=event_type, status=Status.INACTIVE)

    answered = publish(client, b'{"n": 1}')

    assert said_of(answered) == (200, b"", "unrouted")
    assert "Content-Type" not in answered
    message = Message.objects.get()
    assert (message.outcome, message.deliveries_count) == ("UNROUTED", 0)
    assert answered["Broker-Message-Id"] == str(message.pk)
    assert not Delivery.objects.exists()


@pytest.mark.behaviour("7.1")
def test_the_oldest_qualifying_subscription_is_asked(client: Client, event_type: EventType, receiver: Receiver) -> None:
    third, second, first = (factories.subscriber() for _ in range(3))
    made = [
        factories.subscription(one, event_type, receiver.url(f"/{number}"), position=9 - number, filter=wanted)
        for number, (one, wanted) in enumerate([(first, "$$->'Body' ? 'n'"), (second, ""), (third, "")])
    ]
    made += [factories.subscription(event_type=event_type, filter="$$->'Body' ? 'm'")]

    with capture_logs() as logs:
        assert said_of(publish(client, b'{"n": 1}')) == (200, b"", "answered")

    assert [request.path for request in receiver.log] == ["/0"]
    (error,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (error["event"], error["asked"]) == ("sync.several_qualify", made[0].pk)
    assert error["subscription_ids"] == [one.pk for one in made[:3]]
    assert str(error["message_id"]) == str(Message.objects.get().pk)


@pytest.mark.behaviour("3.6", "7.1")
@pytest.mark.parametrize("fails_first", [True, False])
def test_a_failing_filter_fails_the_call_only_if_it_comes_first(
    client: Client, event_type: EventType, receiver: Receiver, fails_first: bool
) -> None:
    texts, endpoint = ([FAILING_FILTER, ""] if fails_first else ["", FAILING_FILTER]), receiver.url(SYNC_PATH)
    first, _ = (factories.subscription(event_type=event_type, endpoint=endpoint, filter=text) for text in texts)

    answered = publish(client, FAILING_BODY)

    if not fails_first:
        assert said_of(answered) == (200, b"", "answered")
        return
    assert problem_of(answered) == (500, "filter_failed")
    assert answered["Broker-Outcome"] == "filter_failed"
    assert answered.json()["detail"] == f"Subscription {first.pk} may be the one to ask, but its filter failed."
    ((outcome, status, reason, attempts),) = recorded_calls()
    assert (outcome, status, attempts, reason[:13]) == ("ROUTED", "FAILED", 0, "filter failed")
    assert receiver.log == []
    assert not Attempt.objects.exists()


@pytest.mark.behaviour("7.2", "10.3")
@pytest.mark.parametrize("behaviour", [hang, dripping(0.1)], ids=["silent", "dripping"])
def test_answer_timeout(client: Client, asked: Subscription, receiver: Receiver, settings: Any, behaviour: Any) -> None:
    default, settings.SYNC_SECONDS = settings.SYNC_SECONDS, 1
    receiver.on(SYNC_PATH, behaviour)
    began = time.monotonic()

    answered = publish(client)

    assert 0.9 < time.monotonic() - began < default, "its own deadline counts"
    assert (problem_of(answered), answered["Broker-Outcome"]) == ((504, "endpoint_timed_out"), "endpoint_timed_out")
    assert answered["Broker-Message-Id"] == str(Message.objects.get().pk)
    delivery, attempt = Delivery.objects.get(), Attempt.objects.get()
    assert (delivery.status, delivery.uncertain, attempt.status_code) == ("FAILED", True, None)
    assert attempt.error.startswith("no answer: Operation timed out")
    assert 900 < attempt.duration_ms < default * 1000


@pytest.mark.behaviour("7.2")
@pytest.mark.parametrize(
    ("behaviour", "is_uncertain"),
    [
        pytest.param(close, True, id="closes"),
        pytest.param(reset, True, id="resets"),
        pytest.param(raw(b"not HTTP at all"), True, id="nonsense"),
        pytest.param(raw(b"HTTP/1.1 2000 x\r\n\r\n"), True, id="status of four digits"),
        *(
            pytest.param(raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nshort" % size), is_uncertain, id=f"{size}")
            for size, is_uncertain in ((9, True), (2**63 - 1, True), (2**63, False))
        ),
        pytest.param(answer(700), False, id="status 700"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"), True, id="large head"),
    ],
)
def test_a_broken_answer_is_a_bad_gateway(
    client: Client, asked: Subscription, receiver: Receiver, behaviour: Any, is_uncertain: bool
) -> None:
    receiver.on(SYNC_PATH, behaviour)

    answered = publish(client)

    assert (problem_of(answered), answered["Broker-Outcome"]) == ((502, "endpoint_unreachable"), "endpoint_unreachable")
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.uncertain, delivery.attempts) == ("FAILED", is_uncertain, 1)
    assert Attempt.objects.count() == 1


@pytest.mark.behaviour("7.2")
@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [
        ("http://127.0.0.1:9/", "no connection"),
        (f"http://{NO_NAME}/", "the name of its host was not resolved"),
        ("https://127.0.0.1:{port}/", "timed out"),
    ],
)
def test_an_unreachable_endpoint_is_a_bad_gateway(
    client: Client, event_type: EventType, receiver: Receiver, endpoint: str, kind: str
) -> None:
    port = receiver.url().rpartition(":")[2].strip("/")
    factories.subscription(event_type=event_type, endpoint=endpoint.format(port=port))

    answered = publish(client)

    assert problem_of(answered) == (502, "endpoint_unreachable")
    assert answered.json()["detail"] == f"The endpoint gave no answer: {kind}."
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.uncertain, delivery.attempts) == ("FAILED", False, 1)
    address = f"/api/v1/messages/{delivery.message_id}"
    published, kept = (one.get(address).json()["deliveries"][0]["reason"] for one in (client, client_of()))
    assert (published, kept) == (f"no answer: {kind}", delivery.reason), "where it was is not for publishers"


@pytest.mark.behaviour("7.1")
@pytest.mark.parametrize("more", [0, 1])
def test_large_answers_pass(client: Client, asked: Subscription, receiver: Receiver, settings: Any, more: int) -> None:
    body = b"x" * (settings.MAX_BODY_BYTES + more)
    receiver.on(SYNC_PATH, answer(200, body))

    answered = publish(client)

    if more:
        assert problem_of(answered) == (502, "answer_too_large")
        assert recorded_calls()[0][1:] == ("FAILED", "The endpoint answered 200 with more than 1,048,576 bytes.", 1)
    else:
        assert said_of(answered) == (200, body, "answered")


@pytest.mark.behaviour("7.1")
def test_an_answer_without_end_is_too_large(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(SYNC_PATH, endless)
    assert problem_of(publish(client)) == (502, "answer_too_large")


@pytest.mark.behaviour("2.6", "2.14", "6.7")
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
def test_unsupported_headers_are_refused(
    client: Client, asked: Subscription, receiver: Receiver, header: dict[str, Any]
) -> None:
    answered = publish(client, **header)
    assert problem_of(answered) == (400, "invalid_metadata")
    ((name, _),) = header.items()
    assert name.replace("_", "-") in answered.json()["detail"]
    assert (receiver.log, Message.objects.count()) == ([], 0)


@pytest.mark.behaviour("2.7")
def test_a_batch_takes_no_call(client: Client, asked: Subscription, receiver: Receiver) -> None:
    answered = publish_batch(client, json.dumps({"events": [{"event": EVENT, "body": {}}]}))
    assert problem_of(answered) == (422, "invalid_items")
    (result,) = answered.json()["results"]
    assert (result["code"], "publish it by itself" in result["detail"]) == ("invalid_metadata", True)
    assert (receiver.log, Message.objects.count()) == ([], 0)


@pytest.mark.behaviour("2.5")
def test_a_call_is_checked_like_any_publish(client: Client, asked: Subscription, receiver: Receiver) -> None:
    EventType.objects.update(schema={"required": ["n"]})
    assert problem_of(publish(client, b"{")) == (400, "malformed_payload")
    assert problem_of(publish(client, b"{}")) == (422, "schema_violated")
    assert problem_of(publish(client, b"x", "text/plain")) == (415, "unsuitable_content_type")
    limited = factories.publisher(event_types=[factories.event_type()])
    assert problem_of(publish(client_of(limited), b'{"n": 1}')) == (403, "event_type_not_allowed")
    assert (receiver.log, Message.objects.count()) == ([], 0)
    assert publish(client, b'{"n": 1}').status_code == 200
