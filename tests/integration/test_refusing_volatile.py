"""What cannot be volatile, and what of it reaches no worker (behaviour 2.9)."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from delivery.api.volatile import MOST_BYTES
from delivery.dispatch import notify
from delivery.models import Message
from delivery.volatile import publish_volatile
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.mailboxes import pulled_subscription
from tests.publishing import problem, publish
from tests.receiver import Receiver
from tests.volatile import VOLATILE, counted, redis_away, stored, tasks, wait_until_answered, work

pytestmark = [pytest.mark.usefixtures("volatile"), pytest.mark.behaviour("2.9")]


@pytest.fixture
def shop(event_type: EventType, receiver: Receiver) -> Subscription:
    return factories.subscription(event_type=event_type, endpoint=receiver.url("/shop"))


@pytest.mark.behaviour("2.6")
@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({"Broker_Durability": "Volatile"}, "'guaranteed'"),
        ({"Idempotency_Key": "order-1", **VOLATILE}, "Idempotency-Key"),
        ({"Broker_Not_Before": "2001-01-01T00:00:00Z", **VOLATILE}, "Broker-Not-Before"),
        ({"body": b'"%s"' % (b"x" * (MOST_BYTES - 1)), **VOLATILE}, "65537"),
        ({"event": "Shop.Job", **VOLATILE}, "QUEUE"),
        ({"event": "Shop.Call", **VOLATILE}, "Broker-Durability"),
    ],
)
def test_what_cannot_be_volatile_says_why(
    client: Client, shop: Subscription, receiver: Receiver, sent: dict[str, Any], named: str
) -> None:
    factories.event_type("Shop.Job", EventKind.QUEUE)
    factories.event_type("Shop.Call", EventKind.SYNC)
    answered = publish(client, **sent)
    assert (problem(answered), named in answered.json()["detail"]) == ((400, "invalid_metadata"), True)
    assert (tasks(), stored(), receiver.log) == ([], 0, [])


def test_the_largest_body_is_taken(client: Client, shop: Subscription, receiver: Receiver) -> None:
    body = b'"%s"' % (b"x" * (MOST_BYTES - 2))
    assert publish(client, body, **VOLATILE).status_code == 202
    work()
    wait_until_answered(receiver, "/shop")
    assert receiver.bodies("/shop") == [body]


@pytest.mark.behaviour("2.7")
@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        ("application/json", '{"events": [{"event": "Shop.Order.Placed", "body": {}}]}'),
        ("application/cloudevents-batch+json", "[]"),
    ],
)
def test_a_batch_is_never_volatile(client: Client, shop: Subscription, content_type: str, text: str) -> None:
    answered = client.post(
        "/api/v1/events", text.encode(), content_type=content_type, headers={"Broker-Durability": "volatile"}
    )
    assert (problem(answered), "one by one" in answered.json()["detail"]) == ((400, "invalid_metadata"), True)
    assert (tasks(), stored()) == ([], 0)


def test_who_says_guaranteed_gets_what_is_meant_without(client: Client, shop: Subscription) -> None:
    answered = publish(client, Broker_Durability="guaranteed")
    assert ("durability" in answered.json(), Message.objects.get().pk) == (False, answered.json()["id"])


@pytest.mark.behaviour("9.1")
def test_one_that_would_wait_in_a_mailbox_is_refused_for_all(
    client: Client, shop: Subscription, receiver: Receiver
) -> None:
    mailbox = pulled_subscription(event_type=shop.event_type)
    assert problem(publish(client, **VOLATILE)) == (400, "volatile_pulled")
    assert (tasks(), stored(), counted(), receiver.log) == ([], 0, {}, [])
    Subscription.objects.filter(pk=mailbox.pk).update(header_filter_string="others")
    assert publish(client, **VOLATILE).status_code == 202


@pytest.mark.behaviour("2.8", "9.1")
def test_one_for_a_destination_is_taken_whoever_else_would_fetch_it(
    client: Client, shop: Subscription, receiver: Receiver
) -> None:
    mailbox = pulled_subscription(event_type=shop.event_type)
    taken = publish(client, Broker_Destination=shop.subscriber.name, **VOLATILE)
    work()
    wait_until_answered(receiver, "/shop")
    refused = publish(client, Broker_Destination=mailbox.subscriber.name, **VOLATILE)
    assert (taken.status_code, receiver.bodies("/shop")) == (202, [b"{}"])
    assert (problem(refused), stored()) == ((400, "volatile_pulled"), 0)


def queue_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_volatile, "MOST_WAITING", 1)
    notify.redis_client().lpush(notify.VOLATILE, "{}")


@pytest.mark.parametrize("obstacle", [redis_away, queue_full])
def test_one_that_reaches_no_worker_is_refused_and_not_counted(
    client: Client, shop: Subscription, monkeypatch: pytest.MonkeyPatch, obstacle: Callable[[pytest.MonkeyPatch], None]
) -> None:
    obstacle(monkeypatch)
    answered = publish(client, **VOLATILE)
    assert (problem(answered), answered.headers["Retry-After"]) == ((503, "volatile_unavailable"), "2")
    assert (counted(shop), counted(), stored()) == ({}, {}, 0)
