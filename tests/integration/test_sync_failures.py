"""SYNC: what the publisher is told where its endpoint gave no answer that could be his (behaviour 7.1, 7.2)."""

import time
from typing import Any

import pytest
from django.test import Client

from delivery.models import Attempt, Delivery, Message
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.asking import PATH, recorded, said_of
from tests.clients import client_of
from tests.publishing import EVENT, problem, publish
from tests.receiver import Receiver, answer, close, dripping, endless, hang, raw, reset

pytestmark = pytest.mark.usefixtures("calls")

NO_NAME = "secret-host.invalid"


@pytest.fixture(autouse=True)
def event_type(calls: None) -> EventType:
    return factories.event_type(EVENT, EventKind.SYNC)


@pytest.mark.behaviour("7.2")
@pytest.mark.behaviour("10.3")
@pytest.mark.parametrize("behaviour", [hang, dripping(0.1)], ids=["silent", "dripping"])
def test_no_answer_within_the_deadline(
    client: Client, asked: Subscription, receiver: Receiver, settings: Any, behaviour: Any
) -> None:
    default, settings.SYNC_SECONDS = settings.SYNC_SECONDS, 1
    receiver.on(PATH, behaviour)
    began = time.monotonic()

    answered = publish(client)

    assert 0.9 < time.monotonic() - began < default, "its own deadline counts"
    assert (problem(answered), answered["Broker-Outcome"]) == ((504, "endpoint_timed_out"), "endpoint_timed_out")
    assert answered["Broker-Message-Id"] == str(Message.objects.get().pk)
    delivery, attempt = Delivery.objects.get(), Attempt.objects.get()
    assert (delivery.status, delivery.uncertain, attempt.status_code) == ("FAILED", True, None)
    assert attempt.error.startswith("no answer: Operation timed out")
    assert 900 < attempt.duration_ms < default * 1000


@pytest.mark.behaviour("7.2")
@pytest.mark.parametrize(
    ("behaviour", "is_uncertain"),
    [
        (close, True),
        (reset, True),
        (raw(b"not HTTP at all"), True),
        (raw(b"HTTP/1.1 2000 x\r\n\r\n"), True),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"), True),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\nshort"), True),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\nshort"), False),
        (answer(700), False),
        (raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"), True),
    ],
    ids=[
        "closes",
        "resets",
        "nonsense",
        "status of four digits",
        "cut short",
        "very",
        "beyond counting",
        "status 700",
        "large head",
    ],
)
def test_a_broken_answer_is_a_bad_gateway(
    client: Client, asked: Subscription, receiver: Receiver, behaviour: Any, is_uncertain: bool
) -> None:
    receiver.on(PATH, behaviour)

    answered = publish(client)

    assert (problem(answered), answered["Broker-Outcome"]) == ((502, "endpoint_unreachable"), "endpoint_unreachable")
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
def test_an_endpoint_that_cannot_be_reached_is_a_bad_gateway(
    client: Client, event_type: EventType, receiver: Receiver, endpoint: str, kind: str
) -> None:
    port = receiver.url().rpartition(":")[2].strip("/")
    factories.subscription(event_type=event_type, endpoint=endpoint.format(port=port))

    answered = publish(client)

    assert problem(answered) == (502, "endpoint_unreachable")
    assert answered.json()["detail"] == f"The endpoint gave no answer: {kind}."
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.uncertain, delivery.attempts) == ("FAILED", False, 1)
    address = f"/api/v1/messages/{delivery.message_id}"
    told, kept = (one.get(address).json()["deliveries"][0]["reason"] for one in (client, client_of()))
    assert (told, kept) == (f"no answer: {kind}", delivery.reason), "where it was is not for publishers"


@pytest.mark.behaviour("7.1")
@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_may_be_as_large_as_a_message(
    client: Client, asked: Subscription, receiver: Receiver, settings: Any, more: int
) -> None:
    body = b"x" * (settings.MAX_BODY_BYTES + more)
    receiver.on(PATH, answer(200, body))

    answered = publish(client)

    if more:
        assert problem(answered) == (502, "answer_too_large")
        assert recorded()[0][1:] == (
            "FAILED",
            "The endpoint answered 200 with more than 1,048,576 bytes.",
            1,
        )
    else:
        assert said_of(answered) == (200, body, "answered")


@pytest.mark.behaviour("7.1")
def test_an_answer_without_end_is_too_large(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(PATH, endless)
    assert problem(publish(client)) == (502, "answer_too_large")
