"""SYNC: every call is recorded, and no record stands in the way of an answer (behaviour 7.2, 10.3)."""

import threading
import time
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from structlog.testing import capture_logs

from delivery.models import Attempt, Delivery, Message
from delivery.sync import record
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.asking import PATH, in_threads, recorded, said_of
from tests.publishing import EVENT, publish
from tests.receiver import PATIENCE, Receiver, answer, wait_until

pytestmark = pytest.mark.usefixtures("calls")


@pytest.fixture(autouse=True)
def event_type(calls: None) -> EventType:
    return factories.event_type(EVENT, EventKind.SYNC)


@pytest.mark.behaviour("7.2")
@pytest.mark.behaviour("10.3")
def test_a_call_is_recorded_whole(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(PATH, answer(409, b"x" * 2000, Content_Type="text/plain"))

    publish(client, b'{"n": 1}', X_Tenant="blue", Filter_String="eu")

    message, delivery, attempt = Message.objects.get(), Delivery.objects.get(), Attempt.objects.get()
    assert (bytes(message.body), message.size, message.filter_string) == (b'{"n": 1}', 8, "eu")
    assert (message.deliveries_count, dict(message.headers)["X-Tenant"]) == (1, "blue")
    assert message.publisher
    assert message.publisher.name == "shop"
    assert (delivery.subscription_id, delivery.line_id, delivery.sequence) == (asked.pk, None, None)
    assert (delivery.message_id, delivery.size, delivery.closed_on.year) == (message.pk, 8, message.published_at.year)
    assert (attempt.delivery_id, attempt.number, attempt.status_code, attempt.error) == (delivery.pk, 1, 409, "")
    assert bytes(attempt.answer_excerpt) == b"x" * 1024
    assert bytes(attempt.answer_headers).startswith(b"HTTP/1.1 409 ")
    assert message.published_at == attempt.started_at <= (delivery.finished_at or attempt.started_at)


@pytest.mark.behaviour("7.2")
def test_an_answer_outlives_a_record_that_fails(
    client: Client, asked: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "PATIENT_SECONDS", 0.5)
    receiver.on(PATH, answer(201, b"done"))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE delivery_attempt ADD CONSTRAINT no CHECK (number < 0)")
    try:
        with capture_logs() as logs:
            answered = publish(client)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE delivery_attempt DROP CONSTRAINT no")
    assert said_of(answered) == (201, b"done", "answered")
    assert "Broker-Message-Id" not in answered
    assert "sync.not_recorded" in [entry["event"] for entry in logs if entry["log_level"] == "error"]
    assert (len(receiver.log), Message.objects.count()) == (1, 0)


@pytest.mark.behaviour("7.2")
def test_a_database_that_is_back_soon_has_the_record(
    client: Client, asked: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "PATIENT_SECONDS", PATIENCE)
    gate = receiver.gate(PATH, answer(200))
    calls: list[Any] = []
    thread = threading.Thread(target=lambda: calls.extend(in_threads(1, lambda: publish(client))))
    with connection.cursor() as cursor:
        thread.start()
        wait_until(lambda: len(receiver.of(PATH)) == 1)
        cursor.execute("ALTER TABLE delivery_attempt ADD CONSTRAINT no CHECK (number < 0)")
        gate.open()
        time.sleep(2 * record.RETRY_SECONDS)
        cursor.execute("ALTER TABLE delivery_attempt DROP CONSTRAINT no")
    thread.join()
    assert said_of(calls[0]) == (200, b"", "answered")
    assert [status for _, status, _, _ in recorded()] == ["DELIVERED"]
