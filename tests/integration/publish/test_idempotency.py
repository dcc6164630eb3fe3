"""The same publish twice, also at the same time, is stored once (contract 2.6)."""

from typing import Any

import psycopg
import pytest
from django.test import Client

from delivery.models import IdempotencyKey, Message
from subscriptions.models import EventType, Publisher
from tests.support import factories
from tests.support.api import JSON, client_of, client_with, problem, publish


@pytest.mark.behaviour("2.6")
def test_the_same_publish_under_a_key_gets_the_first_answer(
    client: Client, publisher: Publisher, event_type: EventType
) -> None:
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


@pytest.mark.behaviour("2.6")
@pytest.mark.parametrize(
    "other",
    [{"body": b"2"}, {"event": "Other"}, {"Filter_String": "x"}],
)
def test_another_publish_under_a_key_is_refused(client: Client, other: dict[str, Any]) -> None:
    factories.event_type("Other")
    publish(client, b"1", Idempotency_Key="order-7")

    answer = publish(client, **{"body": b"1", "Idempotency_Key": "order-7", **other})

    assert problem(answer) == (422, "idempotency_key_reused")
    assert Message.objects.count() == 1


@pytest.mark.behaviour("2.6")
def test_a_key_is_its_publishers_own_and_ends_with_its_time(client: Client) -> None:
    first = publish(client, b"1", Idempotency_Key="k").json()["id"]
    other = publish(client_of(factories.publisher()), b"2", Idempotency_Key="k").json()["id"]
    IdempotencyKey.objects.filter(message_id=first).update(expires_at="2000-01-01T00:00Z")

    later = publish(client, b"3", Idempotency_Key="k")

    assert (later.status_code, "Idempotency-Replayed" in later) == (202, False)
    assert len({first, other, later.json()["id"]}) == 3


@pytest.mark.behaviour("2.6")
@pytest.mark.django_db(transaction=True)
def test_a_key_whose_first_publish_is_running_is_answered_at_once_and_for_no_longer(
    client: Client, publisher: Publisher, elsewhere: psycopg.Connection[Any]
) -> None:
    elsewhere.execute("SELECT pg_advisory_xact_lock(hashtextextended('k', %s))", [publisher.pk])

    meanwhile = publish(client, Idempotency_Key="k")
    elsewhere.rollback()
    afterwards = publish(client, Idempotency_Key="k")

    assert (*problem(meanwhile), meanwhile["Retry-After"]) == (409, "publish_under_way", "1")
    assert (afterwards.status_code, Message.objects.count()) == (202, 1)


@pytest.mark.behaviour("2.6")
def test_a_key_for_a_whole_batch_is_refused(client: Client) -> None:
    answer = client.post("/api/v1/events", b"{}", content_type=JSON, headers={"Idempotency-Key": "k"})

    assert problem(answer) == (400, "invalid_metadata")
