"""API keys over the API and on the command line."""

import datetime as dt
import io
import re

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from subscriptions.credentials.keys import key_for
from subscriptions.models import ApiKey
from tests.support import factories
from tests.support.api import client_of, client_with, invalid_fields
from tests.support.factories import publisher, subscriber

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/api-keys"
HIDDEN = "\n\r\t\x1b\x00\x7f\x85\xad\u061c\u200b\u200f\u2028\u202e\u2063\u2066\u2069\u3164\ufeff\ufff9"


@pytest.mark.behaviour("1.2")
def test_a_token_is_shown_once_and_works(management: Client) -> None:
    factories.publisher("till")
    given = {"kind": "PUBLISHER", "publisher": "till", "label": "rack 3"}
    made = management.post(ROOT, given)
    body = made.json()
    assert (made.status_code, body) == (201, {**body, **given, "subscriber": None, "revoked_at": None})
    read, listed = management.get(made["Location"]), management.get(ROOT)
    assert client_with(body["token"]).get("/api/v1/publishers/till").status_code == 200
    assert read.json() == {name: value for name, value in body.items() if name != "token"}
    assert body["token"].encode() not in read.content + listed.content


def test_a_revoked_key_opens_nothing_and_stays_listed() -> None:
    client, (key, token) = client_of(), factories.api_key(factories.subscriber())
    answer = client.post(f"{ROOT}/{key.pk}/revoke")
    assert (answer.status_code, answer["ETag"]) == (200, '"2"')
    assert client_with(token).get("/api/v1/subscribers").status_code == 401
    again = client.post(f"{ROOT}/{key.pk}/revoke")
    assert (again.status_code, again.json()) == (200, answer.json())


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["#/kind"]),
        ({"kind": "ROOT"}, ["#/kind"]),
        ({"kind": "PUBLISHER"}, ["#/publisher"]),
        ({"kind": "SUBSCRIBER"}, ["#/subscriber"]),
        ({"kind": "SUBSCRIBER", "publisher": "till"}, ["#/publisher", "#/subscriber"]),
        ({"kind": "MANAGEMENT", "publisher": "till"}, ["#/publisher"]),
        ({"kind": "PUBLISHER", "publisher": "nobody"}, ["#/publisher"]),
        ({"kind": "PUBLISHER", "publisher": None}, ["#/publisher"]),
        ({"kind": "MANAGEMENT", "expires_at": "2020-01-01T00:00:00Z"}, ["#/expires_at"]),
        ({"kind": "MANAGEMENT", "expires_at": "tomorrow"}, ["#/expires_at"]),
        ({"kind": "MANAGEMENT", "expires_at": "9000-01-01T00:00:00Z"}, ["#/expires_at"]),
        ({"kind": "MANAGEMENT", "expires_at": 1800000000}, ["#/expires_at"]),
        ({"kind": "MANAGEMENT", "token": "brk_mine"}, ["#/token"]),
        ({"kind": "MANAGEMENT", "prefix": "brk_"}, ["#/prefix"]),
        ({"kind": "MANAGEMENT", "label": "x" * 256}, ["#/label"]),
        *(
            ({"kind": "MANAGEMENT", "requests_per_minute": number}, ["#/requests_per_minute"])
            for number in (0, -1, "5", 1.5, True)
        ),
    ],
)
def test_an_inconsistent_key_is_not_issued(management: Client, body: dict[str, object], pointers: list[str]) -> None:
    factories.publisher("till")
    before = ApiKey.objects.count()
    answer = management.post(ROOT, body)
    assert (answer.status_code, [error["pointer"] for error in answer.json()["errors"]]) == (400, pointers)
    assert ApiKey.objects.count() == before


def test_a_key_may_have_an_end_and_a_limit() -> None:
    end = (timezone.now() + dt.timedelta(days=30)).replace(microsecond=0).isoformat().replace("+00:00", "Z")
    given = {"kind": "MANAGEMENT", "expires_at": end, "requests_per_minute": 5}
    made = client_of().post(ROOT, given)
    assert (made.status_code, {**made.json(), **given}) == (201, made.json())


def test_a_key_is_found_by_the_beginning_of_its_token() -> None:
    client, (key, token) = client_of(), factories.api_key(factories.subscriber())
    found = client.get(ROOT, {"prefix": token[:12]}).json()
    assert ([item["id"] for item in found["items"]], found["next"], found["previous"]) == ([key.pk], None, None)
    assert client.get(ROOT, {"prefix": "brk_nobodys0"}).json()["items"] == []


@pytest.mark.parametrize("prefix", ["", "brk_", "brk_nobodys", "brk_nobodys00"])
def test_a_beginning_has_twelve_characters(prefix: str) -> None:
    answer = client_of().get(ROOT, {"prefix": prefix})
    assert (answer.status_code, answer.json()["errors"][0]["parameter"]) == (400, "prefix")


