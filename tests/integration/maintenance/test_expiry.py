"""Messages with a time to live or a delay."""

import datetime as dt
import json
from typing import Any

import psycopg
import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.dispatch import notify
from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import begin_delayed
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, LineEvent, Message, QueueGroup
from delivery.operations import release_one
from delivery.worker.buffer import PageRequest
from delivery.worker.leases import active_line
from delivery.worker.round_trip import mark_of
from delivery.worker.rounds import NO_LINK
from subscriptions.models import EventKind, EventType, Subscription
from tests.support import broker, factories
from tests.support.api import EVENT, problem_of, publish, publish_batch
from tests.support.broker import Worker, lines_with_due_work

pytestmark = [pytest.mark.behaviour("2.10", "2.13"), pytest.mark.django_db]

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


def test_items_of_a_batch_have_times_of_their_own(client: Client, wanting: Subscription) -> None:
    item = f'"event": "{EVENT}", "body": {{}}'
    publish_batch(client, f'{{"events": [{{{item}}}, {{{item}, "ttl": "90"}}]}}')
    assert [one.expires_at is None for one in Delivery.objects.oldest_first()] == [True, False]


def test_only_deliveries_past_their_time_to_live_expire(event_type: EventType, wanting: Subscription) -> None:
    broker.publish_bodies(event_type, b"0", ttl=HOUR)
    end_time()
    broker.publish_bodies(event_type, b"1", ttl=HOUR)
    broker.publish_bodies(event_type, b"2")
    assert (expire_overdue(), expire_overdue()) == (1, 0)
    assert broker.statuses(wanting) == ["EXPIRED", "PENDING", "PENDING"]
    assert ended() == [("EXPIRED", "expired")]


def test_overdue_deliveries_are_not_sent_before_they_are_expired(event_type: EventType, wanting: Subscription) -> None:
    broker.publish_bodies(event_type, b"0", ttl=HOUR)
    line = broker.line_of(wanting.subscriber)
    (taken,) = claim([line.pk], worker="w")
    driven = active_line(taken, NO_LINK, 0.0, queue_max_in_flight=1)
    (in_hand,) = broker.outgoing_of(taken)
    end_time()
    assert broker.settle({line.pk: taken.epoch}, marks=[mark_of(driven, in_hand)]).started == {}
    assert broker.outgoing_of(taken) == []


@pytest.mark.behaviour("6.3")
def test_an_overdue_queue_message_is_not_sent_even_where_nobody_has_ended_it() -> None:
    queue = factories.event_type(EVENT, EventKind.QUEUE)
    factories.subscription(event_type=queue)
    broker.publish_bodies(queue, b"{}", ttl=HOUR)
    (taken,) = claim([QueueGroup.objects.get().line_id or 0], worker="w")
    driven = active_line(taken, NO_LINK, 0.0, queue_max_in_flight=1)
    page = broker.read_groups_of(PageRequest(taken.line_id, taken.epoch, taken.capacity))
    group = page.take(deferred_next=False)
    assert group
    end_time()
    mark = mark_of(driven, group.delivery(group.endpoints[0], tried=0, uncertain=False))
    assert broker.settle_groups({taken.line_id: taken.epoch}, marks=[mark]).started == {}


def test_a_request_in_flight_does_not_expire(event_type: EventType, wanting: Subscription) -> None:
    broker.publish_bodies(event_type, b"0", ttl=HOUR)
    broker.crash_while_sending(broker.line_of(wanting.subscriber))
    end_time()
    assert expire_overdue() == 0
    assert broker.statuses(wanting) == ["IN_FLIGHT"]


@pytest.mark.behaviour("3.6")
def test_held_deliveries_expire(event_type: EventType) -> None:
    holding = factories.subscription(event_type=event_type, filter=BIG)
    broker.publish_bodies(event_type, UNREADABLE, ttl=HOUR)
    assert broker.statuses(holding) == ["HELD"]
    end_time()
    assert expire_overdue() == 1
    ((status, reason),) = ended()
    assert (status, reason[:24]) == ("EXPIRED", "expired: filter failed: ")


