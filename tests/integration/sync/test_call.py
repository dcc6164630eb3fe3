"""SYNC: answers to calls, what is recorded and shown of them, and what ends them (contract 7.1, 7.2, 10.3)."""

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from django.test import Client
from standardwebhooks import Webhook
from structlog.testing import capture_logs

from broker_project.core.db import rows
from broker_project.stack.load.receiver import Receiver, answer, hang, raw
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.models import Announcement, Attempt, Delivery, Message
from delivery.sync import call, caller
from delivery.sync.caller import MAX_CALLS
from subscriptions.models import EventKind, EventType, Status, Subscription
from tests.support import factories
from tests.support.api import (
    EVENT,
    FAILING_BODY,
    FAILING_FILTER,
    SYNC_PATH,
    Answer,
    client_of,
    problem_of,
    publish,
    publish_batch,
    recorded_calls,
    said_of,
)
from tests.support.behaviours import close, dripping, endless, reset
from tests.support.database import another_connection, do_and_disconnect, execute, in_parallel

MAX_CALLS_PER_OWNER = 16


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


@pytest.mark.behaviour("5.7")
def test_a_failed_call_is_not_announced(client: Client, asked: Subscription, receiver: Receiver) -> None:
    factories.subscription(event_pattern="Broker.*")
    receiver.on(SYNC_PATH, answer(404))
    assert (publish(client).status_code, Delivery.objects.get().status) == (404, "FAILED")
    assert not Announcement.objects.exists(), "its publisher has the answer"


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


@contextmanager
def waiting_calls(receiver: Receiver, number: int, act: Callable[[], Answer]) -> Iterator[list[Answer]]:
    """Make `number` calls at a time, whose endpoint answers when the block ends; yield their answers."""
    gate, calls = receiver.gate(SYNC_PATH, answer(200, b"at last")), list[Answer]()
    receiver.on(SYNC_PATH, gate)
    waiting = threading.Thread(target=in_parallel, args=(number, lambda: calls.append(act())))
    waiting.start()
    try:
        yield calls
    finally:
        gate.open()
        waiting.join()


