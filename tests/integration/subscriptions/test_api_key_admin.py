"""API keys in the admin: who issues, rotates and prolongs which, and that none comes back to life."""

import datetime as dt
import re
from typing import Any, Final

import pytest
from django.test import Client
from django.utils import timezone

from subscriptions.credentials import keys
from subscriptions.credentials.scopes import Issuer
from subscriptions.models import ApiKey
from tests.support import factories
from tests.support.admin import browser_with, form_shown, save_form
from tests.support.api import Answer, client_with

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

ROOT: Final = "/admin/subscriptions/apikey"
DAY: Final = dt.timedelta(days=1)
CONFIRMED: Final = {"confirmed": "yes"}
MANAGEMENT: Final = "subscriptions.issue_management_key"


@pytest.fixture
def issuer() -> Client:
    """Somebody who issues keys, but none of management."""
    return browser_with(*(f"subscriptions.{verb}_apikey" for verb in ("view", "add", "change")))


@pytest.fixture
def clerk() -> Client:
    """Somebody who relabels and revokes keys."""
    return browser_with(*(f"subscriptions.{verb}_apikey" for verb in ("view", "change")))


def with_end(client: Client, key: ApiKey, end: dt.datetime | None) -> Answer:
    day, time = (f"{end:%Y-%m-%d}", f"{end:%H:%M:%S}") if end else ("", "")
    form = {"label": "changed", "expires_at_0": day, "expires_at_1": time}
    return save_form(client, key, form_shown(client, key) | form)


def with_limit(client: Client, key: ApiKey, limit: int | None) -> Answer:
    form = {"label": "changed", "requests_per_minute": str(limit or "")}
    return save_form(client, key, form_shown(client, key) | form)


def now_of(key: ApiKey) -> ApiKey:
    return ApiKey.objects.get(pk=key.pk)


def added(client: Client, **given: Any) -> Answer:
    form = {"publisher": "", "subscriber": "", "label": "", "expires_at_0": "", "expires_at_1": ""}
    return client.post(f"{ROOT}/add/", {**form, **given})


@pytest.mark.parametrize("end", ["revoked_at", "retires_at", "expires_at"])
def test_an_ended_key_is_not_revived_by_a_new_expiry(admin: Client, end: str) -> None:
    key, token = factories.api_key(factories.publisher())
    ApiKey.objects.filter(pk=key.pk).update(**{end: timezone.now() - DAY})
    answer = with_end(admin, key, timezone.now() + 30 * DAY)
    assert (answer.status_code, b"has ended for good" in answer.content) == (200, True)
    assert client_with(token).get("/api/v1/event-types").status_code == 401


def test_a_new_expiry_does_not_extend_a_rotated_key(admin: Client) -> None:
    key, _ = factories.api_key(factories.publisher())
    keys.rotate(ApiKey.objects.filter(pk=key.pk), now=timezone.now(), issuer=Issuer("test"), overlap=DAY)
    until = now_of(key).retires_at
    with_end(admin, key, timezone.now() + 30 * DAY)
    assert (now_of(key).retires_at, now_of(key).ends_at) == (until, until)


@pytest.mark.parametrize("later", [99 * 365 * DAY, 101 * 366 * DAY], ids=["nearly", "beyond"])
def test_users_who_may_issue_a_key_extend_it_within_a_hundred_years(issuer: Client, later: dt.timedelta) -> None:
    key, _ = factories.api_key(factories.publisher(), expires_at=timezone.now() + DAY)
    is_beyond = later > keys.MAX_LIFETIME
    answer = with_end(issuer, key, timezone.now() + later)
    told = (answer.status_code, b"more than a hundred years" in answer.content)
    assert told == ((200, True) if is_beyond else (302, False))
    assert (now_of(key).expires_at == key.expires_at) is is_beyond


