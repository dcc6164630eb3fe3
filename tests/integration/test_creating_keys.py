"""API keys on the command line."""

import datetime as dt
import io
import re

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from subscriptions.credentials.authenticate import key_for
from subscriptions.models import ApiKey, KeyKind
from tests.factories import publisher, subscriber

pytestmark = pytest.mark.django_db


def created(*arguments: str) -> str:
    output = io.StringIO()
    call_command("create_api_key", *arguments, stdout=output)
    return output.getvalue().strip()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((), KeyKind.MANAGEMENT),
        (("--publisher", "shop"), KeyKind.PUBLISHER),
        (("--subscriber", "mail"), KeyKind.SUBSCRIBER),
    ],
)
def test_a_key_is_issued_and_its_token_printed_alone(arguments: tuple[str, ...], kind: KeyKind) -> None:
    publisher("shop")
    subscriber("mail")
    key = key_for(created(*arguments, "--label", "first"), now=timezone.now())
    assert key is not None
    assert (key.kind, key.label) == (kind, "first")


@pytest.mark.parametrize(
    ("arguments", "scopes"),
    [
        ((), ["publish", "read", "configure", "receive", "operate"]),
        (("--scope", "all"), ["publish", "read", "configure", "receive", "operate", "keys"]),
        (("--scope", "read", "--scope", "publish"), ["publish", "read"]),
        (("--publisher", "shop", "--scope", "publish"), ["publish"]),
        (("--subscriber", "mail", "--scope", "all"), ["read", "configure", "receive", "operate"]),
    ],
)
def test_a_key_opens_what_is_asked_for(arguments: tuple[str, ...], scopes: list[str]) -> None:
    publisher("shop")
    subscriber("mail")
    key = key_for(created(*arguments), now=timezone.now())
    assert key is not None
    assert key.scopes == scopes


def test_a_scope_that_its_kind_has_not_is_said() -> None:
    publisher("shop")
    with pytest.raises(CommandError, match="A PUBLISHER key has one or more of the scopes publish, read, operate"):
        created("--publisher", "shop", "--scope", "keys")


@pytest.mark.parametrize("owner", ["publisher", "subscriber"])
def test_an_owner_that_does_not_exist_is_said(owner: str) -> None:
    with pytest.raises(CommandError, match=f"There is no {owner} nobody"):
        created(f"--{owner}", "nobody")


def test_a_key_is_given_an_end_and_a_limit() -> None:
    created("--expires-at", "2027-06-30T02:00:00+02:00", "--requests-per-minute", "30")
    assert ApiKey.objects.values_list("expires_at", "requests_per_minute").get() == (
        dt.datetime(2027, 6, 30, tzinfo=dt.UTC),
        30,
    )


def test_a_key_is_given_so_many_days() -> None:
    created("--days", "90")
    key = ApiKey.objects.get()
    assert key.expires_at == key.created_at + dt.timedelta(days=90)


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
        (("--label", "x" * 256), "--label: Ensure this value has at most 255 characters"),
    ],
)
def test_what_makes_no_sense_is_said_with_its_option(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(CommandError, match=re.escape(told)):
        created(*arguments)
    assert not ApiKey.objects.exists()
