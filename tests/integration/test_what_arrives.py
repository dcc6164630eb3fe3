"""What an endpoint receives: bytes, headers, signature (behaviour 2.5, 2.11), and what the database keeps of it."""

import base64
import datetime as dt
import hmac
import os
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from standardwebhooks.webhooks import Webhook

from delivery.models import OPEN_SHELF, UNTIL_RELEASED, Delivery
from delivery.statuses import FINAL, LEGAL_CHANGES, UNFINISHED, DeliveryStatus
from subscriptions.models import Subscription
from tests.driving import Worker, publish_bodies, publish_numbered, wait_until_done
from tests.factories import event_type, subscriber, subscription
from tests.receiver import Receiver

TODAY = dt.datetime.now(dt.UTC).date()


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
    publish_bodies(wanted.event_type, b'"verified"', body)
    wait_until_done()
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
    publish_bodies(wanted.event_type, b"{}", headers=published)
    wait_until_done()
    (sent,) = receiver.log
    mine = {name: value for name, value in sent.headers.items() if name.startswith("x-") or name == "accept"}
    assert mine == {"x-all": "subscription", "x-two": "subscription", "x-one": "subscriber", "x-own": "publisher"}


def test_a_request_says_what_it_is_and_nothing_more(receiver: Receiver, worker: Worker) -> None:
    wanted = subscription(event_type=event_type("ABC.Create"), endpoint="PATCH:" + receiver.url("/a"))
    (accepted,) = publish_bodies(wanted.event_type, b"{}")
    wait_until_done()
    (sent,) = receiver.log
    known = {name: sent.headers[name] for name in sent.headers if name not in ("webhook-signature", "host")}
    timestamp = known.pop("webhook-timestamp")
    assert abs(int(timestamp) - dt.datetime.now(dt.UTC).timestamp()) < 60
    assert (sent.method, known) == (
        "PATCH",
        {
            "content-type": "application/json",
            "content-length": "2",
            "user-agent": "broker/0.1",
            "webhook-id": f"dlv_{sent.delivery_id}",
            "webhook-sequence": "1",
            "webhook-attempt": "1",
            "broker-event-type": "ABC.Create",
            "broker-message-id": str(accepted.id),
        },
    )


@pytest.fixture
def stored(storage: None) -> Subscription:
    wanted = subscription()
    publish_numbered(wanted.event_type, 1)
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
def test_the_database_keeps_what_is_unfinished_apart_from_what_is_final(
    stored: Subscription, status: DeliveryStatus
) -> None:
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
        "due_at": UNTIL_RELEASED if status == DeliveryStatus.HELD else None,
    }