@pytest.mark.parametrize("later", [30 * DAY, None], ids=["later", "never"])
def test_other_users_only_shorten_a_keys_life(clerk: Client, issuer: Client, later: dt.timedelta | None) -> None:
    of_owner, _ = factories.api_key(factories.publisher(), expires_at=timezone.now() + 10 * DAY)
    of_management, _ = factories.api_key(expires_at=timezone.now() + 10 * DAY)
    for client, key in ((clerk, of_owner), (clerk, of_management), (issuer, of_management)):
        answer = with_end(client, key, timezone.now() + later if later else None)
        assert (answer.status_code, b"You may not extend its lifetime." in answer.content) == (200, True)
        assert now_of(key).expires_at == key.expires_at
    assert with_end(clerk, of_owner, timezone.now() + DAY).status_code == 302
    assert now_of(of_owner).expires_at < timezone.now() + 2 * DAY  # type: ignore[operator]


@pytest.mark.parametrize(
    ("may_issue", "of_management", "limit", "is_saved"),
    [
        (False, False, 9, True),
        (False, False, 11, False),
        (False, False, None, False),
        (True, False, 11, True),
        (True, False, None, True),
        (True, True, 9, False),
        (True, True, 11, False),
        (True, True, None, False),
    ],
)
def test_users_who_may_not_issue_a_key_only_lower_its_limit(
    may_issue: bool, of_management: bool, limit: int | None, is_saved: bool, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue("issuer" if may_issue else "clerk")
    key, _ = factories.api_key(None if of_management else factories.publisher(), requests_per_minute=10)
    answer = with_limit(client, key, limit)
    assert (answer.status_code, b"You may not" in answer.content) == ((302, False) if is_saved else (200, True))
    assert now_of(key).requests_per_minute == (limit if is_saved else 10)


def test_users_who_may_issue_management_keys_change_their_limit() -> None:
    both = browser_with(*(f"subscriptions.{name}_apikey" for name in ("view", "add", "change")), MANAGEMENT)
    key, _ = factories.api_key(requests_per_minute=10)
    for limit in (1, 100, None):
        assert with_limit(both, key, limit).status_code == 302
        assert now_of(key).requests_per_minute == limit


@pytest.mark.parametrize(("default", "is_saved"), [(20, False), (10, True), (5, True)])
def test_a_key_without_a_limit_has_the_default(clerk: Client, settings: Any, default: int, is_saved: bool) -> None:
    settings.REQUESTS_PER_MINUTE = default
    key, _ = factories.api_key(factories.publisher(), requests_per_minute=10)
    assert with_limit(clerk, key, None).status_code == (302 if is_saved else 200)


def test_an_unchanged_limit_allows_a_new_label(clerk: Client) -> None:
    key, _ = factories.api_key(requests_per_minute=10)
    assert with_limit(clerk, key, 10).status_code == 302
    assert now_of(key).label == "changed"


def test_issuing_management_keys_takes_a_permission(issuer: Client) -> None:
    refused = added(issuer, kind="MANAGEMENT")
    assert (refused.status_code, "kind" in refused.context["adminform"].form.errors) == (200, True)
    assert not ApiKey.objects.exists()
    till = factories.publisher("till")
    assert b'id="secret"' in added(issuer, kind="PUBLISHER", publisher=till.pk).content
    both = browser_with(*(f"subscriptions.{name}" for name in ("view_apikey", "add_apikey", "issue_management_key")))
    assert b'id="secret"' in added(both, kind="MANAGEMENT", scopes=["read", "keys"]).content
    assert [one.scopes for one in ApiKey.objects.order_by("pk")] == [["publish", "read", "operate"], ["read", "keys"]]


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        *(({"kind": "MANAGEMENT", "label": text}, "label") for text in ("one\ntwo", "\x1b[31mred", "\u202e\u200babc")),
        ({"kind": "PUBLISHER", "publisher": "till", "scopes": ["keys"]}, "scopes"),
        ({"kind": "PUBLISHER"}, "publisher"),
        ({"kind": "SUBSCRIBER", "publisher": "till"}, "publisher"),
        ({"kind": "MANAGEMENT", "publisher": "till"}, "publisher"),
        ({"kind": "MANAGEMENT", "expires_at_0": "2020-01-01", "expires_at_1": "00:00:00"}, "expires_at"),
    ],
)
def test_an_invalid_key_is_refused_at_its_field(admin: Client, given: dict[str, Any], wrong: str) -> None:
    till = factories.publisher("till")
    refused = added(admin, **given | ({"publisher": till.pk} if "publisher" in given else {}))
    assert wrong in refused.context["adminform"].form.errors
    assert not ApiKey.objects.exists()


