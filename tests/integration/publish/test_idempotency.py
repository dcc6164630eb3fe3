"""The same publish twice, also at the same time, is stored once (contract 2.6)."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import islice
from typing import Any

import orjson
import psycopg
import pytest
from django.test import Client

from broker_project.core.db import rows
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.mailbox import fetch_messages
from delivery.models import IdempotencyKey, Message
from delivery.publish import publish as publish_module
from delivery.publish.idempotency import forget_expired_keys
from delivery.publish.store import choose_and_store
from subscriptions.models import EventType, Publisher
from tests.support import factories
from tests.support.api import EVENT, Answer, client_of, client_with, problem_of, publish, publish_batch
from tests.support.database import do_and_disconnect

pytestmark = pytest.mark.behaviour("2.6")

Publishing = Callable[[], Answer]
IN_PROGRESS = (409, "publish_in_progress", "1")
WAITING = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%%delivery_message%%'
"""


def test_a_repeated_key_gets_the_first_answer(client: Client, publisher: Publisher, event_type: EventType) -> None:
    factories.subscription(event_type=event_type)
    first = publish(client, b"1", Idempotency_Key="order-7")
    factories.subscription(event_type=event_type)

    again = publish(client, b"1", Idempotency_Key="order-7")
    rotated = publish(client_with(factories.api_key(publisher)[1]), b"1", Idempotency_Key="order-7")

    assert "Idempotency-Replayed" not in first
    for answer in (again, rotated):
        assert (answer.status_code, answer["Idempotency-Replayed"]) == (202, "true")
        assert answer["Location"] == first["Location"]
        assert answer.json() == {**first.json(), "replayed": True}
    assert Message.objects.count() == 1


