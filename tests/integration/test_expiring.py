"""A message with a time to live is not sent once that is over, wherever it waits by then."""

import datetime as dt
from typing import Any

import psycopg
import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from delivery.callbacks.address import callback_terms
from delivery.dispatch.claim import claim
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, LineEvent, Message, QueueGroup
from delivery.worker import run_lines
from delivery.worker.buffer import BodyBudget
from delivery.worker.pages import PageRequest
from delivery.worker.queue_pages import read_groups
from delivery.worker.queue_settle import settle_groups
from delivery.worker.settle import settle
from delivery.worker.steps import Turn
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.driving import (
    PLENTY,
    Worker,
    begin_and_vanish,
    end_pauses_far_off,
    hand_of,
    line_of,
    publish_bodies,
    retry_line_of,
    statuses,
    wait_until_done,
    wait_until_held,
)
from tests.publishing import EVENT, batch, problem, publish
from tests.receiver import Receiver, answer

pytestmark = pytest.mark.django_db

HOUR = 3_600.0
BIG = "$$->'Body'->'n' > '5'"
UNREADABLE = b'{"n": 1e999999}'
"""A number that no filter can compare, and so nobody can tell whether it is big."""


@pytest.fixture
def wanting(event_type: EventType) -> Subscription:
    return factories.subscription(event_type=event_type)


def end_time(**of: Any) -> None:
    """Let the time to live of these be over, of those that have one."""
    Delivery.objects.filter(expires_at__isnull=False, **of).update(expires_at=Now() - dt.timedelta(milliseconds=1))


def ended() -> list[tuple[str, str]]:
    return [*Delivery.objects.final().oldest_first().values_list("status", "reason")]


@pytest.mark.behaviour("2.10")
def test_the_time_to_live_begins_with_publishing(client: Client, wanting: Subscription) -> None:
    before = timezone.now()
    answer = publish(client, Broker_TTL="15m")
    after = timezone.now()

    live = dt.timedelta(minutes=15)
    message, delivery = Message.objects.get(), Delivery.objects.get()
    assert delivery.expires_at == message.expires_at
    assert before + live <= (message.expires_at or before) <= after + live
    shown = client.get(answer["Location"]).json()["expires_at"]
    assert dt.datetime.fromisoformat(shown) == message.expires_at


@pytest.mark.behaviour("2.10")
def test_items_of_a_batch_have_times_of_their_own(client: Client, wanting: Subscription) -> None:
    item = f'"event": "{EVENT}", "body": {{}}'
    batch(client, f'{{"events": [{{{item}}}, {{{item}, "ttl": "90"}}]}}')
    assert [one.expires_at is None for one in Delivery.objects.oldest_first()] == [True, False]

    refused = batch(client, f'{{"events": [{{{item}, "ttl": "soon"}}]}}')
    assert refused.json()["results"][0]["code"] == "invalid_metadata"
    assert problem(publish(client, Broker_TTL="soon")) == (400, "invalid_metadata")


@pytest.mark.behaviour("2.10")
def test_what_was_not_sent_in_time_ends_as_expired_and_nothing_else_does(
    event_type: EventType, wanting: Subscription
) -> None:
    publish_bodies(event_type, b"0", ttl=HOUR)
    end_time()
    publish_bodies(event_type, b"1", ttl=HOUR)
    publish_bodies(event_type, b"2")

    assert (expire_overdue(), expire_overdue()) == (1, 0)
    assert statuses(wanting) == ["EXPIRED", "PENDING", "PENDING"]
    assert ended() == [("EXPIRED", "expired")]


@pytest.mark.behaviour("2.10")
def test_what_is_overdue_is_not_sent_even_where_nobody_has_ended_it(
    event_type: EventType, wanting: Subscription
) -> None:
    publish_bodies(event_type, b"0", ttl=HOUR)
    line = line_of(wanting.subscriber)
    (taken,) = claim([line.pk], worker="w")
    driven = run_lines.active_line(taken, Turn([taken.line_id], 0.5), 0.0, under_way=1)
    (in_hand,) = hand_of(taken)
    end_time()

    assert settle({line.pk: taken.epoch}, marks=[driven.mark(in_hand)]).started == {}
    assert hand_of(taken) == []


@pytest.mark.behaviour("2.10", "6.3")
def test_an_overdue_queue_message_is_not_sent_even_where_nobody_has_ended_it() -> None:
    queue = factories.event_type(EVENT, EventKind.QUEUE)
    factories.subscription(event_type=queue)
    publish_bodies(queue, b"{}", ttl=HOUR)
    (taken,) = claim([QueueGroup.objects.get().line_id or 0], worker="w")
    driven = run_lines.active_line(taken, Turn([taken.line_id], 0.5), 0.0, under_way=1)
    page = PageRequest(taken.line_id, taken.epoch, None, taken.capacity)
    group = read_groups([page], BodyBudget(PLENTY), callback_terms())[taken.line_id].take(aside_next=False)
    assert group
    end_time()

    mark = driven.mark(group.delivery(group.endpoints[0], tried=0, uncertain=False))
    assert settle_groups({taken.line_id: taken.epoch}, marks=[mark]).started == {}


