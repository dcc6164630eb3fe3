"""Lists of what mailboxes have handed out: what has timed out is PENDING (behaviour 9.2)."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from delivery.mailbox.acknowledge import extend
from delivery.mailbox.results import ReceiptCode
from delivery.models import Delivery
from delivery.status import dead_letters, in_flight
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventType, Subscriber
from tests.clients import client_of, client_of_admin
from tests.driving import begin_and_vanish, line_of, publish_numbered
from tests.factories import subscriber, subscription
from tests.mailboxes import fetched, pulled_subscription, time_out

IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


@pytest.fixture(params=[in_flight.FEW, 1], ids=["few", "many"])
def mixed(request: Any, monkeypatch: pytest.MonkeyPatch, storage: None, event_type: EventType) -> Subscriber:
    """Somebody who fetches and is sent to, beside a stranger; of each sort some, in no order of time or id."""
    monkeypatch.setattr(in_flight, "UNDER_WAY", in_flight.UNDER_WAY.replace(str(in_flight.FEW), str(request.param)))
    monkeypatch.setattr(dead_letters, "TIMED_OUT", in_flight.TIMED_OUT.replace(str(in_flight.FEW), str(request.param)))
    wanted = subscriber("wanted")
    boxes = [pulled_subscription(one, event_type) for one in (wanted, wanted, subscriber("other"))]
    subscription(wanted, event_type)
    publish_numbered(event_type, 8)
    begin_and_vanish(line_of(wanted))
    for one in boxes[1:]:
        assert fetched(one, 12)
    time_out()
    handed_out = Delivery.objects.filter(fetched_until__isnull=False).order_by("-id").values_list("pk", flat=True)
    for number, pk in enumerate(handed_out):
        hours = 1 + number if number % 3 else -1 - number
        Delivery.objects.filter(pk=pk).update(fetched_until=Now() - timedelta(hours=hours))
    return wanted


def standing_by_hand() -> dict[int, str]:
    """Return how each delivery stands."""
    with connection.cursor() as cursor:
        cursor.execute("""SELECT id, CASE WHEN fetched_until <= clock_timestamp() THEN 'PENDING' ELSE status END
                            FROM delivery_open ORDER BY id DESC""")
        return dict(cursor.fetchall())


def pages(client: Client, query: str) -> Iterator[dict[str, Any]]:
    """Return what a list shows, read in pages of three; and check that it reads the same backwards."""
    url: Any = f"/api/v1/deliveries?limit=3&{query}"
    read: list[list[dict[str, Any]]] = []
    while url:
        answer = client.get(url).json()
        read.append(answer["items"])
        url, back = answer["next"], answer["previous"]
    for page in reversed(read[:-1]):
        answer = client.get(back).json()
        assert answer["items"] == page
        back = answer["previous"]
    return (one for page in read for one in page)


@pytest.mark.behaviour("9.2", "10.1")
@pytest.mark.parametrize("status", [None, PENDING, IN_FLIGHT])
def test_what_has_timed_out_reads_and_lists_as_pending(mixed: Subscriber, status: str | None) -> None:
    every = {pk: shown for pk, shown in standing_by_hand().items() if status in {None, shown}}
    own = {*Delivery.objects.filter(subscription__subscriber=mixed).values_list("pk", flat=True)}
    assert {*every.values()} == ({status} if status else {PENDING, IN_FLIGHT})
    asked = f"&status={status}" if status else ""
    for client, query, wanted in (
        (client_of(), "", {*every}),
        (client_of(), "subscriber=wanted", {*every} & own),
        (client_of(mixed), "", {*every} & own),
    ):
        shown = [(one["id"], one["status"]) for one in pages(client, query + asked)]
        assert shown == [(pk, every[pk]) for pk in every if pk in wanted]


@pytest.mark.behaviour("9.2", "10.1")
@pytest.mark.parametrize("status", [PENDING, IN_FLIGHT])
@pytest.mark.parametrize("of", ["all", "line", "subscription", "message"])
def test_the_admin_lists_it_alike(mixed: Subscriber, status: str, of: str) -> None:
    one = Delivery.objects.filter(fetched_until__lte=Now(), subscription__subscriber=mixed).earliest("pk")
    every_way: dict[str, dict[str, Any]] = {
        "all": {},
        "line": {"line__id__exact": one.line_id},
        "subscription": {"subscription__id__exact": one.subscription_id},
        "message": {"message__id": one.message_id},
    }
    asked = every_way[of]
    filters = {name.removesuffix("__exact"): value for name, value in asked.items()}
    every = standing_by_hand()
    wanted = Delivery.objects.filter(**filters).order_by("-pk").values_list("pk", flat=True)
    page = client_of_admin().get("/admin/delivery/delivery/", {**asked, "status__exact": status})
    shown = [row.pk for row in page.context["cl"].result_list]
    assert shown == [pk for pk in wanted if every[pk] == status]


@pytest.mark.behaviour("9.2")
def test_one_delivery_and_its_message_say_it_too(mixed: Subscriber) -> None:
    late = Delivery.objects.filter(fetched_until__lte=Now()).earliest("pk")
    client = client_of()
    assert client.get(f"/api/v1/deliveries/{late.pk}").json()["status"] == PENDING
    of_message = client.get(f"/api/v1/messages/{late.message_id}").json()["deliveries"]
    assert {one["id"]: one["status"] for one in of_message}[late.pk] == PENDING


@pytest.mark.behaviour("9.4")
def test_whoever_prolongs_too_late_is_told_that_it_is_pending(storage: None, event_type: EventType) -> None:
    box = pulled_subscription(subscriber(mailbox_ordered=True), event_type)
    publish_numbered(event_type, 1)
    (one,) = fetched(box)
    time_out()
    answer = extend(box.subscriber_id, [one.receipt], seconds=9)[one.receipt]
    assert (answer.code, answer.delivery_status) == (ReceiptCode.TIMED_OUT, PENDING)
