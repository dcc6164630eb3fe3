"""API keys on the command line."""

import io

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from subscriptions.authenticating import key_for
from subscriptions.models import KeyKind
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