@pytest.mark.behaviour("2.10")
def test_what_is_under_way_is_left_to_its_answer(event_type: EventType, wanting: Subscription) -> None:
    publish_bodies(event_type, b"0", ttl=HOUR)
    begin_and_vanish(line_of(wanting.subscriber))
    end_time()

    assert expire_overdue() == 0
    assert statuses(wanting) == ["IN_FLIGHT"]


@pytest.mark.behaviour("2.10", "3.6")
def test_what_is_held_expires_too(event_type: EventType) -> None:
    holding = factories.subscription(event_type=event_type, filter=BIG)
    publish_bodies(event_type, UNREADABLE, ttl=HOUR)
    assert statuses(holding) == ["HELD"]
    end_time()

    assert expire_overdue() == 1
    ((status, reason),) = ended()
    assert (status, reason[:24]) == ("EXPIRED", "expired: filter failed: ")


@pytest.mark.behaviour("2.10", "4.10")
def test_what_is_retried_apart_expires_too_and_its_number_is_told(event_type: EventType, wanting: Subscription) -> None:
    publish_bodies(event_type, b"0", b"1", ttl=HOUR)
    nobody_had, somebody_had = Delivery.objects.oldest_first()
    apart = retry_line_of(wanting.subscriber)
    Delivery.objects.update(line=apart, due_at=Now() + dt.timedelta(hours=1), attempts=3, sequence=7)
    Delivery.objects.filter(pk=nobody_had.pk).update(unreceived=True)
    end_time()

    assert expire_overdue() == 2
    assert [*Delivery.objects.values_list("pk", "line_id", "attempts").order_by("pk")] == [
        (nobody_had.pk, apart.pk, 3),
        (somebody_had.pk, apart.pk, 3),
    ]
    told = LineEvent.objects.values_list("line_id", "kind", "sequence", "delivery_id")
    assert [*told] == [(line_of(wanting.subscriber).pk, "NUMBER_UNCERTAIN", 7, nobody_had.pk)]


@pytest.mark.behaviour("2.10", "6.3")
def test_a_queue_group_ends_with_the_last_of_it() -> None:
    queue = factories.event_type(EVENT, EventKind.QUEUE)
    alike = [factories.subscription(event_type=queue) for _ in range(3)]
    publish_bodies(queue, b"{}", ttl=HOUR)
    publish_bodies(queue, b"{}")
    under_way = Delivery.objects.filter(subscription=alike[0]).oldest_first()[0]
    Delivery.objects.filter(pk=under_way.pk).update(status="IN_FLIGHT")
    end_time()

    assert expire_overdue() == 2
    assert QueueGroup.objects.count() == 2, "one of it is under way"
    Delivery.objects.filter(pk=under_way.pk).update(status="PENDING")
    assert expire_overdue() == 1
    assert [group.delivery_ids for group in QueueGroup.objects.all()] == [
        [*Delivery.objects.open().oldest_first().values_list("pk", flat=True)]
    ]


@pytest.mark.behaviour("2.10", "4.7")
@pytest.mark.django_db(transaction=True)
def test_a_line_goes_on_when_what_it_is_held_for_expires(worker: Worker, receiver: Receiver) -> None:
    wanting = factories.subscription(endpoint=receiver.url("/hook"))
    receiver.on("/hook", answer(503))
    publish_bodies(wanting.event_type, b"0", ttl=HOUR)
    wait_until_held(wanting.subscriber)
    end_pauses_far_off(wanting.subscriber)
    receiver.on("/hook", answer())
    publish_bodies(wanting.event_type, b"1")

    end_time()
    wait_until_done()

    assert statuses(wanting) == ["EXPIRED", "DELIVERED"]


@pytest.mark.behaviour("2.10")
@pytest.mark.django_db(transaction=True)
def test_lines_that_somebody_is_at_are_left_to_the_next_time(
    elsewhere: psycopg.Connection[Any], event_type: EventType
) -> None:
    busy, idle = (factories.subscription(event_type=event_type) for _ in range(2))
    publish_bodies(event_type, b"0", ttl=HOUR)
    end_time()
    elsewhere.execute("SELECT id FROM delivery_line WHERE id = %s FOR UPDATE", [line_of(busy.subscriber).pk])

    assert expire_overdue() == 1
    assert (statuses(busy), statuses(idle)) == (["PENDING"], ["EXPIRED"])
    elsewhere.rollback()
    assert expire_overdue() == 1