@pytest.mark.behaviour("4.10")
def test_retries_expire_and_leave_an_uncertain_number(event_type: EventType, wanting: Subscription) -> None:
    broker.publish_bodies(event_type, b"0", b"1", ttl=HOUR)
    nobody_had, somebody_had = Delivery.objects.oldest_first()
    apart = broker.retry_line_of(wanting.subscriber)
    Delivery.objects.update(line=apart, waits_for="RETRY", due_at=Now() + dt.timedelta(hours=1), attempts=3, sequence=7)
    Delivery.objects.filter(pk=nobody_had.pk).update(unreceived=True)
    end_time()
    assert expire_overdue() == 2
    retried = [*Delivery.objects.values_list("pk", "line_id", "attempts").order_by("pk")]
    assert retried == [(one.pk, apart.pk, 3) for one in (nobody_had, somebody_had)]
    told = LineEvent.objects.values_list("line_id", "kind", "sequence", "delivery_id")
    assert [*told] == [(broker.line_of(wanting.subscriber).pk, "NUMBER_UNCERTAIN", 7, nobody_had.pk)]


@pytest.mark.behaviour("6.3")
def test_a_queue_group_ends_with_the_last_of_it() -> None:
    queue = factories.event_type(EVENT, EventKind.QUEUE)
    alike = [factories.subscription(event_type=queue) for _ in range(3)]
    broker.publish_bodies(queue, b"{}", ttl=HOUR)
    broker.publish_bodies(queue, b"{}")
    in_flight = Delivery.objects.filter(subscription=alike[0]).oldest_first()[0]
    Delivery.objects.filter(pk=in_flight.pk).update(status="IN_FLIGHT")
    end_time()
    assert expire_overdue() == 2
    assert QueueGroup.objects.count() == 2, "one of it is under way"
    Delivery.objects.filter(pk=in_flight.pk).update(status="PENDING")
    assert expire_overdue() == 1
    assert [group.delivery_ids for group in QueueGroup.objects.all()] == [
        [*Delivery.objects.open().oldest_first().values_list("pk", flat=True)]
    ]


@pytest.mark.behaviour("4.7")
@pytest.mark.django_db(transaction=True)
def test_a_line_goes_on_when_what_it_is_held_for_expires(worker: Worker, receiver: Receiver) -> None:
    wanting = factories.subscription(endpoint=receiver.url("/hook"))
    receiver.on("/hook", answer(503))
    broker.publish_bodies(wanting.event_type, b"0", ttl=HOUR)
    broker.wait_until_held(wanting.subscriber)
    broker.hold_for_minutes(wanting.subscriber)
    receiver.on("/hook", answer())
    broker.publish_bodies(wanting.event_type, b"1")
    end_time()
    broker.wait_until_done()
    assert broker.statuses(wanting) == ["EXPIRED", "DELIVERED"]


@pytest.mark.django_db(transaction=True)
def test_locked_lines_are_left_to_the_next_time(elsewhere: psycopg.Connection[Any], event_type: EventType) -> None:
    busy, idle = (factories.subscription(event_type=event_type) for _ in range(2))
    broker.publish_bodies(event_type, b"0", ttl=HOUR)
    end_time()
    elsewhere.execute("SELECT id FROM delivery_line WHERE id = %s FOR UPDATE", [broker.line_of(busy.subscriber).pk])
    assert expire_overdue() == 1
    assert (broker.statuses(busy), broker.statuses(idle)) == (["PENDING"], ["EXPIRED"])
    elsewhere.rollback()
    assert expire_overdue() == 1


