"""A delayed message is not sent before its time, and then from the place that it was published at."""

import datetime as dt
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from delivery.dispatch import notify
from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import begin_delayed, lines_with_due_work
from delivery.maintenance.expiry import expire_overdue
from delivery.models import UNTIL_DUE, UNTIL_RELEASED, Delivery, Message, QueueGroup
from delivery.operations import release_one
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.driving import hand_of, line_of, publish_bodies, statuses, wait_until_done, working
from tests.publishing import EVENT, batch, problem, publish
from tests.receiver import Receiver, wait_until

pytestmark = pytest.mark.django_db

BIG = "$$->'Body'->'n' > '5'"
UNREADABLE = b'{"n": 1e999999}'
"""A number that no filter can compare, and so nobody can tell whether it is big."""


@pytest.fixture
def wanting(event_type: EventType) -> Subscription:
    return factories.subscription(event_type=event_type)


def tomorrow() -> dt.datetime:
    return timezone.now() + dt.timedelta(days=1)


def end_delays() -> None:
    """Let the time of all that is delayed have come."""
    Delivery.objects.filter(not_before__isnull=False).update(not_before=Now() - dt.timedelta(milliseconds=1))


def sent_next(wanting: Subscription) -> list[int]:
    """Return the deliveries that the line would send, in its order."""
    (taken,) = claim([line_of(wanting.subscriber).pk], worker="w")
    return [one.id for one in hand_of(taken)]


@pytest.mark.behaviour("2.13")
def test_until_its_time_it_is_not_sent_and_holds_nobody_up(event_type: EventType, wanting: Subscription) -> None:
    publish_bodies(event_type, b"0", not_before=tomorrow())
    assert lines_with_due_work() == []
    publish_bodies(event_type, b"1")
    delayed, fresh = Delivery.objects.oldest_first()

    assert begin_delayed() == 0
    assert sent_next(wanting) == [fresh.pk]
    assert delayed.due_at == UNTIL_DUE
    assert delayed.next_try_at == delayed.not_before


@pytest.mark.behaviour("2.13", "4.10")
def test_when_its_time_has_come_it_takes_the_place_that_it_was_published_at(
    event_type: EventType, wanting: Subscription
) -> None:
    for body, not_before in ((b"0", None), (b"1", tomorrow()), (b"2", None), (b"3", tomorrow())):
        publish_bodies(event_type, body, not_before=not_before)
    ids = [one.pk for one in Delivery.objects.oldest_first()]
    Delivery.objects.filter(pk=ids[1]).update(not_before=Now())

    assert (begin_delayed(), begin_delayed()) == (1, 0)
    assert sent_next(wanting) == ids[:3]


@pytest.mark.behaviour("2.13")
@pytest.mark.django_db(transaction=True)
def test_lines_are_woken_for_what_may_now_be_sent(storage: None, event_type: EventType, wanting: Subscription) -> None:
    publish_bodies(event_type, b"0", not_before=tomorrow())
    notify.asleep(notify.TOPIC, notify.woken_lines(notify.TOPIC))
    end_delays()

    begin_delayed()

    assert notify.woken_lines(notify.TOPIC) == [line_of(wanting.subscriber).pk]


@pytest.mark.behaviour("2.13", "11.3")
@pytest.mark.django_db(transaction=True)
def test_what_is_delayed_outlives_its_workers(storage: None, receiver: Receiver) -> None:
    wanting = factories.subscription(endpoint=receiver.url("/hook"))
    with working("before"):
        publish_bodies(wanting.event_type, b"0", not_before=tomorrow())
        publish_bodies(wanting.event_type, b"1")
        wait_until(lambda: statuses(wanting) == ["PENDING", "DELIVERED"])
    end_delays()
    with working("after"):
        wait_until_done()

    assert receiver.bodies("/hook") == [b"1", b"0"]


@pytest.mark.behaviour("2.13")
@pytest.mark.parametrize(
    ("said", "is_delayed"),
    [("2026-01-01T00:00:00Z", False), ("Thu, 01 Jan 2026 00:00:00 GMT", False), ("tomorrow", True)],
)
def test_a_publish_says_so_in_a_header_or_a_field(
    client: Client, wanting: Subscription, said: str, is_delayed: bool
) -> None:
    moment = tomorrow().isoformat() if said == "tomorrow" else said
    publish(client, Broker_Not_Before=moment)
    batch(client, f'{{"events": [{{"event": "{EVENT}", "body": {{}}, "not_before": "{moment}"}}]}}')

    assert [one.due_at == UNTIL_DUE for one in Delivery.objects.all()] == [is_delayed] * 2
    assert [one.due_at is None for one in Delivery.objects.all()] == [not is_delayed] * 2
    one, other = Message.objects.all()
    assert one.not_before == other.not_before is not None


