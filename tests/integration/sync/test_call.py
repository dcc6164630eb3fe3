"""SYNC: what is recorded and shown of calls, and what ends them (contract 7.2, 10.3)."""

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from django.test import Client
from structlog.testing import capture_logs

from broker_project.core.db import rows
from broker_project.stack.load.receiver import Receiver, answer, hang
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.models import Attempt, Delivery, Message
from delivery.sync import call, caller
from delivery.sync.caller import MAX_WAITING, MAX_WAITING_PER_OWNER
from subscriptions.models import EventKind, EventType, Subscription
from tests.support import factories
from tests.support.api import (
    FAILING_BODY,
    FAILING_FILTER,
    SYNC_PATH,
    client_of,
    problem_of,
    publish,
    recorded_calls,
    said_of,
)
from tests.support.database import another_connection, do_and_disconnect, execute, in_parallel


@pytest.mark.behaviour("7.2", "10.3")
def test_a_call_is_recorded(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(SYNC_PATH, answer(409, b"x" * 2000, Content_Type="text/plain"))

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
def test_the_answer_outlives_a_failed_record(
    client: Client, asked: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "RECORD_SECONDS", 0.5)
    receiver.on(SYNC_PATH, answer(201, b"done"))
    execute("ALTER TABLE delivery_attempt ADD CONSTRAINT no CHECK (number < 0)")
    try:
        with capture_logs() as logs:
            answered = publish(client)
    finally:
        execute("ALTER TABLE delivery_attempt DROP CONSTRAINT no")
    assert said_of(answered) == (201, b"done", "answered")
    assert "Broker-Message-Id" not in answered
    assert "sync.not_recorded" in [entry["event"] for entry in logs if entry["log_level"] == "error"]
    assert (len(receiver.log), Message.objects.count()) == (1, 0)


@pytest.mark.behaviour("7.2")
def test_calls_are_recorded_once_the_database_is_back(
    client: Client, asked: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "RECORD_SECONDS", PATIENCE_SECONDS)
    gate = receiver.gate(SYNC_PATH, answer(200))
    with capture_logs() as logs, ThreadPoolExecutor(1) as threads:
        asking = threads.submit(do_and_disconnect, partial(publish, client))
        wait_until(lambda: len(receiver.of(SYNC_PATH)) == 1)
        execute("ALTER TABLE delivery_attempt ADD CONSTRAINT no CHECK (number < 0)")
        gate.open()
        wait_until(lambda: "sync.record_failed" in [entry["event"] for entry in logs])
        execute("ALTER TABLE delivery_attempt DROP CONSTRAINT no")
    assert said_of(asking.result()) == (200, b"", "answered")
    assert [status for _, status, _, _ in recorded_calls()] == ["DELIVERED"]


def test_a_publisher_and_a_subscriber_see_the_call(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(SYNC_PATH, answer(404))
    message_id = publish(client)["Broker-Message-Id"]

    message = client.get(f"/api/v1/messages/{message_id}").json()
    (delivery,) = message["deliveries"]
    assert (delivery["status"], delivery["reason"], delivery["attempts"]) == ("FAILED", "answered 404", 1)
    seen = client_of(asked.subscriber).get(f"/api/v1/deliveries/{delivery['id']}").json()
    assert (seen["sequence"], seen["due_at"], [one["status_code"] for one in seen["history"]]) == (None, None, [404])


@pytest.mark.behaviour("7.1")
def test_the_explanation_names_the_subscription_that_is_asked(event_type: EventType) -> None:
    made = [
        factories.subscription(event_type=event_type, filter=text)
        for text in ("$$->'Body'->>'n' = '2'", "$$->'Body'->>'n' = '1'", "", FAILING_FILTER)
    ]

    def explained(body: bytes) -> list[tuple[bool, str]]:
        message_id = publish(client_of(), body)["Broker-Message-Id"]
        found = client_of().get(f"/api/v1/messages/{message_id}/explanation").json()["subscriptions"]
        return [(one["qualifies"], one["why"]) for one in found]

    asked = f"Subscription {made[1].pk}, made before, is asked."
    assert explained(b'{"n": "1"}') == [
        (False, "The filter is false."),
        (True, "The filter is true."),
        (False, asked),
        (False, "The filter is false."),
    ]
    Subscription.objects.filter(pk__in=[one.pk for one in made[:3]]).delete()
    assert explained(FAILING_BODY) == [(False, "The filter fails, and so does the call.")]


def test_the_admin_shows_a_call_without_a_line(client: Client, asked: Subscription, admin_client: Client) -> None:
    message_id = publish(client)["Broker-Message-Id"]
    delivery_id = Delivery.objects.get().pk
    for address in (
        f"delivery/message/{message_id}/change/",
        "delivery/message/",
        f"delivery/delivery/{delivery_id}/change/",
        "delivery/delivery/",
        "delivery/attempt/",
    ):
        assert admin_client.get(f"/admin/{address}").status_code == 200, address


@pytest.mark.behaviour("7.2")
def test_waiting_calls_are_limited(client: Client, event_type: EventType, receiver: Receiver, settings: Any) -> None:
    names = [str(number) for number in range(MAX_WAITING // MAX_WAITING_PER_OWNER)]
    for name in [*names, "another"]:
        factories.subscription(event_type=event_type, endpoint=receiver.url(SYNC_PATH), header_filter_string=name)
    topic = factories.event_type()
    factories.subscription(event_type=topic)
    gate = receiver.gate(SYNC_PATH, answer(200, b"at last"))
    receiver.on(SYNC_PATH, gate)
    settings.SYNC_SECONDS = PATIENCE_SECONDS
    calls: list[Any] = []
    turns = itertools.cycle(names)
    act = lambda: publish(client, Filter_String=next(turns))  # noqa: E731 - what each thread does
    waiting = threading.Thread(target=lambda: calls.extend(in_parallel(MAX_WAITING, act)))
    waiting.start()
    try:
        wait_until(lambda: len(receiver.of(SYNC_PATH)) == MAX_WAITING)
        ((connections,),) = execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        assert connections <= 25, "not one for each"
        assert publish(client, event=topic.name).status_code == 202
        refused = publish(client, Filter_String="another")
        assert (problem_of(refused), refused["Retry-After"]) == ((503, "too_many_calls"), "1")
        assert refused.json()["detail"].startswith(f"{MAX_WAITING} calls are waiting for their endpoints")
        assert (refused["Broker-Outcome"], "Broker-Message-Id" in refused) == ("too_many_calls", False)
    finally:
        gate.open()
        waiting.join()
    assert {said_of(one) for one in calls} == {(200, b"at last", "answered")}
    assert len(receiver.of(SYNC_PATH)) == MAX_WAITING == Attempt.objects.count()
    receiver.on(SYNC_PATH, answer(200))
    assert publish(client, Filter_String="another")["Broker-Outcome"] == "answered"


@pytest.mark.behaviour("7.2")
def test_a_hanging_endpoint_is_isolated(client: Client, asked: Subscription, receiver: Receiver, settings: Any) -> None:
    settings.SYNC_SECONDS = PATIENCE_SECONDS
    other = factories.event_type("Other.Question", EventKind.SYNC)
    factories.subscription(event_type=other, endpoint=receiver.url("/other"))
    gate = receiver.gate(SYNC_PATH, answer(200, b"at last"))
    receiver.on(SYNC_PATH, gate)
    calls: list[Any] = []
    waiting = threading.Thread(target=in_parallel, args=(MAX_WAITING, lambda: calls.append(publish(client))))
    waiting.start()
    try:
        wait_until(lambda: len(receiver.of(SYNC_PATH)) == MAX_WAITING_PER_OWNER == MAX_WAITING - len(calls))
        assert said_of(publish(client, event=other.name)) == (200, b"", "answered")
    finally:
        gate.open()
        waiting.join()
    outcomes = Counter((one.status_code, one["Broker-Outcome"]) for one in calls)
    assert outcomes == {(200, "answered"): 16, (503, "too_many_calls"): 48}
    (detail,) = {one.json()["detail"] for one in calls if one.status_code == 503}
    assert detail.startswith(f"{MAX_WAITING_PER_OWNER} calls are waiting for subscription {asked.pk} ")


@pytest.mark.behaviour("7.2")
def test_a_failing_call_or_loop_affects_no_later_call(
    client: Client, asked: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish(client).status_code == 200
    (running,) = caller._callers.values()
    nothing = running.ask(object())  # type: ignore[arg-type]
    assert nothing.failure.reason == "the request could not be made"
    gate = receiver.gate(SYNC_PATH, answer(200))
    with ThreadPoolExecutor(1) as threads:
        broken = threads.submit(do_and_disconnect, partial(publish, client))
        wait_until(lambda: len(receiver.of(SYNC_PATH)) == 2)
        monkeypatch.setattr(running.loop._scripts, "finished", lambda: 1 / 0)
        running.loop._client.interrupt()
    gate.open()
    assert problem_of(broken.result()) == (502, "endpoint_unreachable")
    assert publish(client).status_code == 200
    assert [status for _, status, _, _ in recorded_calls()] == ["DELIVERED", "FAILED", "DELIVERED"]


@pytest.mark.behaviour("7.2")
def test_a_process_that_stops_waits_for_no_endpoint(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(SYNC_PATH, hang)
    with ThreadPoolExecutor(1) as threads:
        came = threads.submit(do_and_disconnect, partial(publish, client))
        wait_until(lambda: len(receiver.of(SYNC_PATH)) == 1)
        (running,) = caller._callers.values()
        running.loop.stop()
    assert problem_of(came.result()) == (502, "endpoint_unreachable")
    assert (Delivery.objects.get().status, Delivery.objects.get().uncertain) == ("FAILED", True)
    receiver.on(SYNC_PATH, answer(200))
    assert publish(client).status_code == 200, "asked by a new one"


TAKEN_BY_ANOTHER = """
    SELECT setval(name, nextval(name)), nextval(name) FROM (VALUES ('delivery_message_id_seq'::regclass),
                                                                   ('delivery_delivery_id_seq')) AS sequences (name)
"""
"""After this, PostgreSQL's log says that ids far beyond this one are taken; the next ids are not logged."""


@pytest.mark.behaviour("7.2")
@pytest.mark.django_db(transaction=True)
def test_the_ids_of_a_call_are_durable_before_its_endpoint_is_asked() -> None:
    rows("SET synchronous_commit = on", [])  # off in other tests
    with closing(another_connection()) as publishing, publishing.transaction(force_rollback=True):
        publishing.execute(TAKEN_BY_ANOTHER)
        ((said_at,),) = rows("SELECT pg_current_wal_insert_lsn()::text", [])
        rows(call.BEGIN, [None])
        ((is_durable,),) = rows("SELECT pg_current_wal_flush_lsn() >= %s::text::pg_lsn", [said_at])
    assert is_durable
