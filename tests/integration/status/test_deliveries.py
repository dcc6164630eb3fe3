"""Lists of deliveries over the API, and messages, deliveries and attempts in the admin."""

from typing import Any

import pytest
from django.test import Client

from delivery.models import Delivery
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from delivery.worker.settle import settle
from subscriptions.models import Subscriber
from tests.support.api import client_of, client_of_admin
from tests.support.factories import subscriber, subscription
from tests.support.worker import begin_and_vanish, line_of, publish_numbered, settlement

REJECTED, PENDING = DeliveryStatus.REJECTED, DeliveryStatus.PENDING


@pytest.fixture
def receiving(storage: None) -> Subscriber:
    """A subscriber with deliveries of every kind, among those of another."""
    wanted = subscriber("wanted")
    subscriptions = [subscription(wanted), subscription(wanted), subscription(subscriber("other"))]
    for number in range(4):
        for one in subscriptions:
            publish_numbered(one.event_type, 1, number)
    line = line_of(wanted)
    endings: list[dict[str, Any]] = [
        {},
        {"status": REJECTED, "status_code": 404},
        {"status": PENDING, "status_code": 500, "pause": 60.0},
    ]
    for fields in endings:
        driven, delivery, number = begin_and_vanish(line)
        driven.last_sequence = number
        settle(
            {line.pk: driven.claim.epoch},
            settlements=[settlement(driven, delivery, **fields)],
            states=[driven.state(let_go=True)],
        )
    cancel_deliveries_of(subscriptions[1].pk, reason="unwanted")
    begin_and_vanish(line)
    return wanted


def ids(client: Client, query: str) -> list[int]:
    """Return the ids of a whole list, read in pages of three; and check that it reads the same backwards."""
    pages: list[list[int]] = []
    url: Any = f"/api/v1/deliveries?limit=3&{query}"
    back: Any = None
    while url:
        answer = client.get(url).json()
        pages.append([item["id"] for item in answer["items"]])
        url, back = answer["next"], answer["previous"]
    for page in reversed(pages[:-1]):
        answer = client.get(back).json()
        assert [item["id"] for item in answer["items"]] == page
        back = answer["previous"]
    return [delivery_id for page in pages for delivery_id in page]


@pytest.mark.behaviour("10.1")
@pytest.mark.parametrize("status", [None, *DeliveryStatus.values])
def test_lists_hold_what_they_are_asked_for_and_nothing_else(receiving: Subscriber, status: str | None) -> None:
    of_status = {"status": status} if status else {}
    asked = f"&status={status}" if status else ""
    everything = Delivery.objects.filter(**of_status).order_by("-id")
    own = [*everything.filter(subscription__subscriber=receiving).values_list("id", flat=True)]
    one = everything.filter(subscription__subscriber=receiving).first()
    management, receiver = client_of(), client_of(receiving)
    assert ids(management, asked) == [*everything.values_list("id", flat=True)]
    assert ids(management, f"subscriber=wanted{asked}") == own
    assert ids(receiver, asked) == own
    assert ids(receiver, f"subscriber=other{asked}") == []
    assert ids(management, f"subscriber=nobody{asked}") == []
    if one:
        assert one.pk in ids(receiver, f"subscription={one.subscription_id}{asked}")
        assert one.pk in ids(receiver, f"message={one.message_id}{asked}")


def test_every_kind_of_delivery_is_there(receiving: Subscriber) -> None:
    own = Delivery.objects.filter(subscription__subscriber=receiving)
    assert {*own.values_list("status", flat=True)} == {"DELIVERED", "REJECTED", "PENDING", "CANCELLED", "IN_FLIGHT"}
    assert own.filter(due_at__isnull=False).exists()


@pytest.mark.parametrize("status", [None, *DeliveryStatus.values])
def test_lists_in_the_admin_hold_the_same(receiving: Subscriber, status: str | None) -> None:
    admin = client_of_admin()
    own = Delivery.objects.filter(subscription__subscriber=receiving, **({"status": status} if status else {}))
    asked = f"&status__exact={status}" if status else ""
    page = admin.get(f"/admin/delivery/delivery/?line__id__exact={line_of(receiving).pk}{asked}")
    assert [row.pk for row in page.context["cl"].result_list] == [*own.order_by("-pk").values_list("pk", flat=True)]