def test_a_form_does_not_change_fixed_fields(admin: Client) -> None:
    key, _ = factories.api_key(factories.publisher(), scopes=["read"])
    form = {
        "label": "new",
        "expires_at_0": "",
        "expires_at_1": "",
        "kind": "MANAGEMENT",
        "prefix": "x",
        "publisher": "",
    }
    answer = admin.post(f"{ROOT}/{key.pk}/change/", {**form, "scopes": ["publish", "keys"], "retires_at": ""})
    now = now_of(key)
    assert (answer.status_code, now.label, now.kind, now.scopes) == (302, "new", "PUBLISHER", ["read"])


def test_a_key_is_rotated_and_its_successors_token_shown(issuer: Client) -> None:
    key, token = factories.api_key(factories.publisher(), scopes=["read"], label="rack 3")
    address = f"{ROOT}/{key.pk}/rotate/"
    assert b"Rotate this key?" in issuer.get(address).content
    assert ApiKey.objects.count() == 1
    shown = issuer.post(address, CONFIRMED)
    successor = ApiKey.objects.get(successor_of=key)
    assert (successor.scopes, successor.label, successor.issued_by) == (["read"], "rack 3", "person-0")
    assert successor.prefix in shown.text
    assert "no-store" in shown["Cache-Control"]
    assert client_with(token).get("/api/v1/event-types").status_code == 200, "for a day"
    assert issuer.post(f"{ROOT}/{factories.api_key()[0].pk}/rotate/", CONFIRMED).status_code == 403


def test_a_key_that_has_ended_is_not_rotated(admin: Client) -> None:
    key, _ = factories.api_key()
    keys.revoke(ApiKey.objects.filter(pk=key.pk), now=timezone.now())
    answer = admin.post(f"{ROOT}/{key.pk}/rotate/", CONFIRMED, follow=True)
    assert "nothing takes its place" in " ".join(map(str, answer.context["messages"]))
    assert ApiKey.objects.count() == 1


def token_of_form(client: Client, address: str) -> str:
    (token, *_) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get(address).text)
    return str(token)


def test_a_reload_issues_no_second_key(admin: Client) -> None:
    given = {"kind": "MANAGEMENT", "csrfmiddlewaretoken": token_of_form(admin, f"{ROOT}/add/")}
    assert b'id="secret"' in added(admin, **given).content
    again = added(admin, **given)
    assert (again.status_code, again["Location"], ApiKey.objects.count()) == (302, f"{ROOT}/", 1)
    assert b"nothing was created again" in admin.get(f"{ROOT}/").content
    new_form = {**given, "csrfmiddlewaretoken": token_of_form(admin, f"{ROOT}/add/")}
    assert b'id="secret"' in added(admin, **new_form).content


def test_a_refused_form_is_corrected_and_sent_again(admin: Client) -> None:
    given = {"kind": "MANAGEMENT", "csrfmiddlewaretoken": token_of_form(admin, f"{ROOT}/add/")}
    assert added(admin, **given, label="\u202e").status_code == 200
    assert b'id="secret"' in added(admin, **given).content


def test_a_reload_does_not_rotate_a_key_again(admin: Client) -> None:
    key, _ = factories.api_key()
    address = f"{ROOT}/{key.pk}/rotate/"
    confirmed = {**CONFIRMED, "csrfmiddlewaretoken": token_of_form(admin, address)}
    assert b'id="secret"' in admin.post(address, confirmed).content
    again = admin.post(address, confirmed)
    assert (again.status_code, again["Location"]) == (302, f"{ROOT}/{key.pk}/change/")
    assert ApiKey.objects.filter(successor_of=key).count() == 1
