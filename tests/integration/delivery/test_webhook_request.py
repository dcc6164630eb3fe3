"""What an endpoint receives, what is recorded of it, and how policies and scripts are loaded."""

import base64
import datetime as dt
import hmac
import os
from datetime import datetime
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from standardwebhooks.webhooks import Webhook

from broker_project.stack.load.receiver import Receiver, answer
from delivery.models import OPEN_SHELF, Delivery
from delivery.retry import TEAMFORGE_POLICY, CompiledRetryPolicy, policy_of
from delivery.statuses import FINAL, LEGAL_CHANGES, UNFINISHED, DeliveryStatus
from delivery.webhook import destination
from delivery.webhook.destination import destinations_of
from subscriptions import models
from subscriptions.models import Subscription
from subscriptions.payload_format import PayloadFormat
from subscriptions.retry_policies import PRESETS
from tests.support import broker
from tests.support.api import client_of
from tests.support.behaviours import reset
from tests.support.broker import Worker
from tests.support.factories import event_type, retry_policy, subscriber, subscription

TODAY = dt.datetime.now(dt.UTC).date()

pytestmark = pytest.mark.django_db


@pytest.mark.behaviour("2.5")
@pytest.mark.parametrize(
    "body",
    [
        b'{"b": 1, "a":  2.50, "big": 123456789012345678901234567890, "a": 3}',
        b"",
        b"\x00\xff\xfe not text",
        os.urandom(100_000),
    ],
    ids=["JSON", "empty", "bytes", "large"],
)
def test_the_bytes_arrive_as_published_and_signed(receiver: Receiver, worker: Worker, body: bytes) -> None:
    secret = "whsec_" + base64.b64encode(b"k" * 32).decode()
    wanted = subscription(endpoint=receiver.url("/a"), signing_secret=secret)
    broker.publish_bodies(wanted.event_type, b'"verified"', body)
    broker.wait_until_done()
    verified, sent = receiver.log
    assert (Webhook(secret).verify(verified.body, dict(verified.headers)), sent.body) == ("verified", body)
    signed = f"{sent.headers['webhook-id']}.{sent.headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"k" * 32, signed, "sha256")).decode()
    assert sent.headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.behaviour("2.11", "4.15")
def test_of_equal_headers_the_nearest_to_the_endpoint_wins(receiver: Receiver, worker: Worker) -> None:
    layers: list[dict[str, Any]] = [
        {"X-All": "subscriber", "X-Two": "subscriber", "X-One": "subscriber"},
        {"x-all": "subscription", "x-two": "subscription"},
    ]
    wanted = subscription(subscriber(headers=layers[0]), endpoint=receiver.url("/a"), headers=layers[1])
    published = [("X-All", "publisher"), ("X-One", "publisher"), ("X-Own", "publisher"), ("Accept", "not forwarded")]
    broker.publish_bodies(wanted.event_type, b"{}", headers=published)
    broker.wait_until_done()
    (sent,) = receiver.log
    mine = {name: value for name, value in sent.headers.items() if name.startswith("x-") or name == "accept"}
    assert mine == {"x-all": "subscription", "x-two": "subscription", "x-one": "subscriber", "x-own": "publisher"}


def test_a_request_has_the_documented_headers_only(receiver: Receiver, worker: Worker) -> None:
    wanted = subscription(event_type=event_type("ABC.Create"), endpoint="PATCH:" + receiver.url("/a"))
    (accepted,) = broker.publish_bodies(wanted.event_type, b"{}")
    broker.wait_until_done()
    (sent,) = receiver.log
    known = {name: sent.headers[name] for name in sent.headers if name not in ("webhook-signature", "host")}
    timestamp = known.pop("webhook-timestamp")
    assert abs(int(timestamp) - dt.datetime.now(dt.UTC).timestamp()) < 60
    named = {"webhook-id": f"dlv_{sent.delivery_id}", "webhook-sequence": "1", "webhook-attempt": "1"}
    about = {"broker-event-type": "ABC.Create", "broker-message-id": str(accepted.id)}
    content = {"content-type": "application/json", "content-length": "2", "user-agent": "broker/0.1"}
    assert (sent.method, known) == ("PATCH", {**content, **named, **about})


@pytest.fixture
def stored(storage: None) -> Subscription:
    wanted = subscription()
    broker.publish_numbered(wanted.event_type, 1)
    return wanted