def test_keys_with_one_prefix_are_listed_a_page_at_a_time(management: Client) -> None:
    alike = [factories.api_key()[0].pk for _ in range(3)]
    ApiKey.objects.filter(pk__in=alike).update(prefix="brk_alike000")
    first = management.get(f"{ROOT}?prefix=brk_alike000&limit=2").json()
    second = management.get(first["next"]).json()
    assert [[item["id"] for item in page["items"]] for page in (first, second)] == [alike[:2], alike[2:]]


@pytest.mark.parametrize("character", HIDDEN, ids=ascii)
def test_a_label_with_invisible_characters_is_refused(management: Client, character: str) -> None:
    answer = management.post(ROOT, {"kind": "MANAGEMENT", "label": f"a{character}b"})
    assert {*invalid_fields(answer)} == {"label"}
    assert ApiKey.objects.count() == 1


@pytest.mark.parametrize("label", ["", "till 3, Zürich", "קופה 3", "收银台", "👩‍🔧 bench"])
def test_a_label_may_use_any_script(label: str) -> None:
    answer = client_of().post(ROOT, {"kind": "MANAGEMENT", "label": label})
    assert (answer.status_code, answer.json()["label"]) == (201, label)


def created(*arguments: str) -> str:
    output = io.StringIO()
    call_command("create_api_key", *arguments, stdout=output)
    return output.getvalue().strip()


@pytest.mark.parametrize(
    ("arguments", "kind", "scopes"),
    [
        ((), "MANAGEMENT", ["publish", "read", "configure", "receive", "operate"]),
        (("--scope", "all"), "MANAGEMENT", ["publish", "read", "configure", "receive", "operate", "keys"]),
        (("--scope", "read", "--scope", "publish"), "MANAGEMENT", ["publish", "read"]),
        (("--publisher", "shop"), "PUBLISHER", ["publish", "read", "operate"]),
        (("--publisher", "shop", "--scope", "publish"), "PUBLISHER", ["publish"]),
        (("--subscriber", "mail", "--scope", "all"), "SUBSCRIBER", ["read", "configure", "receive", "operate"]),
    ],
)
def test_a_key_is_issued_and_its_token_printed_alone(arguments: tuple[str, ...], kind: str, scopes: list[str]) -> None:
    publisher("shop")
    subscriber("mail")
    key = key_for(created(*arguments, "--label", "first"), now=timezone.now())
    assert key is not None
    assert (key.kind, key.label, key.scopes) == (kind, "first", scopes)


def test_a_key_is_given_an_end_and_a_limit() -> None:
    created("--expires-at", "2027-06-30T02:00:00+02:00", "--requests-per-minute", "30")
    created("--days", "90")
    first, second = ApiKey.objects.order_by("pk")
    assert (first.expires_at, first.requests_per_minute) == (dt.datetime(2027, 6, 30, tzinfo=dt.UTC), 30)
    assert second.expires_at == second.created_at + dt.timedelta(days=90)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--expires-at", "tomorrow"), "'tomorrow' is no time with its zone, such as 2027-06-30T00:00:00Z"),
        (("--expires-at", "2027-06-30T00:00:00"), "is no time with its zone"),
        (("--expires-at", "2020-01-01T00:00:00Z"), "--expires-at: This time has passed already"),
        (("--expires-at", "9000-01-01T00:00:00Z"), "--expires-at: This is more than a hundred years away"),
        (("--expires-at", "2027-06-30T00:00:00Z", "--days", "3"), "not allowed with argument"),
        (("--days", "0"), "--days: a key lives from 1 to 36525 days"),
        (("--days", "99999999999"), "--days: a key lives from 1 to 36525 days"),
        (("--days", "few"), "invalid int value: 'few'"),
        (("--requests-per-minute", "0"), "--requests-per-minute: Ensure this value is greater than or equal to 1"),
        (("--requests-per-minute", "9999999999"), "--requests-per-minute: Ensure this value is less than or equal to"),
        (("--label", "cba\u202e"), "--label: A label is one line"),
        (("--label", "not UTF-8: \udcff"), "--label: A label is one line"),
        (("--publisher", "not UTF-8: \udcff"), "There is no publisher not UTF-8"),
        (("--publisher", "nobody"), "There is no publisher nobody"),
        (("--subscriber", "nobody"), "There is no subscriber nobody"),
        (("--publisher", "shop", "--scope", "keys"), "A PUBLISHER key has one or more of the scopes publish, read"),
        (("--label", "x" * 256), "--label: Ensure this value has at most 255 characters"),
    ],
)
def test_invalid_options_are_reported_by_name(arguments: tuple[str, ...], told: str) -> None:
    publisher("shop")
    with pytest.raises(CommandError, match=re.escape(told)):
        created(*arguments)
    assert not ApiKey.objects.exists()
