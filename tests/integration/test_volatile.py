"""Volatile messages: stored nowhere, sent once beside the lines, to whom any other would go (behaviour 2.9)."""

import re
from typing import Any

import orjson
import pytest
from django.test import Client
from django.utils import timezone

from delivery.tasks import send_volatile
from delivery.webhook.request import signature
from subscriptions.credentials.tokens import key_of
from subscriptions.models import EventType, Status, Subscription
from subscriptions.models.subscriptions import PausedBy
from subscriptions.payload_format import PayloadFormat
from tests import factories
from tests.driving import inactivate
from tests.publishing import EVENT, publish
from tests.receiver import Behaviour, Receiver, answer, close, wait_until
from tests.volatile import VOLATILE, all_is_known, arguments_in, counted, stored, tasks, wait_until_answered, work

pytestmark = [pytest.mark.usefixtures("volatile"), pytest.mark.behaviour("2.9")]


@pytest.fixture
def shop(event_type: EventType, receiver: Receiver) -> Subscription:
    return factories.subscription(event_type=event_type, endpoint=receiver.url("/shop"))


def test_it_is_sent_once_and_stored_nowhere(client: Client, shop: Subscription, receiver: Receiver) -> None:
    body = b'{ "n": 1.0 }'
    answered = publish(client, body, X_Team="blue", Cookie="session=1", **VOLATILE)
    assert (answered.status_code, answered.json()) == (
        202,
        {"id": None, "outcome": "ROUTED", "deliveries": 1, "durability": "volatile"},
    )
    assert "Location" not in answered.headers
    assert work() == 1
    wait_until_answered(receiver, "/shop")

    (request,) = receiver.log
    names = {"webhook-sequence", "broker-message-id", "webhook-possible-duplicate", "cookie"}
    assert (request.body, names & request.headers.keys(), request.headers["x-team"]) == (body, set(), "blue")
    assert re.fullmatch(f"vol_[0-9a-f]{{32}}_{shop.pk}", request.headers["webhook-id"])
    assert (request.headers["broker-event-type"], request.headers["webhook-attempt"]) == (EVENT, "1")
    assert (stored(), work()) == (0, 0)
    assert (counted(shop), counted()) == ({"accepted": 1, "delivered": 1}, {"accepted": 1})


@pytest.mark.behaviour("4.11")
def test_it_is_signed_like_any_other(client: Client, shop: Subscription, receiver: Receiver) -> None:
    publish(client, b"[1]", **VOLATILE)
    work()
    wait_until_answered(receiver, "/shop")
    (request,) = receiver.log
    at = int(request.headers["webhook-timestamp"])
    expected = signature(
        key_of(shop.signing_secret), webhook_id=request.headers["webhook-id"], timestamp=at, body=b"[1]"
    )
    assert request.headers["webhook-signature"] == expected


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        (answer(204), "delivered"),
        (answer(302, Location="/elsewhere"), "refused"),
        (answer(404), "refused"),
        (answer(503, Retry_After="1"), "refused"),
        (close, "no_answer"),
    ],
)
def test_whatever_is_answered_it_is_never_sent_again(
    client: Client, shop: Subscription, receiver: Receiver, behaviour: Behaviour, outcome: str
) -> None:
    receiver.on("/shop", behaviour)
    publish(client, **VOLATILE)
    work()
    wait_until_answered(receiver, "/shop")
    assert (work(), len(receiver.log)) == (0, 1)
    assert counted(shop) == {"accepted": 1, outcome: 1}


def test_a_task_that_comes_twice_is_sent_once(client: Client, shop: Subscription, receiver: Receiver) -> None:
    publish(client, **VOLATILE)
    (task,) = tasks()
    for _ in range(2):
        send_volatile(*arguments_in(task))
    wait_until_answered(receiver, "/shop")
    assert (len(receiver.log), counted(shop)) == (1, {"accepted": 1, "delivered": 1})


def test_it_waits_for_no_line(client: Client, shop: Subscription, receiver: Receiver) -> None:
    gate = receiver.gate("/shop")
    for _ in range(3):
        publish(client, **VOLATILE)
    work()
    wait_until(lambda: len(receiver.of("/shop")) == 3)
    assert receiver.most_at_once["/shop"] > 1
    gate.open()
    wait_until_answered(receiver, "/shop", 3)
    assert counted(shop) == {"accepted": 3, "delivered": 3}


def test_its_body_is_not_shown_to_who_watches_the_workers(client: Client, shop: Subscription) -> None:
    publish(client, b'{"card": "4711"}', **VOLATILE)
    (task,) = tasks()
    assert task["headers"]["argsrepr"] == f"('{arguments_in(task)[0]}',)"
    assert "4711" not in str(task["headers"])


