"""What opens nothing: keys that have ended, tokens of none, and tokens where no token belongs; and what logs say."""

import datetime as dt
import logging
from typing import Any, Final

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from structlog.testing import capture_logs

from broker_project.logging import without_tokens
from subscriptions.credentials import authenticate
from subscriptions.models import ApiKey
from tests.support import factories
from tests.support.api import Answer, client_with

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

SOME_LIST: Final = "/api/v1/event-types"
UNKNOWN: Final = "brk_" + "x" * 43
PAST: Final = timezone.now() - dt.timedelta(hours=1)


def is_unauthenticated(answer: Answer) -> bool:
    """Tell whether an answer is the 401 that it should be, whatever was sent."""
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
def test_of_a_token_that_is_no_keys_nothing_is_logged(token: str) -> None:
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
def test_a_token_is_not_taken_from_other_headers(name: str) -> None:
    _, token = factories.api_key()
    assert is_unauthenticated(Client(headers={name: f"Bearer {token}"}).get(SOME_LIST))
    assert is_unauthenticated(Client(headers={name: token}).get(SOME_LIST))


def test_a_token_is_not_taken_from_a_body() -> None:
    _, token = factories.api_key()
    assert is_unauthenticated(Client().post(SOME_LIST, {"access_token": token}))


def test_what_can_be_no_token_is_not_looked_up() -> None:
    with CaptureQueriesContext(connection) as asked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(authenticate, "rows", None)
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
