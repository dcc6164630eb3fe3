"""Volatile messages that get no place, or are lost with what had them: each is counted (behaviour 2.9)."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from structlog.testing import capture_logs

from broker_project.core.db import rows
from broker_project.core.keyring import keyring
from delivery.models import Delivery, Pace, VolatileCount, VolatileOutcome
from delivery.tasks import send_volatile
from delivery.volatile import counters, send_once
from delivery.volatile.envelope import PURPOSE, Envelope
from delivery.worker.settle_sql import LATE
from subscriptions.models import EventType, Subscription
from subscriptions.models.subscriptions import PausedBy
from tests import factories
from tests.clients import Answer
from tests.driving import retry_line_of, wait_until_done, working
from tests.publishing import publish
from tests.receiver import Receiver, hang, wait_until
from tests.volatile import VOLATILE, arguments_in, counted, redis_away, tasks, wait_until_answered, work

pytestmark = [pytest.mark.usefixtures("volatile"), pytest.mark.behaviour("2.9")]


@pytest.fixture
def shop(event_type: EventType, receiver: Receiver) -> Subscription:
    return factories.subscription(event_type=event_type, endpoint=receiver.url("/shop"))


def test_a_subscriber_that_hangs_leaves_the_others_their_places(
    client: Client, event_type: EventType, shop: Subscription, receiver: Receiver, settings: Any
) -> None:
    settings.VOLATILE_MAX_IN_FLIGHT = 4
    receiver.on("/hangs", hang)
    hanging = factories.subscription(event_type=event_type, endpoint=receiver.url("/hangs"))
    places = send_once.running_sender(reach=settings.REACH, under_way=4)._places
    publish(client, **VOLATILE)
    work()
    wait_until(lambda: receiver.of("/hangs") and not places._taken[shop.pk])
    publish(client, **VOLATILE)
    work()
    wait_until(lambda: len(receiver.of("/shop")) == 2)
    assert len(receiver.of("/hangs")) == 1
    assert counted(hanging) == {"accepted": 2, "dropped": 1, "lost": 1}


@pytest.mark.behaviour("1.4")
def test_a_rate_limit_leaves_no_room_for_more(
    client: Client, event_type: EventType, shop: Subscription, receiver: Receiver
) -> None:
    limited = factories.subscription(event_type=event_type, endpoint=receiver.url("/limited"), rate_limit="0.01")
    for _ in range(3):
        publish(client, **VOLATILE)
    work()
    wait_until_answered(receiver, "/shop", 3)
    assert counted(limited) == {"accepted": 3, "delivered": 1, "dropped": 2}
    Pace.objects.update(last_at=Now() - timedelta(seconds=101))
    publish(client, **VOLATILE)
    work()
    wait_until_answered(receiver, "/limited", 2)


@pytest.fixture
def limited(event_type: EventType, receiver: Receiver) -> Subscription:
    """Return a subscription that may be sent now, and then not for long."""
    limited = factories.subscription(event_type=event_type, endpoint=receiver.url("/limited"), rate_limit="0.01")
    Pace.objects.update(last_at=Now() - timedelta(seconds=100))
    return limited


def slot() -> datetime:
    """Return when the one subscription with a rate limit was sent something."""
    at = Pace.objects.get().last_at
    assert at
    return at


@pytest.mark.behaviour("1.4")
@pytest.mark.parametrize("was_tried", [False, True])
def test_the_slot_is_for_what_is_stored_and_waits_for_it(
    client: Client, limited: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, *, was_tried: bool
) -> None:
    monkeypatch.setattr(send_once, "TAKE", send_once.TAKE.replace(LATE, "interval '1 hour'"))  # however slow this is
    before = slot()
    publish(client, b'{"stored": true}')
    if was_tried:
        Delivery.objects.update(line=retry_line_of(limited.subscriber), due_at=Now(), attempts=1)
    publish(client, b'{"stored": false}', **VOLATILE)
    work()
    assert (counted(limited), slot()) == ({"accepted": 1, "dropped": 1}, before)
    with working():
        wait_until_done()
    assert receiver.bodies("/limited") == [b'{"stored": true}']


@pytest.mark.behaviour("1.4")
def test_where_nothing_stored_waits_a_slot_a_little_late_is_the_one_that_was_due(
    client: Client, limited: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_once, "TAKE", send_once.TAKE.replace(LATE, "interval '1 hour'"))
    before = slot()
    publish(client, **VOLATILE)
    work()
    wait_until_answered(receiver, "/limited")
    assert slot() == before + timedelta(seconds=100)


@pytest.mark.behaviour("1.4", "5.6")
def test_a_trial_keeps_its_slot(client: Client, limited: Subscription) -> None:
    paused = {"paused_since": Now(), "paused_by": PausedBy.POLICY, "paused_reason": "answered 503"}
    Subscription.objects.filter(pk=limited.pk).update(**paused, half_open=True)
    before = slot()
    publish(client, **VOLATILE)
    work()
    assert (counted(limited), slot()) == ({"accepted": 1, "skipped": 1}, before)


@pytest.mark.behaviour("1.4")
def test_what_comes_too_late_takes_no_slot(client: Client, limited: Subscription) -> None:
    before = slot()
    publish(client, **VOLATILE)
    (task,) = tasks()
    parcel_id, sealed = arguments_in(task)
    keys = keyring(PURPOSE)
    late = replace(Envelope.opened(parcel_id, sealed, keys), seconds=0.0)
    send_volatile(parcel_id, late.sealed(keys))
    assert (counted(limited)["expired"], slot()) == (1, before)


@pytest.mark.behaviour("1.4")
def test_what_gets_no_place_takes_no_slot(
    client: Client, shop: Subscription, limited: Subscription, receiver: Receiver, settings: Any
) -> None:
    settings.VOLATILE_MAX_IN_FLIGHT = 1
    receiver.on("/shop", hang)
    before = slot()
    publish(client, **VOLATILE)
    work()
    wait_until(lambda: receiver.of("/shop"))
    assert (counted(limited), slot()) == ({"accepted": 1, "dropped": 1}, before)


def test_what_waits_for_its_answer_when_a_worker_stops_is_lost(
    client: Client, shop: Subscription, receiver: Receiver
) -> None:
    receiver.on("/shop", hang)
    publish(client, **VOLATILE)
    work()
    wait_until(lambda: len(receiver.log) == 1)
    assert counted(shop) == {"accepted": 1, "lost": 1}


def test_a_worker_that_cannot_ask_whether_it_was_sent_does_not_send_it(
    client: Client, shop: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, **VOLATILE)
    (task,) = tasks()
    redis_away(monkeypatch)
    with capture_logs() as logs:
        send_volatile(*arguments_in(task))
    assert [one["event"] for one in logs] == ["volatile.not_sent"]
    assert (counted(shop), receiver.log) == ({"accepted": 1, "lost": 1}, [])


def test_what_a_process_took_with_it_is_seen_by_what_is_missing(client: Client, shop: Subscription) -> None:
    for _ in range(3):
        publish(client, **VOLATILE)
    assert len(tasks()) == 3  # as a worker takes them that is killed before it has counted
    send_once.stop()
    assert [one.unaccounted for one in VolatileCount.objects.order_by("subscription")] == [3, None]


def test_every_process_adds_to_the_same_counts(event_type: EventType) -> None:
    of = counters.VolatileTally(1_700_000_000 // 3600 * 3600, event_type.pk, None)
    processes = [counters.VolatileCounters() for _ in range(3)]
    for number, one in enumerate(processes, 1):
        one.start()
        one.count(of, VolatileOutcome.DELIVERED, number)
        one.count(of._replace(subscription_id=7), VolatileOutcome.LOST)
    for one in processes:
        one.stop()
    assert {*VolatileCount.objects.values_list("subscription", "delivered", "lost")} == {(None, 6, 0), (7, 0, 3)}


def test_what_the_database_did_not_take_is_counted_later(event_type: EventType) -> None:
    one = counters.VolatileCounters()
    of = counters.VolatileTally(1_700_000_000 // 3600 * 3600, event_type.pk, None)
    rows("ALTER TABLE delivery_volatilecount RENAME TO elsewhere")
    try:
        for _ in range(2):
            one.count(of, VolatileOutcome.DELIVERED)
            one.write()
    finally:
        rows("ALTER TABLE elsewhere RENAME TO delivery_volatilecount")
    one.write()
    one.write()
    assert [row.delivered for row in VolatileCount.objects.all()] == [2]


def test_its_counts_can_be_looked_at(admin: Client, event_type: EventType, shop: Subscription) -> None:
    one = VolatileCount.objects.create(hour=timezone.now(), event_type=event_type, subscription=shop, accepted=9)
    VolatileCount.objects.create(hour=timezone.now(), event_type=event_type, accepted=8)
    Subscription.objects.filter(pk=shop.pk).delete()
    page: Answer = admin.get("/admin/delivery/volatilecount/")
    assert f"{shop.pk}, deleted since" in page.content.decode()
    assert "all messages" in page.content.decode()
    assert admin.get(f"/admin/delivery/volatilecount/{one.pk}/change/").status_code == 200
