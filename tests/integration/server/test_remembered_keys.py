"""Publishes are checked against remembered keys and event types as long as nothing has changed."""

from collections.abc import Callable
from typing import Any

import pytest
import time_machine
from django.db import OperationalError
from django.db.models import F
from django.utils import timezone

from broker_project.core import boot_clock
from delivery.models import Delivery, Message
from delivery.publish import publish, store
from subscriptions.credentials import keys
from subscriptions.credentials.tokens import digest_of
from subscriptions.models import ApiKey, EventKind, EventType, Publisher, Subscription
from tests.support import factories
from tests.support.api import EVENT
from tests.support.request_groups import Call, answer_group
from tests.support.spies import spied

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.behaviour("1.2", "2.1")]


@pytest.fixture
def token(event_type: EventType) -> str:
    """Return the token of a publisher that has just published, so that its key is remembered."""
    factories.subscription(event_type=event_type)
    token = factories.api_key(factories.publisher(event_types=[event_type]))[1]
    # the first one finds out that no filter has to be evaluated
    assert [sent(token).status for _ in range(3)] == [202] * 3
    assert is_remembered(token)
    return token


def is_remembered(token: str) -> bool:
    return keys.Asked(digest_of(token), EVENT) in keys._remembered


def sent(token: str, body: bytes = b"{}", **headers: str) -> Call:
    call = Call(token, f"events/{EVENT}", body, headers)
    answer_group([call])
    return call


def test_a_remembered_key_is_not_read_again(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = spied(monkeypatch, keys, "rows", lambda *_: "key")
    assert [sent(token).status for _ in range(3)] == [202] * 3
    repeats = [sent(token, b"{}", **{"Idempotency-Key": "k"}) for _ in range(2)]
    assert [call.headers.get("idempotency-replayed") for call in repeats] == [None, "true"]
    assert read == []
    ApiKey.objects.update(label="renamed", last_used_at=timezone.now())  # a publish is not checked against these
    assert (sent(token).status, read) == (202, [])
    with time_machine.travel(timezone.now() + keys.USE_IS_NOTED_EVERY, tick=False):
        assert sent(token).status == 202
        assert ApiKey.objects.filter(last_used_at=timezone.now()).count() == 1
    assert read == ["key"]


CHANGES: dict[str, tuple[Callable[[], Any], tuple[int, str]]] = {
    "revoked": (lambda: keys.revoke(ApiKey.objects.all(), now=timezone.now()), (401, "unauthenticated")),
    "expired": (lambda: ApiKey.objects.update(expires_at=timezone.now()), (401, "unauthenticated")),
    "retired": (lambda: ApiKey.objects.update(retires_at=timezone.now()), (401, "unauthenticated")),
    "deleted": (lambda: ApiKey.objects.all().delete(), (401, "unauthenticated")),
    "not allowed": (
        lambda: Publisher.objects.get().event_types.set([factories.event_type()]),
        (403, "event_type_not_allowed"),
    ),
    "limited": (lambda: Publisher.objects.update(max_open_messages=2), (429, "too_many_open_messages")),
    "of another type": (
        lambda: EventType.objects.update(content_type="text/plain"),
        (415, "unsuitable_content_type"),
    ),
    "with a schema": (
        lambda: EventType.objects.update(schema={"required": ["n"]}, version=F("version") + 1),
        (422, "schema_violated"),
    ),
}


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_counts_from_the_next_publish_on(token: str, change: str, headers: dict[str, str]) -> None:
    do, refused = CHANGES[change]
    do()
    before = Message.objects.count()
    call = sent(token, b"{}", **headers)
    assert (call.status, call.problem) == refused
    assert Message.objects.filter(event_type__kind=EventKind.TOPIC).count() == before


SCHEMA = {"type": "object", "required": ["n"]}


@pytest.mark.behaviour("2.5")
def test_an_event_is_checked_against_what_its_own_key_was_read_with(token: str) -> None:
    other = factories.api_key(Publisher.objects.get())[1]
    EventType.objects.update(schema=SCHEMA, version=F("version") + 1)
    assert sent(other, b'{"n": 1}').status == 202
    assert is_remembered(token)
    assert is_remembered(other)
    refused, unreadable = [Call(of, f"events/{EVENT}", body) for of, body in ((other, b"{}"), (token, b"{"))]
    answer_group([refused, unreadable])  # the second one is not stored, so no statement confirms its key
    assert [(call.status, call.problem) for call in (refused, unreadable)] == [
        (422, "schema_violated"),
        (400, "malformed_payload"),
    ]
    assert Message.objects.count() == 4


def test_a_rate_limit_counts_from_the_next_publish_on(token: str) -> None:
    ApiKey.objects.update(requests_per_minute=1)
    assert [sent(token).status for _ in range(3)] == [202, 429, 429]
    ApiKey.objects.update(requests_per_minute=10)
    assert [sent(token).status for _ in range(3)] == [202] * 3
    ApiKey.objects.update(requests_per_minute=None)
    call = sent(token)
    assert (call.status, "ratelimit" in call.headers) == (202, False)


def test_a_group_of_which_not_all_can_be_stored_in_one_statement_is_stored_together(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = spied(monkeypatch, publish, "_publish_any", lambda publications, *_: len(publications))
    for _ in range(2):  # the second time the key has been forgotten
        calls = [Call(token, f"events/{EVENT}", b"{}") for _ in range(8)]
        calls.append(Call(token, f"events/{EVENT}", b"{}", {"Broker-TTL": "1h"}))
        answer_group(calls)
        assert [call.status for call in calls] == [202] * 9
        assert sizes.pop() == 9
        assert sizes == []
    assert Message.objects.count() == 3 + 2 * 9
    assert sent(token).status == 202
    assert not is_remembered(token)
    later = boot_clock.since_boot() + keys.FORGOTTEN_SECONDS
    monkeypatch.setattr(boot_clock, "since_boot", lambda: later)
    assert sent(token).status == 202
    assert is_remembered(token)


def test_what_is_not_stored_is_told_so_if_the_database_is_away_for_the_others(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(*_: object) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(store, "rows", is_away)
    keys.revoke(ApiKey.objects.all(), now=timezone.now())
    headers: list[dict[str, str]] = [{}, {"Broker-Durability": "volatile"}, {"Content-Type": "text/plain"}]
    calls = [Call(token, f"events/{EVENT}", b"{}", one) for one in headers]
    answer_group(calls)
    assert [call.status for call in calls] == [503] * 3


def test_what_cannot_be_published_in_one_statement_is_published_all_the_same(token: str) -> None:
    Subscription.objects.update(filter="$$->'Body'->'n' = '1'")
    assert [sent(token, b'{"n": %d}' % number).status for number in (1, 2)] == [202] * 2
    assert sent(token, b'{"n": 1}', **{"Idempotency-Key": "k"}).status == 202
    assert sent(token, b'{"n": 1}', **{"Broker-Durability": "volatile"}).status == 202
    assert sent(token, b"{").status == 400
    assert Delivery.objects.count() == 3 + 2


def test_of_a_group_only_what_has_changed_is_refused(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = factories.api_key(factories.publisher())[1]
    assert sent(other).status == 202
    keys.revoke(ApiKey.objects.exclude(publisher__event_types=None), now=timezone.now())
    monkeypatch.setattr(store, "remember", lambda *_, **__: None)
    calls = [Call(one, f"events/{EVENT}", b"{}") for one in (token, other, token, other)]
    answer_group(calls)
    assert [call.status for call in calls] == [401, 202, 401, 202]