@pytest.mark.behaviour("2.8")
@pytest.mark.parametrize(
    ("destination", "told", "paths"),
    [
        ("blue", {"outcome": "ROUTED", "deliveries": 1}, ["/second"]),
        ("default", {"outcome": "ROUTED", "deliveries": 2}, ["/other", "/second"]),
        (
            "nobody",
            {
                "outcome": "DEAD_LETTERED",
                "deliveries": 0,
                "detail": "There is no subscriber of this name: nobody gets it.",
            },
            [],
        ),
    ],
)
def test_it_goes_where_it_is_destined(
    client: Client, event_type: EventType, receiver: Receiver, destination: str, told: dict[str, Any], paths: list[str]
) -> None:
    blue = factories.subscriber("blue")
    factories.subscription(blue, event_type, receiver.url("/first"), position=2)
    factories.subscription(blue, event_type, receiver.url("/second"), position=1)
    factories.subscription(None, event_type, receiver.url("/other"))

    answered = publish(client, Broker_Destination=destination, **VOLATILE)
    assert answered.json() == {"id": None, "durability": "volatile", **told}
    work()
    wait_until(lambda: len(receiver.log) == len(paths))
    assert sorted(request.path for request in receiver.log) == paths


@pytest.mark.behaviour("2.4")
def test_one_that_nobody_wants_asks_no_worker(client: Client, shop: Subscription) -> None:
    inactivate(shop)
    answered = publish(client, **VOLATILE)
    assert (answered.status_code, answered.json()["outcome"], tasks()) == (202, "UNROUTED", [])
    assert counted() == {"accepted": 1}


@pytest.mark.behaviour("3.6")
def test_a_filter_that_fails_is_counted_and_keeps_it_from_nobody_else(
    client: Client, event_type: EventType, shop: Subscription, receiver: Receiver
) -> None:
    failing = factories.subscription(event_type=event_type, filter="$$->'Body'->'n' > '5'")
    assert publish(client, b'{"n": 1e999999}', **VOLATILE).json()["deliveries"] == 1
    work()
    wait_until_answered(receiver, "/shop")
    assert counted(failing) == {"accepted": 1, "filtered": 1}
    assert counted(shop) == {"accepted": 1, "delivered": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"status": Status.INACTIVE},
        {"paused_since": timezone.now(), "paused_by": PausedBy.HAND},
        {"script": "throw new Error('no')"},
        {"script": "$outheader = {'Host': 'elsewhere'}"},
    ],
)
def test_a_subscription_that_cannot_be_sent_it_is_skipped(
    client: Client, shop: Subscription, receiver: Receiver, change: dict[str, Any]
) -> None:
    publish(client, **VOLATILE)
    Subscription.objects.filter(pk=shop.pk).update(**change)
    work()
    wait_until(all_is_known)
    assert (counted(shop), receiver.log) == ({"accepted": 1, "skipped": 1}, [])


@pytest.mark.behaviour("8.1")
def test_a_script_makes_what_is_sent(client: Client, shop: Subscription, receiver: Receiver) -> None:
    Subscription.objects.filter(pk=shop.pk).update(script="$outmessage = {n: $inmessage.n + 1}; $param = '/7'")
    publish(client, b'{"n": 1}', **VOLATILE)
    work()
    wait_until_answered(receiver, "/shop/7")
    assert receiver.bodies("/shop/7") == [b'{"n":2}']


@pytest.mark.behaviour("2.12")
def test_it_may_be_a_cloud_event(client: Client, shop: Subscription, receiver: Receiver) -> None:
    attributes = {"ce_specversion": "1.0", "ce_id": "7", "ce_source": "/shop", "ce_type": EVENT}
    for _ in range(2):
        assert publish(client, b"[1]", **attributes, **VOLATILE).status_code == 202
    work()
    wait_until_answered(receiver, "/shop", 2)
    assert [request.headers["ce-id"] for request in receiver.log] == ["7", "7"]


@pytest.mark.behaviour("2.12")
def test_who_wants_cloud_events_gets_one(client: Client, shop: Subscription, receiver: Receiver) -> None:
    Subscription.objects.filter(pk=shop.pk).update(output=PayloadFormat.CLOUDEVENTS_STRUCTURED)
    publish(client, b"[1]", **VOLATILE)
    work()
    wait_until_answered(receiver, "/shop")
    (request,) = receiver.log
    event = orjson.loads(request.body)
    assert (event["type"], event["data"], f"{event['id']}_{shop.pk}") == (EVENT, [1], request.headers["webhook-id"])