@pytest.mark.behaviour("7.2")
def test_waiting_calls_are_limited(client: Client, event_type: EventType, receiver: Receiver, settings: Any) -> None:
    names = [str(number) for number in range(MAX_CALLS // MAX_CALLS_PER_OWNER)]
    for name in [*names, "another"]:
        factories.subscription(event_type=event_type, endpoint=receiver.url(SYNC_PATH), header_filter_string=name)
    topic = factories.event_type()
    factories.subscription(event_type=topic)
    settings.SYNC_SECONDS = PATIENCE_SECONDS
    turns = itertools.cycle(names)
    with waiting_calls(receiver, MAX_CALLS, lambda: publish(client, Filter_String=next(turns))) as calls:
        wait_until(lambda: len(receiver.of(SYNC_PATH)) == MAX_CALLS)
        ((connections,),) = execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        assert connections <= 25, "not one for each"
        assert publish(client, event=topic.name).status_code == 202
        refused = publish(client, Filter_String="another")
        assert (problem_of(refused), refused["Retry-After"]) == ((503, "too_many_calls"), "1")
        assert refused.json()["detail"].startswith(f"{MAX_CALLS} calls are waiting for their endpoints")
        assert (refused["Broker-Outcome"], "Broker-Message-Id" in refused) == ("too_many_calls", False)
    assert {said_of(one) for one in calls} == {(200, b"at last", "answered")}
    assert len(receiver.of(SYNC_PATH)) == MAX_CALLS == Attempt.objects.count()
    assert publish(client, Filter_String="another")["Broker-Outcome"] == "answered"


@pytest.mark.behaviour("7.2")
def test_a_hanging_endpoint_is_isolated(client: Client, asked: Subscription, receiver: Receiver, settings: Any) -> None:
    settings.SYNC_SECONDS = PATIENCE_SECONDS
    other = factories.event_type("Other.Question", EventKind.SYNC)
    factories.subscription(event_type=other, endpoint=receiver.url("/other"))
    with waiting_calls(receiver, MAX_CALLS, partial(publish, client)) as calls:
        wait_until(lambda: len(receiver.of(SYNC_PATH)) == MAX_CALLS_PER_OWNER == MAX_CALLS - len(calls))
        assert said_of(publish(client, event=other.name)) == (200, b"", "answered")
    outcomes = Counter((one.status_code, one["Broker-Outcome"]) for one in calls)
    assert outcomes == {(200, "answered"): 16, (503, "too_many_calls"): 48}
    (detail,) = {one.json()["detail"] for one in calls if one.status_code == 503}
    assert detail.startswith(f"{MAX_CALLS_PER_OWNER} calls are waiting for subscription {asked.pk} ")


@pytest.mark.behaviour("7.2")
def test_a_process_with_few_threads_has_room_for_few_calls(
    client: Client, asked: Subscription, receiver: Receiver, settings: Any
) -> None:
    settings.SYNC_SECONDS, settings.WEB_THREADS = PATIENCE_SECONDS, 8
    with waiting_calls(receiver, 6, partial(publish, client)) as calls:
        wait_until(lambda: len(calls) == 2)
        assert {problem_of(one) for one in calls} == {(503, "too_many_calls")}
        assert calls[0].json()["detail"].startswith("4 calls are waiting for their endpoints")
    assert len(receiver.of(SYNC_PATH)) == 4


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


NO_NAME = "secret-host.invalid"


@pytest.mark.behaviour("7.1", "10.3")
@pytest.mark.parametrize(
    ("status", "body", "headers", "recorded_as"),
    [
        (200, b'{"price": 5}', {"Content-Type": "application/json"}, "DELIVERED"),
        (201, b"<a/>", {"Content-Type": "text/xml; charset=utf-8"}, "DELIVERED"),
        (204, b"", {}, "DELIVERED"),
        (200, b"\x1f\x8b\x08...", {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, "DELIVERED"),
        (302, b"elsewhere", {"Content-Type": "text/html"}, "FAILED"),
        (404, b'{"detail": "no"}', {"Content-Type": "application/problem+json"}, "FAILED"),
        (502, b"mine", {}, "FAILED"),
        (503, b"later", {"Retry-After": "7"}, "FAILED"),
        (504, b"mine too", {"Content-Type": "text/plain"}, "FAILED"),
        (599, b"\xff\0\xfe", {"Content-Type": "application/octet-stream"}, "FAILED"),
    ],
)
def test_the_publisher_gets_the_answer(
    client: Client,
    asked: Subscription,
    receiver: Receiver,
    status: int,
    body: bytes,
    headers: dict[str, Any],
    recorded_as: str,
) -> None:
    named: dict[str, Any] = {name.replace("-", "_"): value for name, value in headers.items()}
    receiver.on(SYNC_PATH, answer(status, body, **named))

    answered = publish(client, b'{"n": 1}')

    assert said_of(answered) == (status, body, "answered")
    passed_on = ("Content-Type", "Content-Encoding", "Retry-After")
    assert {name: answered[name] for name in passed_on if name in answered} == headers
    message = Message.objects.get()
    assert answered["Broker-Message-Id"] == str(message.pk)
    reason = "" if recorded_as == "DELIVERED" else f"answered {status}"
    assert recorded_calls() == [("ROUTED", recorded_as, reason, 1)]


@pytest.mark.behaviour("7.1")
def test_only_headers_of_the_body_are_passed_on(client: Client, asked: Subscription, receiver: Receiver) -> None:
    hostile: dict[str, Any] = {
        "Set_Cookie": "a=b",
        "Location": "http://127.0.0.1:9/",
        "Server": "x",
        "Broker_Outcome": "unrouted",
        "Content_Type": "text/plain",
        "Connection": "close",
        "Authorization": "Bearer x",
    }
    receiver.on(SYNC_PATH, answer(307, b"there", **hostile))

    answered = publish(client)

    assert said_of(answered) == (307, b"there", "answered")
    assert answered["Content-Type"] == "text/plain"
    assert {"Set-Cookie", "Location", "Server", "Connection", "Authorization"}.isdisjoint(answered.headers)
    assert len(receiver.log) == 1, "the redirect is not followed"


@pytest.mark.behaviour("7.1")
def test_the_request_of_a_call(client: Client, asked: Subscription, receiver: Receiver) -> None:
    body = b'{"n":   1}'

    answered = publish(client, body, X_Tenant="blue", traceparent="00-1-2-03", Prefer="wait=5", Cookie="a=b")

    (request,) = receiver.of(SYNC_PATH)
    delivery = Delivery.objects.get()
    assert request.body == body
    assert Webhook(asked.signing_secret).verify(body, dict(request.headers), json_parse=False) is None
    expected = {
        "webhook-id": f"dlv_{delivery.pk}",
        "webhook-attempt": "1",
        "broker-event-type": EVENT,
        "broker-message-id": answered["Broker-Message-Id"],
        "x-tenant": "blue",
        "traceparent": "00-1-2-03",
        "content-type": "application/json",
    }
    assert expected.items() <= request.headers.items()
    assert {"webhook-sequence", "prefer", "cookie", "authorization"}.isdisjoint(request.headers)


@pytest.mark.behaviour("7.1")
@pytest.mark.parametrize("other", ["", "$$->'Body'->>'n' = '2'"])
def test_a_call_without_subscription_gets_an_empty_answer(client: Client, event_type: EventType, other: str) -> None:
    if other:
        factories.subscription(event_type=event_type, filter=other)
    factories.subscription(event_type=event_type, status=Status.INACTIVE)

    answered = publish(client, b'{"n": 1}')

    assert said_of(answered) == (200, b"", "unrouted")
    assert "Content-Type" not in answered
    message = Message.objects.get()
    assert (message.outcome, message.deliveries_count) == ("UNROUTED", 0)
    assert answered["Broker-Message-Id"] == str(message.pk)
    assert not Delivery.objects.exists()


@pytest.mark.behaviour("7.1")
def test_the_oldest_qualifying_subscription_is_asked(client: Client, event_type: EventType, receiver: Receiver) -> None:
    third, second, first = (factories.subscriber() for _ in range(3))
    made = [
        factories.subscription(one, event_type, receiver.url(f"/{number}"), position=9 - number, filter=wanted)
        for number, (one, wanted) in enumerate([(first, "$$->'Body' ? 'n'"), (second, ""), (third, "")])
    ]
    made += [factories.subscription(event_type=event_type, filter="$$->'Body' ? 'm'")]

    with capture_logs() as logs:
        assert said_of(publish(client, b'{"n": 1}')) == (200, b"", "answered")

    assert [request.path for request in receiver.log] == ["/0"]
    (error,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (error["event"], error["asked"]) == ("sync.several_qualify", made[0].pk)
    assert error["subscription_ids"] == [one.pk for one in made[:3]]
    assert str(error["message_id"]) == str(Message.objects.get().pk)


@pytest.mark.behaviour("3.6", "7.1")
@pytest.mark.parametrize("fails_first", [True, False])
def test_a_failing_filter_fails_the_call_only_if_it_comes_first(
    client: Client, event_type: EventType, receiver: Receiver, fails_first: bool
) -> None:
    texts, endpoint = ([FAILING_FILTER, ""] if fails_first else ["", FAILING_FILTER]), receiver.url(SYNC_PATH)
    first, _ = (factories.subscription(event_type=event_type, endpoint=endpoint, filter=text) for text in texts)

    answered = publish(client, FAILING_BODY)

    if not fails_first:
        assert said_of(answered) == (200, b"", "answered")
        return
    assert problem_of(answered) == (500, "filter_failed")
    assert answered["Broker-Outcome"] == "filter_failed"
    assert answered.json()["detail"] == f"Subscription {first.pk} may be the one to ask, but its filter failed."
    ((outcome, status, reason, attempts),) = recorded_calls()
    assert (outcome, status, attempts, reason[:13]) == ("ROUTED", "FAILED", 0, "filter failed")
    assert receiver.log == []
    assert not Attempt.objects.exists()


@pytest.mark.behaviour("7.2", "10.3")
@pytest.mark.parametrize("behaviour", [hang, dripping(0.1)], ids=["silent", "dripping"])
def test_answer_timeout(client: Client, asked: Subscription, receiver: Receiver, settings: Any, behaviour: Any) -> None:
    default, settings.SYNC_SECONDS = settings.SYNC_SECONDS, 1
    receiver.on(SYNC_PATH, behaviour)
    began = time.monotonic()

    answered = publish(client)

    assert 0.9 < time.monotonic() - began < default, "its own deadline counts"
    assert (problem_of(answered), answered["Broker-Outcome"]) == ((504, "endpoint_timed_out"), "endpoint_timed_out")
    assert answered["Broker-Message-Id"] == str(Message.objects.get().pk)
    delivery, attempt = Delivery.objects.get(), Attempt.objects.get()
    assert (delivery.status, delivery.uncertain, attempt.status_code) == ("FAILED", True, None)
    assert attempt.error.startswith("no answer: Operation timed out")
    assert 900 < attempt.duration_ms < default * 1000


@pytest.mark.behaviour("7.2")
@pytest.mark.parametrize(
    ("behaviour", "is_uncertain"),
    [
        pytest.param(close, True, id="closes"),
        pytest.param(reset, True, id="resets"),
        pytest.param(raw(b"not HTTP at all"), True, id="nonsense"),
        pytest.param(raw(b"HTTP/1.1 2000 x\r\n\r\n"), True, id="status of four digits"),
        *(
            pytest.param(raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nshort" % size), is_uncertain, id=f"{size}")
            for size, is_uncertain in ((9, True), (2**63 - 1, True), (2**63, False))
        ),
        pytest.param(answer(700), False, id="status 700"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"), True, id="large head"),
    ],
)
def test_a_broken_answer_is_a_bad_gateway(
    client: Client, asked: Subscription, receiver: Receiver, behaviour: Any, is_uncertain: bool
) -> None:
    receiver.on(SYNC_PATH, behaviour)

    answered = publish(client)

    assert (problem_of(answered), answered["Broker-Outcome"]) == ((502, "endpoint_unreachable"), "endpoint_unreachable")
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.uncertain, delivery.attempts) == ("FAILED", is_uncertain, 1)
    assert Attempt.objects.count() == 1


@pytest.mark.behaviour("7.2")
@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [
        ("http://127.0.0.1:9/", "no connection"),
        (f"http://{NO_NAME}/", "the name of its host was not resolved"),
        ("https://127.0.0.1:{port}/", "timed out"),
    ],
)
def test_an_unreachable_endpoint_is_a_bad_gateway(
    client: Client, event_type: EventType, receiver: Receiver, endpoint: str, kind: str
) -> None:
    port = receiver.url().rpartition(":")[2].strip("/")
    factories.subscription(event_type=event_type, endpoint=endpoint.format(port=port))

    answered = publish(client)

    assert problem_of(answered) == (502, "endpoint_unreachable")
    assert answered.json()["detail"] == f"The endpoint gave no answer: {kind}."
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.uncertain, delivery.attempts) == ("FAILED", False, 1)
    address = f"/api/v1/messages/{delivery.message_id}"
    published, kept = (one.get(address).json()["deliveries"][0]["reason"] for one in (client, client_of()))
    assert (published, kept) == (f"no answer: {kind}", delivery.reason), "where it was is not for publishers"


@pytest.mark.behaviour("7.1")
@pytest.mark.parametrize("more", [0, 1])
def test_large_answers_pass(client: Client, asked: Subscription, receiver: Receiver, settings: Any, more: int) -> None:
    body = b"x" * (settings.MAX_BODY_BYTES + more)
    receiver.on(SYNC_PATH, answer(200, body))

    answered = publish(client)

    if more:
        assert problem_of(answered) == (502, "answer_too_large")
        assert recorded_calls()[0][1:] == ("FAILED", "The endpoint answered 200 with more than 1,048,576 bytes.", 1)
    else:
        assert said_of(answered) == (200, body, "answered")


@pytest.mark.behaviour("7.1")
def test_an_answer_without_end_is_too_large(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(SYNC_PATH, endless)
    assert problem_of(publish(client)) == (502, "answer_too_large")


@pytest.mark.behaviour("2.6", "2.14", "6.7")
@pytest.mark.parametrize(
    "header",
    [
        {"Idempotency_Key": "order-1"},
        {"Broker_Destination": "shop"},
        {"CallbackURL": "http://127.0.0.1:9/"},
        {"Broker_Durability": "volatile"},
        {"Broker_Not_Before": "2001-01-01T00:00:00Z"},
        {"Broker_TTL": "90"},
    ],
)
def test_unsupported_headers_are_refused(
    client: Client, asked: Subscription, receiver: Receiver, header: dict[str, Any]
) -> None:
    answered = publish(client, **header)
    assert problem_of(answered) == (400, "invalid_metadata")
    ((name, _),) = header.items()
    assert name.replace("_", "-") in answered.json()["detail"]
    assert (receiver.log, Message.objects.count()) == ([], 0)


@pytest.mark.behaviour("2.7")
def test_a_batch_takes_no_call(client: Client, asked: Subscription, receiver: Receiver) -> None:
    answered = publish_batch(client, json.dumps({"events": [{"event": EVENT, "body": {}}]}))
    assert problem_of(answered) == (422, "invalid_items")
    (result,) = answered.json()["results"]
    assert (result["code"], "publish it by itself" in result["detail"]) == ("invalid_metadata", True)
    assert (receiver.log, Message.objects.count()) == ([], 0)


@pytest.mark.behaviour("2.5")
def test_a_call_is_checked_like_any_publish(client: Client, asked: Subscription, receiver: Receiver) -> None:
    EventType.objects.update(schema={"required": ["n"]})
    assert problem_of(publish(client, b"{")) == (400, "malformed_payload")
    assert problem_of(publish(client, b"{}")) == (422, "schema_violated")
    assert problem_of(publish(client, b"x", "text/plain")) == (415, "unsuitable_content_type")
    limited = factories.publisher(event_types=[factories.event_type()])
    assert problem_of(publish(client_of(limited), b'{"n": 1}')) == (403, "event_type_not_allowed")
    assert (receiver.log, Message.objects.count()) == ([], 0)
    assert publish(client, b'{"n": 1}').status_code == 200
