"""SYNC: what publishers, subscribers and operators see of a call."""

import pytest
from django.test import Client

from delivery.models import Delivery
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.asking import FAILING, FAILS, PATH
from tests.clients import client_of
from tests.publishing import EVENT, publish
from tests.receiver import Receiver, answer

pytestmark = pytest.mark.usefixtures("calls")


@pytest.fixture(autouse=True)
def event_type(calls: None) -> EventType:
    return factories.event_type(EVENT, EventKind.SYNC)


def test_a_publisher_and_a_subscriber_see_the_call(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(PATH, answer(404))
    message_id = publish(client)["Broker-Message-Id"]

    message = client.get(f"/api/v1/messages/{message_id}").json()
    (delivery,) = message["deliveries"]
    assert (delivery["status"], delivery["reason"], delivery["attempts"]) == ("FAILED", "answered 404", 1)
    seen = client_of(asked.subscriber).get(f"/api/v1/deliveries/{delivery['id']}").json()
    assert (seen["sequence"], seen["due_at"], [one["status_code"] for one in seen["history"]]) == (None, None, [404])


@pytest.mark.behaviour("7.1")
def test_the_explanation_says_who_is_asked(event_type: EventType) -> None:
    made = [
        factories.subscription(event_type=event_type, filter=text)
        for text in ("$$->'Body'->>'n' = '2'", "$$->'Body'->>'n' = '1'", "", FAILING)
    ]

    def explained(body: bytes) -> list[tuple[bool, str]]:
        message_id = publish(client_of(), body)["Broker-Message-Id"]
        found = client_of().get(f"/api/v1/messages/{message_id}/explanation").json()["subscriptions"]
        return [(one["qualifies"], one["why"]) for one in found]

    asked = f"Subscription {made[1].pk}, made before, is asked."
    assert explained(b'{"n": "1"}') == [
        (False, "The filter is false."),
        (True, "The filter is true."),
        (False, asked),
        (False, "The filter is false."),
    ]
    Subscription.objects.filter(pk__in=[one.pk for one in made[:3]]).delete()
    assert explained(FAILS) == [(False, "The filter fails, and so does the call.")]


def test_the_admin_shows_a_call_without_a_line(client: Client, asked: Subscription, admin_client: Client) -> None:
    message_id = publish(client)["Broker-Message-Id"]
    delivery_id = Delivery.objects.get().pk
    for address in (
        f"delivery/message/{message_id}/change/",
        "delivery/message/",
        f"delivery/delivery/{delivery_id}/change/",
        "delivery/delivery/",
        "delivery/attempt/",
    ):
        assert admin_client.get(f"/admin/{address}").status_code == 200, address
