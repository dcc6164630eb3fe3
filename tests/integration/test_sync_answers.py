"""SYNC: the endpoint's answer is the publisher's (behaviour 7.1)."""

from typing import Any

import pytest
from django.test import Client
from standardwebhooks import Webhook
from structlog.testing import capture_logs

from delivery.models import Attempt, Delivery, Message
from subscriptions.models import EventKind, EventType, Status, Subscription
from tests import factories
from tests.asking import FAILING, FAILS, PATH, recorded, said_of
from tests.publishing import EVENT, problem, publish
from tests.receiver import Receiver, answer

pytestmark = pytest.mark.usefixtures("calls")


@pytest.fixture(autouse=True)
def event_type(calls: None) -> EventType:
    return factories.event_type(EVENT, EventKind.SYNC)


@pytest.mark.behaviour("7.1")
@pytest.mark.behaviour("10.3")
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
def test_the_publisher_gets_the_endpoints_own_answer(
    client: Client,
    asked: Subscription,
    receiver: Receiver,
    status: int,
    body: bytes,
    headers: dict[str, Any],
    recorded_as: str,
) -> None:
    named: dict[str, Any] = {name.replace("-", "_"): value for name, value in headers.items()}
    receiver.on(PATH, answer(status, body, **named))

    answered = publish(client, b'{"n": 1}')

    assert said_of(answered) == (status, body, "answered")
    passed_on = ("Content-Type", "Content-Encoding", "Retry-After")
    assert {name: answered[name] for name in passed_on if name in answered} == headers
    message = Message.objects.get()
    assert answered["Broker-Message-Id"] == str(message.pk)
    reason = "" if recorded_as == "DELIVERED" else f"answered {status}"
    assert recorded() == [("ROUTED", recorded_as, reason, 1)]


@pytest.mark.behaviour("7.1")
def test_only_what_belongs_to_the_body_is_passed_on(client: Client, asked: Subscription, receiver: Receiver) -> None:
    hostile: dict[str, Any] = {
        "Set_Cookie": "a=b",
        "Location": "http://127.0.0.1:9/",
        "Server": "x",
        "Broker_Outcome": "unrouted",
        "Content_Type": "text/plain",
        "Connection": "close",
        "Authorization": "Bearer x",
    }
    receiver.on(PATH, answer(307, b"there", **hostile))

    answered = publish(client)

    assert said_of(answered) == (307, b"there", "answered")
    assert answered["Content-Type"] == "text/plain"
    assert {"Set-Cookie", "Location", "Server", "Connection", "Authorization"}.isdisjoint(answered.headers)
    assert len(receiver.log) == 1, "the redirect is not followed"


@pytest.mark.behaviour("7.1")
def test_what_the_endpoint_gets(client: Client, asked: Subscription, receiver: Receiver) -> None:
    body = b'{"n":   1}'

    answered = publish(client, body, X_Tenant="blue", traceparent="00-1-2-03", Prefer="wait=5", Cookie="a=b")

    (request,) = receiver.of(PATH)
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
def test_nobody_there_is_an_empty_answer(client: Client, event_type: EventType, other: str) -> None:
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
def test_of_several_the_one_created_first_is_asked_and_an_error_names_all(
    client: Client, event_type: EventType, receiver: Receiver
) -> None:
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


@pytest.mark.behaviour("7.1")
@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize("fails_first", [True, False])
def test_a_filter_that_fails_is_said_only_where_it_might_have_been_the_one(
    client: Client, event_type: EventType, receiver: Receiver, fails_first: bool
) -> None:
    texts, endpoint = ([FAILING, ""] if fails_first else ["", FAILING]), receiver.url(PATH)
    first, _ = (factories.subscription(event_type=event_type, endpoint=endpoint, filter=text) for text in texts)

    answered = publish(client, FAILS)

    if not fails_first:
        assert said_of(answered) == (200, b"", "answered")
        return
    assert problem(answered) == (500, "filter_failed")
    assert answered["Broker-Outcome"] == "filter_failed"
    assert answered.json()["detail"] == f"Subscription {first.pk} may be the one to ask, but its filter failed."
    ((outcome, status, reason, attempts),) = recorded()
    assert (outcome, status, attempts, reason[:13]) == ("ROUTED", "FAILED", 0, "filter failed")
    assert receiver.log == []
    assert not Attempt.objects.exists()