CHANGES: dict[str, dict[str, Any]] = {
    "schema": {"schema": {"type": "array"}, "version": 2},
    "content type": {"content_type": "text/plain"},
}
"""What makes an event type refuse what it accepted before."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_repeated_key_gets_the_first_answer_after_its_event_type_has_changed(
    client: Client, event_type: EventType, change: str
) -> None:
    first = publish(client, b"1", Idempotency_Key="order-7")
    EventType.objects.filter(pk=event_type.pk).update(**CHANGES[change])

    again = publish(client, b"1", Idempotency_Key="order-7")
    others = [publish(client, b"2", Idempotency_Key="order-7"), publish(client, b"1", Idempotency_Key="order-8")]

    assert (again.status_code, again["Idempotency-Replayed"]) == (202, "true")
    assert again.json() == {**first.json(), "replayed": True}
    assert [answer.status_code for answer in others] == [{"schema": 422, "content type": 415}[change]] * 2
    assert Message.objects.count() == 1


@pytest.mark.behaviour("2.7")
def test_each_repeated_item_of_a_batch_gets_its_first_answer(client: Client, event_type: EventType) -> None:
    known = {"event": EVENT, "body": 1, "idempotency_key": "order-7"}
    new, wrong = {"event": EVENT, "body": []}, {"event": EVENT, "body": 2, "idempotency_key": "order-\0"}
    publish(client, b"1", Idempotency_Key="order-7")
    EventType.objects.filter(pk=event_type.pk).update(schema={"type": "array"}, version=2)

    refused, accepted = [
        publish_batch(client, orjson.dumps({"events": events}).decode())
        for events in ([known, wrong, new], [new, known, known])
    ]

    assert [result["status"] for result in refused.json()["results"]] == ["valid", "invalid", "valid"]
    assert [result.get("replayed", False) for result in accepted.json()["results"]] == [False, True, True]
    assert Message.objects.count() == 2


def test_a_repeated_key_needs_the_permission_to_publish(
    client: Client, publisher: Publisher, event_type: EventType
) -> None:
    publish(client, b"1", Idempotency_Key="order-7")
    publisher.event_types.set([factories.event_type()])
    assert problem_of(publish(client, b"1", Idempotency_Key="order-7")) == (403, "event_type_not_allowed")


def test_a_volatile_event_repeats_no_stored_one(client: Client, event_type: EventType) -> None:
    event = {"Ce_Specversion": "1.0", "Ce_Id": "7", "Ce_Source": "/shop", "Ce_Type": EVENT}
    publish(client, b"1", **event)
    EventType.objects.filter(pk=event_type.pk).update(schema={"type": "array"}, version=2)
    assert publish(client, b"1", **event)["Idempotency-Replayed"] == "true"
    assert problem_of(publish(client, b"1", Broker_Durability="volatile", **event)) == (422, "schema_violated")


@pytest.mark.parametrize("other", [{"body": b"2"}, {"event": "Other"}, {"Filter_String": "x"}])
def test_another_publish_under_a_key_is_refused(client: Client, other: dict[str, Any]) -> None:
    factories.event_type("Other")
    publish(client, b"1", Idempotency_Key="order-7")

    answer = publish(client, **{"body": b"1", "Idempotency_Key": "order-7", **other})

    assert problem_of(answer) == (422, "idempotency_key_reused")
    assert Message.objects.count() == 1


def test_a_key_is_its_publishers_own_and_ends_with_its_time(client: Client) -> None:
    first = publish(client, b"1", Idempotency_Key="k").json()["id"]
    other = publish(client_of(factories.publisher()), b"2", Idempotency_Key="k").json()["id"]
    IdempotencyKey.objects.filter(message_id=first).update(expires_at="2000-01-01T00:00Z")

    assert publish(client, b"1", Idempotency_Key="k")["Idempotency-Replayed"] == "true"
    assert (forget_expired_keys(), forget_expired_keys()) == (1, 0)
    later = publish(client, b"3", Idempotency_Key="k")
    assert (later.status_code, "Idempotency-Replayed" in later) == (202, False)
    assert len({first, other, later.json()["id"]}) == 3


@pytest.mark.django_db(transaction=True)
def test_a_repeat_beside_another_repeat_gets_the_first_answer_too(
    client: Client, publisher: Publisher, elsewhere: psycopg.Connection[Any]
) -> None:
    first = publish(client, Idempotency_Key="k")
    elsewhere.execute("SELECT pg_advisory_xact_lock(hashtextextended('key k', %s))", [publisher.pk])
    repeat = publish(client, Idempotency_Key="k")
    assert (repeat.status_code, repeat.json()["id"]) == (202, first.json()["id"])


@pytest.mark.behaviour("9.7")
@pytest.mark.django_db(transaction=True)
def test_a_key_is_not_mistaken_for_a_mailbox(
    client: Client, publisher: Publisher, elsewhere: psycopg.Connection[Any]
) -> None:
    """Both are advisory locks, and the ids of publishers and subscribers can be the same."""
    elsewhere.execute(fetch_messages.LOCK, [publisher.pk])
    assert publish(client, Idempotency_Key="mailbox").status_code == 202


@pytest.fixture
def order(publisher: Publisher) -> Publishing:
    """Publishes an order, always under the same key."""
    _, token = factories.api_key(publisher)
    return lambda: publish(client_with(token), b"1", Idempotency_Key="order-7")


@pytest.fixture
def storing_waits(elsewhere: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Let everything that is stored wait until this connection's transaction ends."""
    elsewhere.execute("LOCK TABLE delivery_message IN EXCLUSIVE MODE")
    return elsewhere


@contextmanager
def at_once(call: Publishing, times: int) -> Iterator[list[Future[Answer]]]:
    """Call several times at once, each in a thread with a connection of its own."""
    with ThreadPoolExecutor(times) as threads:
        yield [threads.submit(do_and_disconnect, call) for _ in range(times)]


def insisting(call: Publishing, *statuses: int) -> Publishing:
    """Call again as long as it is answered so; 503: the pool's connections were in use for too long."""

    def again() -> Answer:
        while (answer := call()).status_code in {503, *statuses}:
            pass
        return answer

    return again


def noting_results(choose: Callable[..., list[Any]], results: list[Any]) -> Callable[..., list[Any]]:
    """Return a function that does as `choose`, and notes what it returns."""

    def note(*arguments: Any, **named: Any) -> list[Any]:
        chosen = choose(*arguments, **named)
        results.extend(chosen)
        return chosen

    return note