@pytest.mark.parametrize("said", ["tomorrow", "2026-12-24", "2999-12-24T18:00:00Z"])
def test_what_is_no_time_is_refused(client: Client, wanting: Subscription, said: str) -> None:
    assert problem(publish(client, Broker_Not_Before=said)) == (400, "invalid_metadata")
    refused = batch(client, f'{{"events": [{{"event": "{EVENT}", "body": {{}}, "not_before": "{said}"}}]}}')
    assert refused.json()["results"][0]["code"] == "invalid_metadata"


@pytest.mark.behaviour("2.13", "3.6")
def test_released_before_its_time_it_waits_for_that(event_type: EventType) -> None:
    holding = factories.subscription(event_type=event_type, filter=BIG)
    publish_bodies(event_type, UNREADABLE, not_before=tomorrow())
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.due_at) == ("HELD", UNTIL_RELEASED)

    release_one(delivery.pk)
    assert lines_with_due_work() == []
    end_delays()
    begin_delayed()
    assert sent_next(holding) == [delivery.pk]


@pytest.mark.behaviour("2.13", "2.10")
def test_a_time_to_live_that_ends_before_it_may_be_sent_is_refused(client: Client, event_type: EventType) -> None:
    moment = tomorrow().isoformat()
    item = f'{{"event": "{EVENT}", "body": {{}}, "not_before": "{moment}", "ttl": "1h"}}'
    assert problem(publish(client, Broker_Not_Before=moment, Broker_TTL="1h")) == (400, "invalid_metadata")
    assert problem(batch(client, f'{{"events": [{item}]}}')) == (422, "invalid_items")
    assert Message.objects.count() == 0


@pytest.mark.behaviour("2.13", "2.10")
def test_it_may_expire_before_its_time(event_type: EventType, wanting: Subscription) -> None:
    publish_bodies(event_type, b"0", not_before=tomorrow(), ttl=172_800.0)
    Delivery.objects.update(expires_at=Now())

    assert (expire_overdue(), statuses(wanting)) == (1, ["EXPIRED"])


@pytest.mark.behaviour("2.13", "6.2")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("body", [b'{"n": 6}', UNREADABLE])
def test_a_queue_message_is_not_sent_before_its_time(storage: None, receiver: Receiver, body: bytes) -> None:
    queue = factories.event_type(EVENT, EventKind.QUEUE)
    alike = [factories.subscription(event_type=queue, filter=BIG, endpoint=receiver.url("/hook")) for _ in range(2)]
    moment = tomorrow()
    publish_bodies(queue, body, not_before=moment)
    if body is UNREADABLE:
        assert QueueGroup.objects.get().due_at == UNTIL_RELEASED
        release_one(Delivery.objects.oldest_first()[0].pk)
    group = QueueGroup.objects.get()
    assert (group.due_at, {one.due_at for one in Delivery.objects.all()}) == (moment, {None})
    assert lines_with_due_work() == []

    QueueGroup.objects.update(due_at=Now())
    with working():
        wait_until_done()

    assert sorted(status for one in alike for status in statuses(one)) == ["DELIVERED", "REDUNDANT"]


@pytest.mark.behaviour("2.13", "6.2")
def test_topic_and_queue_messages_of_one_batch_wait_each_in_its_way(client: Client, wanting: Subscription) -> None:
    queue = factories.event_type("Queued", EventKind.QUEUE)
    factories.subscription(event_type=queue)
    moment = tomorrow()
    items: list[Any] = [
        f'{{"event": "{name}", "body": {{}}, "not_before": "{moment.isoformat()}"}}' for name in (EVENT, "Queued")
    ]
    batch(client, f'{{"events": [{", ".join(items)}]}}')

    assert [one.due_at for one in Delivery.objects.oldest_first()] == [UNTIL_DUE, None]
    assert QueueGroup.objects.get().due_at == moment
