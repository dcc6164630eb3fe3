"""Who may call the API, with which tokens, and how often."""

import datetime as dt
import logging
from typing import Any, Final

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from structlog.testing import capture_logs

from broker_project.logging import without_tokens
from subscriptions.credentials import keys
from subscriptions.credentials.tokens import digest_of
from subscriptions.models import ApiKey
from tests.support import factories
from tests.support.api import Answer, client_of, client_with, problem_of
from tests.support.factories import api_key

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

SOME_LIST = "/api/v1/event-types"
MORNING = dt.datetime(2026, 11, 20, 9, 0, tzinfo=dt.UTC)

UNKNOWN: Final = "brk_" + "x" * 43
PAST: Final = timezone.now() - dt.timedelta(hours=1)


def test_a_token_is_found_by_its_sha_256() -> None:
    assert digest_of("brk_test").hex() == "9797c51c8baf5e1354af2b953fa1175d67898d9a3680492a30d12cb7f2a7ade9"


def test_without_a_key_everything_is_refused_with_a_challenge() -> None:
    answer = Client().get(SOME_LIST)
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
    assert answer["Content-Type"] == "application/problem+json"
    problem = {"type": "/api/docs/problems#unauthenticated", "code": "unauthenticated", "title": "Unauthenticated"}
    detail = "There is no API key: authenticate with 'Authorization: Bearer' and an API key."
    assert answer.json() == {**problem, "status": 401, "detail": detail}


def test_the_scheme_is_read_in_any_case() -> None:
    _, token = factories.api_key()
    assert Client(headers={"Authorization": f"bearer {token}"}).get(SOME_LIST).status_code == 200


def test_several_keys_live_at_once_and_one_is_revoked_alone() -> None:
    owner = factories.publisher()
    (old, old_token), (_, new_token) = factories.api_key(owner), factories.api_key(owner)
    assert [client_with(token).get(SOME_LIST).status_code for token in (old_token, new_token)] == [200, 200]
    keys.revoke(ApiKey.objects.filter(pk=old.pk), now=timezone.now())
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


def client_limited_to(number: int | None) -> Client:
    key, token = api_key()
    ApiKey.objects.filter(pk=key.pk).update(requests_per_minute=number)
    return client_with(token)


def is_rate_limited(answer: Answer) -> bool:
    return problem_of(answer) == (429, "too_many_requests")


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_a_key_may_send_as_many_as_it_says(limit: int) -> None:
    client = client_limited_to(limit)
    assert [client.get(SOME_LIST).status_code for _ in range(limit)] == [200] * limit
    answer = client.get(SOME_LIST)
    assert is_rate_limited(answer)
    assert 1 <= int(answer["Retry-After"]) <= 60 // limit
    assert answer.json()["detail"] == f"This key may send {limit} requests a minute."


def test_every_answer_has_the_keys_rate_limit() -> None:
    client = client_limited_to(3)
    paths = (SOME_LIST, f"{SOME_LIST}/None", SOME_LIST, SOME_LIST)
    answers = [client.get(path) for path in paths]
    assert [answer.status_code for answer in answers] == [200, 404, 200, 429]
    assert {answer["RateLimit-Policy"] for answer in answers} == {'"default";q=3;w=60'}
    assert [answer["RateLimit"].partition(";t=")[0] for answer in answers] == [
        *('"default";r=2', '"default";r=1', '"default";r=0', '"default";r=0')
    ]


def test_the_setting_is_for_keys_that_say_nothing(settings: Any) -> None:
    assert "RateLimit" not in client_limited_to(None).get(SOME_LIST)
    settings.REQUESTS_PER_MINUTE = 2
    assert client_limited_to(None).get(SOME_LIST)["RateLimit"] == '"default";r=1;t=30'
    assert client_limited_to(7).get(SOME_LIST)["RateLimit-Policy"] == '"default";q=7;w=60'


def test_each_key_is_counted_for_itself() -> None:
    first, second = client_limited_to(1), client_limited_to(1)
    assert [client.get(SOME_LIST).status_code for client in (first, second, first, second)] == [200, 200, 429, 429]


def test_lookups_of_wrong_keys_from_one_address_are_limited(settings: Any) -> None:
    settings.FAILURES_PER_MINUTE = 2
    wrong, none = client_with("brk_wrong"), Client()
    assert [client.get(SOME_LIST).status_code for client in (wrong, none, wrong, none)] == [401, 401, 429, 429]
    assert is_rate_limited(wrong.get(SOME_LIST))
    assert wrong.get(SOME_LIST, REMOTE_ADDR="192.0.2.7").status_code == 401


def test_failures_of_others_at_the_same_address_do_not_lock_out_a_known_key(settings: Any) -> None:
    settings.FAILURES_PER_MINUTE = 1
    known, new = client_of(), client_of()
    assert known.get(SOME_LIST).status_code == 200
    assert client_with("brk_wrong").get(SOME_LIST).status_code == 401
    assert [client.get(SOME_LIST).status_code for client in (known, new)] == [200, 429]