def waiting() -> list[int]:
    """Return the connections that wait for a lock to store a message."""
    return [pid for (pid,) in rows(WAITING)]


def refusal(answer: Answer) -> tuple[int, str, str]:
    return *problem_of(answer), answer["Retry-After"]


@pytest.mark.django_db(transaction=True)
def test_simultaneous_publishes_are_stored_once(order: Publishing, storing_waits: psycopg.Connection[Any]) -> None:
    with at_once(insisting(order), 20) as publishing:
        others = [future.result() for future in islice(as_completed(publishing, timeout=PATIENCE_SECONDS), 19)]
        storing_waits.rollback()
    (first,) = [answer for future in publishing if (answer := future.result()) not in others]
    afterwards = order()

    assert [refusal(answer) for answer in others] == [IN_PROGRESS] * 19
    assert afterwards.json() == {**first.json(), "replayed": True}
    assert Message.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("in_one_statement", [False, True])
def test_many_publishers_that_retry_one_key_get_one_answer(
    order: Publishing,
    client: Client,
    event_type: EventType,
    in_one_statement: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if in_one_statement:
        factories.subscription(event_type=event_type)
        for _ in range(2):
            publish(client)
    before = Message.objects.count()
    chosen: list[Any] = []
    monkeypatch.setattr(publish_module, "choose_and_store", noting_results(choose_and_store, chosen))
    with at_once(insisting(order, 409), 20) as publishing:
        answers = [future.result() for future in publishing]

    assert sorted(answer.get("Idempotency-Replayed", "first") for answer in answers) == ["first"] + ["true"] * 19
    assert {answer.json()["id"] for answer in answers} == {Message.objects.latest("pk").pk}
    assert len([*filter(None, chosen)]) == in_one_statement
    assert Message.objects.count() == before + 1


@pytest.mark.django_db(transaction=True)
def test_a_lost_connection_frees_the_key(order: Publishing, storing_waits: psycopg.Connection[Any]) -> None:
    with at_once(order, 1) as (dying,):
        wait_until(waiting)
        meanwhile = order()
        storing_waits.execute("SELECT pg_terminate_backend(%s)", waiting())
        died = dying.result()
    storing_waits.rollback()
    afterwards = order()

    assert refusal(meanwhile) == IN_PROGRESS
    assert died.status_code == 503
    assert (afterwards.status_code, "Idempotency-Replayed" in afterwards) == (202, False)
    assert Message.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.behaviour("2.7")
def test_batches_wait_for_no_keys(client: Client, order: Publishing, storing_waits: psycopg.Connection[Any]) -> None:
    items = ", ".join(f'{{"event": "{EVENT}", "body": 1, "idempotency_key": "{key}"}}' for key in ("new", "order-7"))

    with at_once(order, 1) as (slow,):
        wait_until(waiting)
        meanwhile = publish_batch(client, f'{{"events": [{items}]}}')
        storing_waits.rollback()
    afterwards = publish_batch(client, f'{{"events": [{items}]}}').json()["results"]

    assert refusal(meanwhile) == IN_PROGRESS
    assert [result.get("replayed", False) for result in afterwards] == [False, True]
    assert afterwards[1]["id"] == slow.result().json()["id"]
    assert Message.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_refused_publish_leaves_its_key_unused(client: Client, event_type: EventType) -> None:
    refused = publish(client, b"no json", Idempotency_Key="k")
    accepted = publish(client, b"1", Idempotency_Key="k")

    assert problem_of(refused) == (400, "malformed_payload")
    assert (accepted.status_code, "Idempotency-Replayed" in accepted) == (202, False)


@pytest.mark.django_db(transaction=True)
def test_management_has_keys_of_its_own(client: Client, management: Client) -> None:
    theirs = publish(client, b"1", Idempotency_Key="k")
    ours = [publish(asking, b"2", Idempotency_Key="k") for asking in (management, client_of())]

    assert ["Idempotency-Replayed" in answer for answer in (theirs, *ours)] == [False, False, True]
    assert Message.objects.count() == 2
