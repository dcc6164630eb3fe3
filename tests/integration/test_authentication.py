"""Who may call the API."""

import datetime as dt

import pytest
import time_machine
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from subscriptions.credentials import issue
from subscriptions.models import ApiKey
from tests import factories
from tests.clients import client_with

pytestmark = pytest.mark.django_db

SOME_LIST = "/api/v1/event-types"
MORNING = dt.datetime(2026, 11, 20, 9, 0, tzinfo=dt.UTC)


def test_without_a_key_everything_is_refused_with_a_challenge() -> None:
    answer = Client().get(SOME_LIST)
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json() == {
        "type": "urn:broker:unauthenticated",
        "code": "unauthenticated",
        "title": "Unauthenticated",
        "status": 401,
        "detail": "Authentication credentials were not provided.",
    }


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer brk_unknown",
        "Basic YTpi",
        "brk_unknown",
        "Bearer \xff\x00",
        "Bearer " + "x" * 9000,
    ],
)
def test_what_is_no_key_opens_nothing(header: str) -> None:
    answer = Client(headers={"Authorization": header}).get(SOME_LIST)
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


def test_the_scheme_is_read_in_any_case() -> None:
    _, token = factories.api_key()
    assert Client(headers={"Authorization": f"bearer {token}"}).get(SOME_LIST).status_code == 200


@pytest.mark.behaviour("1.2")
def test_several_keys_live_at_once_and_one_is_revoked_alone() -> None:
    owner = factories.publisher()
    (old, old_token), (_, new_token) = factories.api_key(owner), factories.api_key(owner)
    assert [client_with(token).get(SOME_LIST).status_code for token in (old_token, new_token)] == [200, 200]
    issue.revoke(ApiKey.objects.filter(pk=old.pk), now=timezone.now())
    assert [client_with(token).get(SOME_LIST).status_code for token in (old_token, new_token)] == [401, 200]


def test_a_key_ends_when_it_expires() -> None:
    with time_machine.travel(MORNING, tick=False) as clock:
        _, token = factories.api_key(expires_at=MORNING + dt.timedelta(hours=1))
        clock.shift(dt.timedelta(minutes=59))
        assert client_with(token).get(SOME_LIST).status_code == 200
        clock.shift(dt.timedelta(minutes=1))
        assert client_with(token).get(SOME_LIST).status_code == 401


def test_last_use_is_noted_once_a_minute_and_raises_no_version() -> None:
    with time_machine.travel(MORNING, tick=False) as clock:
        key, token = factories.api_key()
        seen = []
        for _ in range(4):
            client_with(token).get(SOME_LIST)
            key.refresh_from_db()
            seen.append((key.last_used_at, key.version))
            clock.shift(dt.timedelta(seconds=30))
    later = MORNING + dt.timedelta(minutes=1)
    assert seen == [(MORNING, 1), (MORNING, 1), (later, 1), (later, 1)]


def test_authentication_asks_nothing_through_the_orm(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    _, token = factories.api_key()
    client_with(token).get(SOME_LIST)
    with django_assert_num_queries(1):  # the list itself; the key is found by a prepared statement
        client_with(token).get(SOME_LIST)


def test_only_the_hash_of_a_token_is_stored() -> None:
    key, token = factories.api_key()
    stored = ApiKey.objects.filter(pk=key.pk).values().get()
    assert token not in str({**stored, "digest": bytes(stored["digest"])})
    assert token.startswith(stored["prefix"])