@pytest.mark.behaviour("11.9")
@pytest.mark.django_db(transaction=True)
def test_a_locked_group_is_left_to_the_next_time_and_no_line_is_kept_locked_for_it(
    elsewhere: psycopg.Connection[Any], event_type: EventType, wanting: Subscription
) -> None:
    queue = factories.event_type("Queued", EventKind.QUEUE)
    job = factories.subscription(event_type=queue)
    for kind in (queue, event_type):
        broker.publish_bodies(kind, b"{}", ttl=HOUR)
    end_time()
    elsewhere.execute("SELECT id FROM delivery_queuegroup FOR UPDATE")
    assert expire_overdue() == 1
    assert (broker.statuses(job), broker.statuses(wanting)) == (["PENDING"], ["EXPIRED"])
    elsewhere.rollback()
    assert (expire_overdue(), QueueGroup.objects.count()) == (1, 0)


def tomorrow() -> dt.datetime:
    return timezone.now() + dt.timedelta(days=1)


def end_delays() -> None:
    """Let the time of all that is delayed have come."""
    Delivery.objects.filter(not_before__isnull=False).update(not_before=Now() - dt.timedelta(milliseconds=1))


def sent_next(wanting: Subscription) -> list[int]:
    """Return the deliveries that the line would send, in its order."""
    (taken,) = claim([broker.line_of(wanting.subscriber).pk], worker="w")
    return [one.id for one in broker.outgoing_of(taken)]


def test_until_its_time_it_is_not_sent_and_holds_nobody_up(event_type: EventType, wanting: Subscription) -> None:
    broker.publish_bodies(event_type, b"0", not_before=tomorrow())
    assert lines_with_due_work() == []
    broker.publish_bodies(event_type, b"1")
    delayed, fresh = Delivery.objects.oldest_first()
    assert begin_delayed() == 0
    assert sent_next(wanting) == [fresh.pk]
    assert delayed.waits_for == "START"
    assert delayed.next_try_at == delayed.not_before


@pytest.mark.behaviour("4.10")
def test_when_due_it_takes_the_place_of_its_publish(event_type: EventType, wanting: Subscription) -> None:
    for body, not_before in ((b"0", None), (b"1", tomorrow()), (b"2", None), (b"3", tomorrow())):
        broker.publish_bodies(event_type, body, not_before=not_before)
    ids = [one.pk for one in Delivery.objects.oldest_first()]
    Delivery.objects.filter(pk=ids[1]).update(not_before=Now())
    assert (begin_delayed(), begin_delayed()) == (1, 0)
    assert sent_next(wanting) == ids[:3]


@pytest.mark.django_db(transaction=True)
def test_lines_are_woken_for_what_may_now_be_sent(storage: None, event_type: EventType, wanting: Subscription) -> None:
    broker.publish_bodies(event_type, b"0", not_before=tomorrow())
    notify.disown(notify.TOPIC, notify.woken_lines(notify.TOPIC, "worker"), "worker")
    end_delays()
    begin_delayed()
    assert notify.woken_lines(notify.TOPIC, "worker") == [broker.line_of(wanting.subscriber).pk]


@pytest.mark.behaviour("11.3")
@pytest.mark.django_db(transaction=True)
def test_delayed_deliveries_outlive_their_workers(storage: None, receiver: Receiver) -> None:
    wanting = factories.subscription(endpoint=receiver.url("/hook"))
    with broker.running_worker("before"):
        broker.publish_bodies(wanting.event_type, b"0", not_before=tomorrow())
        broker.publish_bodies(wanting.event_type, b"1")
        wait_until(lambda: broker.statuses(wanting) == ["PENDING", "DELIVERED"])
    end_delays()
    with broker.running_worker("after"):
        broker.wait_until_done()
    assert receiver.bodies("/hook") == [b"1", b"0"]


@pytest.mark.parametrize(
    ("said", "is_delayed"),
    [("2026-01-01T00:00:00Z", False), ("Thu, 01 Jan 2026 00:00:00 GMT", False), ("tomorrow", True)],
)
def test_publishes_say_so_in_a_header(client: Client, wanting: Subscription, said: str, is_delayed: bool) -> None:
    moment = tomorrow().isoformat() if said == "tomorrow" else said
    publish(client, Broker_Not_Before=moment)
    publish_batch(client, f'{{"events": [{{"event": "{EVENT}", "body": {{}}, "not_before": "{moment}"}}]}}')
    assert [one.waits_for for one in Delivery.objects.all()] == ["START" if is_delayed else "TURN"] * 2
    one, other = Message.objects.all()
    assert one.not_before == other.not_before is not None


