"""`manage.py create_api_key`: issue an API key and print its token, this once (contract 1.2)."""

import datetime as dt
import secrets
from argparse import ArgumentTypeError
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from subscriptions.credentials.keys import MAX_LIFETIME, Owner, issue, kind_of
from subscriptions.credentials.scopes import OPENED, Issuer
from subscriptions.credentials.tokens import TOKEN_BYTES
from subscriptions.models import Publisher, Scope, Subscriber

ALL: Final = "all"
ISSUER: Final = Issuer("command line")
NO_INSTANT: Final = "{!r} is no time with its zone, such as 2027-06-30T00:00:00Z"
OPTIONS: Final = {
    "label": "--label",
    "scopes": "--scope",
    "expires_at": "--expires-at",
    "requests_per_minute": "--requests-per-minute",
}
"""Which option gives which field."""


class Command(BaseCommand):
    """A first management key, or one for a publisher or subscriber."""

    help = "Issues an API key and prints its token: for management, or for a publisher or subscriber that exists."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the owner, or nobody for management, scopes, a label, an end and a limit."""
        owner = parser.add_mutually_exclusive_group()
        owner.add_argument("--publisher", metavar="NAME", help="issue it to this publisher")
        owner.add_argument("--subscriber", metavar="NAME", help="issue it to this subscriber")
        parser.add_argument(
            "--scope",
            action="append",
            choices=[*Scope.values, ALL],
            help="what it opens, once for each; `all`: whatever its kind may; without any: all that but `keys`",
        )
        parser.add_argument("--label", default="", help="what people will know it by")
        end = parser.add_mutually_exclusive_group()
        end.add_argument(
            "--expires-at", type=instant, metavar="WHEN", help="when it ends by itself, such as 2027-06-30T00:00:00Z"
        )
        end.add_argument("--days", type=int, metavar="N", help="after how many days instead")
        parser.add_argument(
            "--requests-per-minute", type=int, metavar="N", help="how many it may send to each web process, at most"
        )

    def handle(self, *_: Any, **options: Any) -> str:
        """Issue the key; return its token, which is printed."""
        owner = _owner(options["publisher"], options["subscriber"])
        now = timezone.now()
        try:
            _key, token = issue(
                owner,
                random_bytes=secrets.token_bytes(TOKEN_BYTES),
                now=now,
                issuer=ISSUER,
                label=options["label"],
                scopes=_scopes(owner, options["scope"]),
                expires_at=_end(options["expires_at"], options["days"], now=now),
                requests_per_minute=options["requests_per_minute"],
            )
        except ValidationError as refused:
            raise CommandError(" ".join(_lines(refused))) from None
        return token


def instant(text: str) -> dt.datetime:
    """Return the instant that a text says, with its zone."""
    try:
        said = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(NO_INSTANT.format(text)) from None
    if said.tzinfo is None:
        raise ArgumentTypeError(NO_INSTANT.format(text))
    return said


def _end(expires_at: dt.datetime | None, days: int | None, *, now: dt.datetime) -> dt.datetime | None:
    if days is None:
        return expires_at
    if not 0 < days <= MAX_LIFETIME.days:
        raise CommandError(f"--days: a key lives from 1 to {MAX_LIFETIME.days} days; without it, it does not expire.")
    return now + dt.timedelta(days=days)


def _lines(refused: ValidationError) -> list[str]:
    """Return what is wrong with which option."""
    return [f"{OPTIONS[name]}: {text}" for name, texts in refused.message_dict.items() for text in texts]


def _scopes(owner: Owner, asked: list[str] | None) -> list[str] | None:
    return [*OPENED[kind_of(owner)]] if asked and ALL in asked else asked


def _owner(publisher: str | None, subscriber: str | None) -> Owner:
    try:
        if publisher is not None:
            return Publisher.objects.get(name=publisher)
        return Subscriber.objects.get(name=subscriber) if subscriber is not None else None
    except Publisher.DoesNotExist:
        raise CommandError(f"There is no publisher {publisher}.") from None
    except Subscriber.DoesNotExist:
        raise CommandError(f"There is no subscriber {subscriber}.") from None