def change(**fields: Any) -> None:
    with transaction.atomic():
        Delivery.objects.update(**fields)


@pytest.mark.behaviour("10.1", "10.2")
def test_the_database_refuses_an_unknown_status(stored: Subscription) -> None:
    for shelf in (OPEN_SHELF, TODAY):
        with pytest.raises(IntegrityError, match="delivery_open_or_filed"):
            change(status="NONSENSE", closed_on=shelf, finished_at=dt.datetime.now(dt.UTC))


@pytest.mark.behaviour("10.1")
@pytest.mark.parametrize("status", sorted(DeliveryStatus))
def test_open_and_final_deliveries_are_apart_in_storage(stored: Subscription, status: DeliveryStatus) -> None:
    right, wrong = (OPEN_SHELF, TODAY) if status in UNFINISHED else (TODAY, OPEN_SHELF)
    if status != DeliveryStatus.IN_FLIGHT:
        change(status=DeliveryStatus.IN_FLIGHT)  # from where every other one is legal
    with pytest.raises(IntegrityError, match="delivery_open_or_filed"):
        change(status=status, closed_on=wrong, finished_at=dt.datetime.now(dt.UTC))
    change(**{"status": status, **shelf_of(status), "closed_on": right, "finished_at": dt.datetime.now(dt.UTC)})
    assert Delivery.objects.get().status == status
    assert Delivery.objects.final().exists() == (status in FINAL)


@pytest.mark.behaviour("10.2")
@pytest.mark.parametrize("old", sorted(DeliveryStatus))
def test_the_database_refuses_a_change_that_is_not_legal(stored: Subscription, old: DeliveryStatus) -> None:
    if old != DeliveryStatus.PENDING:
        change(status=DeliveryStatus.IN_FLIGHT)
        change(status=old, **shelf_of(old))
    for new in sorted(frozenset(DeliveryStatus) - LEGAL_CHANGES[old] - {old}):
        with pytest.raises(IntegrityError, match="no legal change"):
            change(status=new, **shelf_of(new))