@pytest.mark.parametrize(
    "given",
    [{"ttl": "soon"}, {"not_before": "tomorrow"}, {"not_before": tomorrow().isoformat(), "ttl": "1h"}],
    ids=["time to live", "time", "a time to live that ends before"],
)
def test_an_invalid_time_is_refused(client: Client, event_type: EventType, given: dict[str, str]) -> None:
    names = {"ttl": "Broker_TTL", "not_before": "Broker_Not_Before"}
    headers: dict[str, Any] = {names[name]: value for name, value in given.items()}
    assert problem_of(publish(client, **headers)) == (400, "invalid_metadata")
    refused = publish_batch(client, json.dumps({"events": [{"event": EVENT, "body": {}, **given}]}))
    assert (problem_of(refused), refused.json()["results"][0]["code"]) == ((422, "invalid_items"), "invalid_metadata")
    assert Message.objects.count() == 0


@pytest.mark.behaviour("3.6")
def test_released_before_its_time_it_waits_for_that(event_type: EventType) -> None:
    holding = factories.subscription(event_type=event_type, filter=BIG)
    broker.publish_bodies(event_type, UNREADABLE, not_before=tomorrow())
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.waits_for) == ("HELD", "RELEASE")
    release_one(delivery.pk)
    assert lines_with_due_work() == []
    end_delays()
    begin_delayed()
    assert sent_next(holding) == [delivery.pk]


def test_a_delayed_delivery_may_expire_before_its_time(event_type: EventType, wanting: Subscription) -> None:
    broker.publish_bodies(event_type, b"0", not_before=tomorrow(), ttl=172_800.0)
    Delivery.objects.update(expires_at=Now())
    assert (expire_overdue(), broker.statuses(wanting)) == (1, ["EXPIRED"])


@pytest.mark.behaviour("6.2")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("body", [b'{"n": 6}', UNREADABLE])
def test_a_queue_message_is_not_sent_before_its_time(storage: None, receiver: Receiver, body: bytes) -> None:
    queue = factories.event_type(EVENT, EventKind.QUEUE)
    alike = [factories.subscription(event_type=queue, filter=BIG, endpoint=receiver.url("/hook")) for _ in range(2)]
    moment = tomorrow()
    broker.publish_bodies(queue, body, not_before=moment)
    if body is UNREADABLE:
        assert QueueGroup.objects.get().waits_for == "RELEASE"
        release_one(Delivery.objects.oldest_first()[0].pk)
    group = QueueGroup.objects.get()
    assert (group.waits_for, group.due_at) == ("START", moment)
    assert {one.waits_for for one in Delivery.objects.all()} == {"TURN"}
    assert lines_with_due_work() == []
    QueueGroup.objects.update(waits_for="RETRY", due_at=Now())
    broker.run_worker_until_done()
    assert sorted(status for one in alike for status in broker.statuses(one)) == ["DELIVERED", "REDUNDANT"]


@pytest.mark.behaviour("6.2")
def test_topic_and_queue_messages_of_one_batch_wait_each_in_its_way(client: Client, wanting: Subscription) -> None:
    queue = factories.event_type("Queued", EventKind.QUEUE)
    factories.subscription(event_type=queue)
    moment = tomorrow()
    items: list[Any] = [
        f'{{"event": "{name}", "body": {{}}, "not_before": "{moment.isoformat()}"}}' for name in (EVENT, "Queued")
    ]
    publish_batch(client, f'{{"events": [{", ".join(items)}]}}')
    assert [one.waits_for for one in Delivery.objects.oldest_first()] == ["START", "TURN"]
    assert QueueGroup.objects.get().due_at == moment
