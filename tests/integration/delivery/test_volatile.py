"""Volatile messages: sent once, stored nowhere, counted when they are lost (contract 2.9)."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import orjson
import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from structlog.testing import capture_logs

from broker_project.core.db import rows
from broker_project.core.encryption import keyring
from broker_project.stack.load.receiver import Behaviour, Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery.api.sync_and_volatile import MAX_VOLATILE_BYTES
from delivery.dispatch import notify
from delivery.models import Delivery, Message, Pace, VolatileCount, VolatileOutcome
from delivery.tasks import send_volatile
from delivery.volatile import counters, publish_volatile, send_once
from delivery.volatile.publish_volatile import PURPOSE, Envelope
from delivery.worker.settle_sql import LATE
from subscriptions.credentials.tokens import key_of
from subscriptions.models import EventKind, EventType, Status, Subscription
from subscriptions.models.subscriptions import PausedBy
from subscriptions.payload_format import PayloadFormat
from tests.support import factories
from tests.support.api import EVENT, Answer, problem_of, publish
from tests.support.behaviours import close
from tests.support.broker import inactivate, retry_line_of, running_worker, wait_until_done
from tests.support.mailboxes import pulled_subscription
from tests.support.volatile import (
    VOLATILE_HEADERS,
    are_counts_complete,
    arguments_in,
    redis_away,
    run_tasks,
    stored,
    take_tasks,
    volatile_counts,
    wait_until_answered,
)

pytestmark = [pytest.mark.usefixtures("volatile"), pytest.mark.behaviour("2.9")]


@pytest.fixture
def shop(event_type: EventType, receiver: Receiver) -> Subscription:
    return factories.subscription(event_type=event_type, endpoint=receiver.url("/shop"))


def publish_and_send(
    client: Client, receiver: Receiver, *bodies: bytes, path: str = "/shop", requests: int = 0
) -> None:
    """Publish volatile messages, run their tasks and wait for the outcomes."""
    for body in bodies or (b"{}",):
        publish(client, body, **VOLATILE_HEADERS)
    run_tasks()
    wait_until_answered(receiver, path, requests or len(bodies) or 1)


@pytest.mark.behaviour("4.11")
def test_a_volatile_message_is_sent_once_and_not_stored(client: Client, shop: Subscription, receiver: Receiver) -> None:
    body = b'{ "n": 1.0 }'
    answered = publish(client, body, X_Team="blue", Cookie="session=1", **VOLATILE_HEADERS)
    told = {"id": None, "outcome": "ROUTED", "deliveries": 1, "durability": "volatile"}
    assert (answered.status_code, answered.json()) == (202, told)
    assert "Location" not in answered.headers
    assert run_tasks() == 1
    wait_until_answered(receiver, "/shop")

    (request,) = receiver.log
    names = {"webhook-sequence", "broker-message-id", "webhook-possible-duplicate", "cookie"}
    assert (request.body, names & request.headers.keys(), request.headers["x-team"]) == (body, set(), "blue")
    assert re.fullmatch(f"vol_[0-9a-f]{{32}}_{shop.pk}", request.headers["webhook-id"])
    assert (request.headers["broker-event-type"], request.headers["webhook-attempt"]) == (EVENT, "1")
    at = int(request.headers["webhook-timestamp"])
    assert abs(at - timezone.now().timestamp()) < 60
    signed = factories.signature(
        key_of(shop.signing_secret), webhook_id=request.headers["webhook-id"], timestamp=at, body=body
    )
    assert request.headers["webhook-signature"] == signed
    assert (stored(), run_tasks()) == (0, 0)
    assert (volatile_counts(shop), volatile_counts()) == ({"accepted": 1, "delivered": 1}, {"accepted": 1})
    assert {(row.hour.minute, row.hour.second, row.hour.microsecond) for row in VolatileCount.objects.all()} == {
        (0, 0, 0)
    }


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
def test_volatile_messages_are_not_retried(
    client: Client, shop: Subscription, receiver: Receiver, behaviour: Behaviour, outcome: str
) -> None:
    receiver.on("/shop", behaviour)
    publish_and_send(client, receiver)
    assert (run_tasks(), len(receiver.log)) == (0, 1)
    assert volatile_counts(shop) == {"accepted": 1, outcome: 1}


def test_a_repeated_task_is_sent_once(client: Client, shop: Subscription, receiver: Receiver) -> None:
    publish(client, **VOLATILE_HEADERS)
    (task,) = take_tasks()
    for _ in range(2):
        send_volatile(*arguments_in(task))
    wait_until_answered(receiver, "/shop")
    assert (len(receiver.log), volatile_counts(shop)) == (1, {"accepted": 1, "delivered": 1})


def test_volatile_messages_bypass_the_line(client: Client, shop: Subscription, receiver: Receiver) -> None:
    gate = receiver.gate("/shop")
    for _ in range(3):
        publish(client, **VOLATILE_HEADERS)
    run_tasks()
    wait_until(lambda: len(receiver.of("/shop")) == 3)
    assert receiver.max_at_once["/shop"] > 1
    gate.open()
    wait_until_answered(receiver, "/shop", 3)
    assert volatile_counts(shop) == {"accepted": 3, "delivered": 3}


def test_the_body_of_a_volatile_message_is_not_visible_in_its_task(client: Client, shop: Subscription) -> None:
    publish(client, b'{"card": "4711"}', **VOLATILE_HEADERS)
    (task,) = take_tasks()
    assert task["headers"]["argsrepr"] == f"('{arguments_in(task)[0]}',)"
    assert "4711" not in str(task["headers"])


@pytest.mark.behaviour("2.8")
@pytest.mark.parametrize(
    ("destination", "says", "paths"),
    [
        ("blue", {"outcome": "ROUTED", "deliveries": 1}, ["/second"]),
        ("default", {"outcome": "ROUTED", "deliveries": 2}, ["/other", "/second"]),
        (
            "nobody",
            {
                "outcome": "DEAD_LETTERED",
                "deliveries": 0,
                "detail": "There is no such subscriber or subscription: it is not delivered.",
            },
            [],
        ),
    ],
)
def test_a_volatile_message_goes_to_its_destination(
    client: Client, event_type: EventType, receiver: Receiver, destination: str, says: dict[str, Any], paths: list[str]
) -> None:
    blue = factories.subscriber("blue")
    factories.subscription(blue, event_type, receiver.url("/first"), position=2)
    factories.subscription(blue, event_type, receiver.url("/second"), position=1)
    factories.subscription(None, event_type, receiver.url("/other"))

    answered = publish(client, Broker_Destination=destination, **VOLATILE_HEADERS)
    assert answered.json() == {"id": None, "durability": "volatile", **says}
    run_tasks()
    wait_until(lambda: len(receiver.log) == len(paths))
    assert sorted(request.path for request in receiver.log) == paths


@pytest.mark.behaviour("2.4")
def test_an_unrouted_volatile_message_is_not_queued(client: Client, shop: Subscription) -> None:
    inactivate(shop)
    answered = publish(client, **VOLATILE_HEADERS)
    assert (answered.status_code, answered.json()["outcome"], take_tasks()) == (202, "UNROUTED", [])
    assert volatile_counts() == {"accepted": 1}


@pytest.mark.behaviour("3.6")
def test_filter_failures_counted(client: Client, event_type: EventType, shop: Subscription, receiver: Receiver) -> None:
    failing = factories.subscription(event_type=event_type, filter="$$->'Body'->'n' > '5'")
    assert publish(client, b'{"n": 1e999999}', **VOLATILE_HEADERS).json()["deliveries"] == 1
    run_tasks()
    wait_until_answered(receiver, "/shop")
    assert volatile_counts(failing) == {"accepted": 1, "filtered": 1}
    assert volatile_counts(shop) == {"accepted": 1, "delivered": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"status": Status.INACTIVE},
        {"paused_since": timezone.now(), "paused_by": PausedBy.HAND},
        {"script": "throw new Error('no')"},
        {"script": "$outheader = {'Host': 'elsewhere'}"},
    ],
)
def test_skipped_deliveries(client: Client, shop: Subscription, receiver: Receiver, change: dict[str, Any]) -> None:
    publish(client, **VOLATILE_HEADERS)
    Subscription.objects.filter(pk=shop.pk).update(**change)
    run_tasks()
    wait_until(are_counts_complete)
    assert (volatile_counts(shop), receiver.log) == ({"accepted": 1, "skipped": 1}, [])


@pytest.mark.behaviour("8.1")
def test_a_script_transforms_a_volatile_message(client: Client, shop: Subscription, receiver: Receiver) -> None:
    Subscription.objects.filter(pk=shop.pk).update(script="$outmessage = {n: $inmessage.n + 1}; $param = '/7'")
    publish_and_send(client, receiver, b'{"n": 1}', path="/shop/7")
    assert receiver.bodies("/shop/7") == [b'{"n":2}']


@pytest.mark.behaviour("2.12")
def test_a_cloud_event_can_be_volatile(client: Client, shop: Subscription, receiver: Receiver) -> None:
    attributes = {"ce_specversion": "1.0", "ce_id": "7", "ce_source": "/shop", "ce_type": EVENT}
    for _ in range(2):
        assert publish(client, b"[1]", **attributes, **VOLATILE_HEADERS).status_code == 202
    run_tasks()
    wait_until_answered(receiver, "/shop", 2)
    assert [request.headers["ce-id"] for request in receiver.log] == ["7", "7"]


@pytest.mark.behaviour("2.12")
def test_a_volatile_message_becomes_a_cloud_event(client: Client, shop: Subscription, receiver: Receiver) -> None:
    Subscription.objects.filter(pk=shop.pk).update(output=PayloadFormat.CLOUDEVENTS_STRUCTURED)
    publish_and_send(client, receiver, b"[1]")
    (request,) = receiver.log
    event = orjson.loads(request.body)
    assert (event["type"], event["data"], f"{event['id']}_{shop.pk}") == (EVENT, [1], request.headers["webhook-id"])


def test_a_hanging_subscriber_leaves_room(
    client: Client, event_type: EventType, shop: Subscription, receiver: Receiver, settings: Any
) -> None:
    settings.VOLATILE_MAX_IN_FLIGHT = 4
    receiver.on("/hangs", hang)
    hanging = factories.subscription(event_type=event_type, endpoint=receiver.url("/hangs"))
    in_flight = send_once.get_sender(egress=settings.EGRESS_POLICY, max_in_flight=4)._requests
    publish(client, **VOLATILE_HEADERS)
    run_tasks()
    wait_until(lambda: receiver.of("/hangs") and not in_flight._by_owner[shop.pk])
    publish(client, **VOLATILE_HEADERS)
    run_tasks()
    wait_until(lambda: len(receiver.of("/shop")) == 2)
    assert len(receiver.of("/hangs")) == 1
    assert volatile_counts(hanging) == {"accepted": 2, "dropped": 1, "lost": 1}


@pytest.mark.behaviour("1.4")
def test_a_rate_limit_applies(client: Client, event_type: EventType, shop: Subscription, receiver: Receiver) -> None:
    limited = factories.subscription(event_type=event_type, endpoint=receiver.url("/limited"), rate_limit="0.01")
    publish_and_send(client, receiver, *[b"{}"] * 3)
    assert volatile_counts(limited) == {"accepted": 3, "delivered": 1, "dropped": 2}
    Pace.objects.update(last_at=Now() - timedelta(seconds=101))
    publish_and_send(client, receiver, path="/limited", requests=2)
    Pace.objects.update(last_at=Now() + timedelta(hours=2))  # a clock was ahead (5.9)
    publish_and_send(client, receiver, path="/limited", requests=3)


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
def test_stored_deliveries_go_before_volatile_ones(
    client: Client, limited: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, *, was_tried: bool
) -> None:
    monkeypatch.setattr(send_once, "TAKE", send_once.TAKE.replace(LATE, "interval '1 hour'"))  # however slow this is
    before = slot()
    publish(client, b'{"stored": true}')
    if was_tried:
        Delivery.objects.update(line=retry_line_of(limited.subscriber), waits_for="RETRY", due_at=Now(), attempts=1)
    publish(client, b'{"stored": false}', **VOLATILE_HEADERS)
    run_tasks()
    assert (volatile_counts(limited), slot()) == ({"accepted": 1, "dropped": 1}, before)
    with running_worker():
        wait_until_done()
    assert receiver.bodies("/limited") == [b'{"stored": true}']


@pytest.mark.behaviour("1.4")
def test_a_late_message_uses_the_slot_that_was_due(
    client: Client, limited: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_once, "TAKE", send_once.TAKE.replace(LATE, "interval '1 hour'"))
    before = slot()
    publish_and_send(client, receiver, path="/limited")
    assert slot() == before + timedelta(seconds=100)


@pytest.mark.behaviour("1.4", "5.6")
def test_a_volatile_message_does_not_use_the_probes_time(client: Client, limited: Subscription) -> None:
    paused = {"paused_since": Now(), "paused_by": PausedBy.POLICY, "paused_reason": "answered 503"}
    Subscription.objects.filter(pk=limited.pk).update(**paused, half_open=True)
    before = slot()
    publish(client, **VOLATILE_HEADERS)
    run_tasks()
    assert (volatile_counts(limited), slot()) == ({"accepted": 1, "skipped": 1}, before)


@pytest.mark.behaviour("1.4")
def test_an_expired_message_does_not_count_towards_the_rate_limit(client: Client, limited: Subscription) -> None:
    before = slot()
    publish(client, **VOLATILE_HEADERS)
    (task,) = take_tasks()
    envelope_id, encrypted = arguments_in(task)
    keys = keyring(PURPOSE)
    late = replace(Envelope.decrypted(envelope_id, encrypted, keys), expires_ms=0)
    send_volatile(envelope_id, late.encrypted(keys))
    assert (volatile_counts(limited)["expired"], slot()) == (1, before)


@pytest.mark.behaviour("1.4")
def test_a_dropped_message_does_not_use_the_rate_limit(
    client: Client, shop: Subscription, limited: Subscription, receiver: Receiver, settings: Any
) -> None:
    settings.VOLATILE_MAX_IN_FLIGHT = 1
    receiver.on("/shop", hang)
    before = slot()
    publish(client, **VOLATILE_HEADERS)
    run_tasks()
    wait_until(lambda: receiver.of("/shop"))
    assert (volatile_counts(limited), slot()) == ({"accepted": 1, "dropped": 1}, before)


def test_without_redis_nothing_volatile_is_sent(
    client: Client, shop: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, **VOLATILE_HEADERS)
    (task,) = take_tasks()
    redis_away(monkeypatch)
    with capture_logs() as logs:
        send_volatile(*arguments_in(task))
    assert [one["event"] for one in logs] == ["volatile.not_sent"]
    assert (volatile_counts(shop), receiver.log) == ({"accepted": 1, "lost": 1}, [])


def test_messages_lost_with_a_process_are_unaccounted_for(client: Client, shop: Subscription) -> None:
    for _ in range(3):
        publish(client, **VOLATILE_HEADERS)
    assert len(take_tasks()) == 3  # as a worker takes them that is killed before it has counted
    send_once.stop()
    assert [one.unaccounted for one in VolatileCount.objects.order_by("subscription")] == [3, None]


def test_every_process_adds_to_the_same_counts(event_type: EventType) -> None:
    of = counters.VolatileTally(1_700_000_000 // 3600 * 3600, event_type.pk, None)
    processes = [counters.VolatileCounters() for _ in range(3)]
    for number, one in enumerate(processes, 1):
        one.start()
        for _ in range(number):
            one.count(of, VolatileOutcome.DELIVERED)
        one.count(of._replace(subscription_id=7), VolatileOutcome.LOST)
    for one in processes:
        one.stop()
    assert {*VolatileCount.objects.values_list("subscription", "delivered", "lost")} == {(None, 6, 0), (7, 0, 3)}


def test_counts_are_kept_while_the_database_fails(event_type: EventType) -> None:
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


def test_the_admin_shows_volatile_counts(admin: Client, event_type: EventType, shop: Subscription) -> None:
    one = VolatileCount.objects.create(hour=timezone.now(), event_type=event_type, subscription=shop, accepted=9)
    VolatileCount.objects.create(hour=timezone.now(), event_type=event_type, accepted=8)
    Subscription.objects.filter(pk=shop.pk).delete()
    page: Answer = admin.get("/admin/delivery/volatilecount/")
    assert f"{shop.pk}, deleted since" in page.content.decode()
    assert "all messages" in page.content.decode()
    assert admin.get(f"/admin/delivery/volatilecount/{one.pk}/change/").status_code == 200


@pytest.mark.behaviour("2.6")
@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({"Broker_Durability": "Volatile"}, "'guaranteed'"),
        ({"Idempotency_Key": "order-1", **VOLATILE_HEADERS}, "Idempotency-Key"),
        ({"Broker_Not_Before": "2001-01-01T00:00:00Z", **VOLATILE_HEADERS}, "Broker-Not-Before"),
        ({"body": b'"%s"' % (b"x" * (MAX_VOLATILE_BYTES - 1)), **VOLATILE_HEADERS}, "65537"),
        ({"event": "Shop.Job", **VOLATILE_HEADERS}, "QUEUE"),
        ({"event": "Shop.Call", **VOLATILE_HEADERS}, "Broker-Durability"),
    ],
)
def test_unsuitable_messages_are_refused(
    client: Client, shop: Subscription, receiver: Receiver, sent: dict[str, Any], named: str
) -> None:
    factories.event_type("Shop.Job", EventKind.QUEUE)
    factories.event_type("Shop.Call", EventKind.SYNC)
    answered = publish(client, **sent)
    assert (problem_of(answered), named in answered.json()["detail"]) == ((400, "invalid_metadata"), True)
    assert (take_tasks(), stored(), receiver.log) == ([], 0, [])


def test_a_body_of_64_kib_can_be_volatile(client: Client, shop: Subscription, receiver: Receiver) -> None:
    body = b'"%s"' % (b"x" * (MAX_VOLATILE_BYTES - 2))
    assert publish(client, body, **VOLATILE_HEADERS).status_code == 202
    run_tasks()
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
    assert (problem_of(answered), "one by one" in answered.json()["detail"]) == ((400, "invalid_metadata"), True)
    assert (take_tasks(), stored()) == ([], 0)


def test_guaranteed_is_the_default_durability(client: Client, shop: Subscription) -> None:
    answered = publish(client, Broker_Durability="guaranteed")
    assert ("durability" in answered.json(), Message.objects.get().pk) == (False, answered.json()["id"])


@pytest.mark.behaviour("9.1")
def test_volatile_messages_to_mailboxes_are_refused(client: Client, shop: Subscription, receiver: Receiver) -> None:
    mailbox = pulled_subscription(event_type=shop.event_type)
    assert problem_of(publish(client, **VOLATILE_HEADERS)) == (400, "volatile_pulled")
    assert (take_tasks(), stored(), volatile_counts(), receiver.log) == ([], 0, {}, [])
    Subscription.objects.filter(pk=mailbox.pk).update(header_filter_string="others")
    assert publish(client, **VOLATILE_HEADERS).status_code == 202


@pytest.mark.behaviour("2.8", "9.1")
def test_a_destination_ignores_other_mailboxes(client: Client, shop: Subscription, receiver: Receiver) -> None:
    mailbox = pulled_subscription(event_type=shop.event_type)
    taken = publish(client, Broker_Destination=shop.subscriber.name, **VOLATILE_HEADERS)
    run_tasks()
    wait_until_answered(receiver, "/shop")
    refused = publish(client, Broker_Destination=mailbox.subscriber.name, **VOLATILE_HEADERS)
    assert (taken.status_code, receiver.bodies("/shop")) == (202, [b"{}"])
    assert (problem_of(refused), stored()) == ((400, "volatile_pulled"), 0)


@pytest.mark.behaviour("2.7")
def test_volatile_messages_may_become_as_many_deliveries_as_stored_ones(
    client: Client, shop: Subscription, settings: Any
) -> None:
    factories.subscription(event_type=shop.event_type)
    settings.MAX_DELIVERIES = 1
    refused, guaranteed = publish(client, **VOLATILE_HEADERS), publish(client)
    assert (problem_of(refused), refused.json()) == ((413, "too_many_deliveries"), guaranteed.json())
    assert (take_tasks(), volatile_counts()) == ([], {})
    settings.MAX_DELIVERIES = 2
    assert publish(client, **VOLATILE_HEADERS).json()["deliveries"] == 2


def queue_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_volatile, "MAX_WAITING", 1)
    notify.redis_client().lpush(notify.VOLATILE, "{}")


def queue_full_of_large_envelopes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let as many messages wait as take 250 MB if each, as the next one, is for 100,000 subscriptions."""
    make, many = publish_volatile.envelope_of, [*range(10**7, 10**7 + 100_000)]
    monkeypatch.setattr(publish_volatile, "envelope_of", lambda message, _, **terms: make(message, many, **terms))
    notify.redis_client().lpush(notify.VOLATILE, *["{}"] * 200)


@pytest.mark.parametrize("obstacle", [redis_away, queue_full, queue_full_of_large_envelopes])
def test_a_message_that_cannot_be_queued_is_refused_and_not_counted(
    client: Client, shop: Subscription, monkeypatch: pytest.MonkeyPatch, obstacle: Callable[[pytest.MonkeyPatch], None]
) -> None:
    obstacle(monkeypatch)
    answered = publish(client, **VOLATILE_HEADERS)
    assert (problem_of(answered), answered.headers["Retry-After"]) == ((503, "volatile_unavailable"), "2")
    assert (volatile_counts(shop), volatile_counts(), stored()) == ({}, {}, 0)