def shelf_of(status: DeliveryStatus) -> dict[str, Any]:
    return {
        "closed_on": OPEN_SHELF if status in UNFINISHED else TODAY,
        "finished_at": None if status in UNFINISHED else dt.datetime.now(dt.UTC),
        "waits_for": "RELEASE" if status == DeliveryStatus.HELD else "TURN",
    }


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription that gives up after the second retry."""
    terms = {"on_server_error": "RETRY_LANE", "on_no_answer": "RETRY_LANE"}
    policy = retry_policy(**terms, max_retries=2, on_exhausted="FAIL")
    return subscription(endpoint=receiver.url("/a"), retry_policy=policy)


def history_of(delivery: Delivery) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = client_of().get(f"/api/v1/deliveries/{delivery.pk}").json()["history"]
    return history


@pytest.mark.behaviour("5.2")
def test_each_failure_has_its_number_time_answer_and_duration(receiver: Receiver, wanted: Subscription) -> None:
    receiver.on("/a", answer(500, b"no room", X_Shelf="7"), reset, answer(599, b"still none"))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.cut_pauses_until_done()
    delivery = Delivery.objects.get()
    history = history_of(delivery)
    assert (delivery.status, delivery.attempts) == ("FAILED", 3)
    told = [(one["number"], one["status_code"], one["answer_excerpt"]) for one in history]
    assert told == [(1, 500, "no room"), (2, None, ""), (3, 599, "still none")]
    assert [bool(one["error"]) for one in history] == [False, True, False]
    assert "X-Shelf: 7" in history[0]["answer_headers"]
    started = [datetime.fromisoformat(one["started_at"]) for one in history]
    assert started == sorted(started)
    assert delivery.created_at <= started[0]
    assert min(one["duration_ms"] for one in history) >= 0


@pytest.mark.behaviour("5.2", "5.8")
def test_resubmitted_deliveries_are_marked_and_retried_ones_are_not(receiver: Receiver, wanted: Subscription) -> None:
    receiver.on("/a", answer(404), answer(500), answer())
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.cut_pauses_until_done()
        rejected = Delivery.objects.get()
        answered = client_of().post(f"/api/v1/deliveries/{rejected.pk}/resubmit", {})
        broker.cut_pauses_until_done()
    again = Delivery.objects.get(resubmit_of=rejected.pk)
    assert (answered.status_code, answered.json()["id"], again.status) == (201, again.pk, "DELIVERED")
    assert [(one["status_code"], one["manual"]) for one in history_of(rejected)] == [(404, False)]
    assert [(one["status_code"], one["manual"]) for one in history_of(again)] == [(500, True), (200, False)]


def policy_followed(by: Subscription) -> CompiledRetryPolicy:
    return destinations_of(dict.fromkeys([by.pk]))[by.pk].policy


def test_the_default_policy_applies_without_another() -> None:
    assert policy_followed(subscription()) is TEAMFORGE_POLICY


@pytest.mark.parametrize("name", PRESETS)
def test_a_stored_policy_is_read_back(name: str) -> None:
    preset = models.RetryPolicy.objects.get(name=name)
    assert policy_followed(subscription(retry_policy=preset)) is policy_of(PRESETS[name])


def test_a_changed_policy_is_read_again() -> None:
    policy = retry_policy(initial_delay_seconds=3.0)
    follower = subscription(retry_policy=policy)
    config_version = destinations_of(dict.fromkeys([follower.pk]))[follower.pk].config_version
    for initial_delay_seconds in (4.0, 5.0):
        models.RetryPolicy.objects.filter(pk=policy.pk).update(initial_delay_seconds=initial_delay_seconds)
        now = destinations_of(dict.fromkeys([follower.pk]))[follower.pk]
        assert now.policy.terms
        assert now.policy.terms.initial_delay_seconds == initial_delay_seconds
        assert now.config_version > config_version, "a page that was read before is not sent any more"
        config_version = now.config_version


def test_a_policy_is_read_once_for_all_that_follow_it() -> None:
    policy = retry_policy(initial_delay_seconds=7.0)
    followers = [subscription(retry_policy=policy).pk for _ in range(3)]
    first = destinations_of(dict.fromkeys(followers))
    assert len({id(one.policy) for one in first.values()}) == 1
    again = destinations_of(dict.fromkeys(followers))
    assert all(again[number] is first[number] for number in followers), "the same ones: what is known of them is kept"


def test_a_destination_has_rate_limit_and_payload_format() -> None:
    limited = subscription(rate_limit=4.0, output=PayloadFormat.CLOUDEVENTS_BINARY)
    found = destinations_of(dict.fromkeys([limited.pk]))[limited.pk]
    assert (found.spacing, found.output, found.half_open) == (0.25, PayloadFormat.CLOUDEVENTS_BINARY, False)


def test_a_paused_subscription_has_a_destination_only_if_half_open() -> None:
    paused = subscription()
    rows = Subscription.objects.filter(pk=paused.pk)
    rows.update(paused_since="2026-11-20T12:00Z", paused_by="POLICY")
    assert destinations_of(dict.fromkeys([paused.pk])) == {}
    rows.update(half_open=True)
    assert destinations_of(dict.fromkeys([paused.pk]))[paused.pk].half_open


def scripted(count: int, script: str) -> list[int]:
    """Return the ids of new subscriptions that have the script."""
    ids = [subscription().pk for _ in range(count)]
    Subscription.objects.filter(pk__in=ids).update(script=script)
    return ids


def test_a_script_is_read_once_and_shared() -> None:
    plain, ids = subscription().pk, scripted(3, "// " + "x" * 60_000)
    first = destinations_of(dict.fromkeys([plain, *ids]))
    assert {number: bool(one.script) for number, one in first.items()} == {plain: False} | dict.fromkeys(ids, True)
    assert len({id(first[number].script) for number in ids}) == 1
    again = destinations_of(dict.fromkeys([plain, *ids]))
    assert all(again[number] is first[number] for number in again), "the same ones: what is known of them is kept"


def test_a_changed_script_is_read_again() -> None:
    (number,) = scripted(1, "1")
    for script in ("2", "", "3"):
        destinations_of(dict.fromkeys([number]))
        Subscription.objects.filter(pk=number).update(script=script)
        assert destinations_of(dict.fromkeys([number]))[number].script == script


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "SCRIPT_CHARACTERS", 1000)
    monkeypatch.setattr(destination, "_scripts", destination._Scripts())
    ids = scripted(30, "x" * 100)
    for _ in range(2):
        found = destinations_of(dict.fromkeys(ids))
        assert {len(one.script) for one in found.values()} == {100}
        assert len(destination._scripts._kept) == 10
    assert destinations_of(dict.fromkeys([0])) == {}