def test_a_revoked_key_counts_as_a_wrong_key(settings: Any) -> None:
    settings.FAILURES_PER_MINUTE = 1
    key, token = api_key()
    client = client_with(token)
    assert client.get(SOME_LIST).status_code == 200
    ApiKey.objects.filter(pk=key.pk).update(revoked_at="2026-01-01T00:00:00Z")
    assert [client.get(SOME_LIST).status_code for _ in range(2)] == [401, 429]


def test_lookups_of_wrong_callback_tokens_from_one_address_are_limited(settings: Any) -> None:
    settings.FAILURES_PER_MINUTE = 2
    answers = [Client().post(f"/api/v1/callbacks/{n}x", b"", content_type="text/plain") for n in range(3)]
    assert [answer.status_code for answer in answers] == [404, 404, 429]
    assert Client().get(SOME_LIST).status_code == 401


def is_unauthenticated(answer: Answer) -> bool:
    """Tell whether an answer is the complete 401."""
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
    assert (answer["Content-Type"], answer.json()["code"]) == ("application/problem+json", "unauthenticated")
    return True


@pytest.mark.parametrize(
    ("why", "end"),
    [
        ("revoked", {"revoked_at": PAST}),
        ("expired", {"expires_at": PAST}),
        ("rotated", {"retires_at": PAST}),
        ("revoked", {"revoked_at": PAST, "retires_at": PAST}),
        ("rotated", {"retires_at": PAST - dt.timedelta(hours=1), "expires_at": PAST}),
    ],
)
def test_a_key_that_has_ended_is_named_in_the_log_by_its_prefix(why: str, end: dict[str, dt.datetime]) -> None:
    key, token = factories.api_key(factories.publisher())
    ApiKey.objects.filter(pk=key.pk).update(**end)
    with capture_logs() as logged:
        assert is_unauthenticated(client_with(token).get(SOME_LIST))
    events = [one for one in logged if one["event"].startswith("api_key")]
    assert events == [
        {"event": "api_key.refused", "log_level": "warning", "why": why, "key": key.pk, "prefix": key.prefix}
    ]
    assert token not in str(logged)


@pytest.mark.parametrize("token", [UNKNOWN, "brk_short", "", "x" * 9000])
def test_an_unknown_token_is_logged_without_its_text(token: str) -> None:
    with capture_logs() as logged:
        assert is_unauthenticated(client_with(token).get(SOME_LIST))
    assert [one for one in logged if one["event"].startswith("api_key")] == [
        {"event": "api_key.unknown", "log_level": "warning"}
    ]


@pytest.mark.parametrize(
    "header",
    [
        "Basic {}",
        "Token {}",
        "Digest {}",
        "{}",
        "Bearer",
        "Bearer {}, Bearer {}",
        "Bearer {},Bearer {}",
        "Bearer {} {}",
        "Bearer Bearer {}",
        'Bearer "{}"',
        "Bearer {}\0",
        "Bearer {}\xff",
        "Bearer ключ",
        "Bearer {}" + "x" * 60_000,
        "Bearer=" + "{}",
    ],
)
def test_a_token_counts_alone_and_after_bearer(header: str) -> None:
    _, token = factories.api_key()
    assert is_unauthenticated(Client(headers={"Authorization": header.replace("{}", token)}).get(SOME_LIST))


@pytest.mark.parametrize("name", ["access_token", "token", "api_key", "key", "Authorization"])
def test_a_token_is_not_taken_from_addresses_or_cookies(name: str) -> None:
    _, token = factories.api_key()
    in_cookie = Client()
    in_cookie.cookies[name] = token
    assert is_unauthenticated(Client().get(SOME_LIST, {name: token}))
    assert is_unauthenticated(Client().get(SOME_LIST, {name: f"Bearer {token}"}))
    assert is_unauthenticated(in_cookie.get(SOME_LIST))


@pytest.mark.parametrize("name", ["X-Api-Key", "Api-Key", "X-Authorization", "Proxy-Authorization", "X-Auth-Token"])
def test_a_token_is_not_taken_from_other_headers_or_a_body(name: str) -> None:
    _, token = factories.api_key()
    for value in (f"Bearer {token}", token):
        assert is_unauthenticated(Client(headers={name: value}).post(SOME_LIST, {"access_token": token}))


def test_a_text_that_cannot_be_a_token_is_not_looked_up() -> None:
    with CaptureQueriesContext(connection) as asked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "rows", None)
        assert is_unauthenticated(client_with("brk_" + "x" * 42).get(SOME_LIST))
    assert len(asked) == 0


def test_a_token_in_an_address_stays_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    _, token = factories.api_key()
    Client().get(f"/api/v1/{token}")
    (record,) = [one for one in caplog.records if one.name == "django.request"]
    logged: dict[str, Any] = dict(without_tokens(None, "", {"event": record.getMessage()}))
    assert (record.levelno, logged["event"]) == (logging.WARNING, "Not Found: /api/v1/brk_…")


def test_a_prefix_stays_in_the_log() -> None:
    key, _ = factories.api_key()
    assert without_tokens(None, "", {"prefix": key.prefix}) == {"prefix": key.prefix}
