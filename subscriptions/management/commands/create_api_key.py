"""`manage.py create_api_key`: issue an API key and print its token, this once (contract 1.2)."""

import datetime as dt
from argparse import ArgumentTypeError
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from subscriptions.credentials.keys import MAX_LIFETIME, Owner, issue, kind_of
from subscriptions.credentials.scopes import OPENED, Issuer
from subscriptions.models import Publisher, Scope, Subscriber
from subscriptions.names import is_name

ALL: Final = "all"
ISSUER: Final = Issuer("command line")
FLAGS: Final = {
    "label": "--label",
    "scopes": "--scope",
    "expires_at": "--expires-at",
    "requests_per_minute": "--requests-per-minute",
}


class Command(BaseCommand):
    """A first management key, or one for a publisher or subscriber."""

    help = "Issues an API key and prints its token: for management, or for a publisher or subscriber that exists."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options for owner, scopes, label, end and limit."""
        owner = parser.add_mutually_exclusive_group()
        owner.add_argument("--publisher", metavar="NAME", help="issue it to this publisher")
        owner.add_argument("--subscriber", metavar="NAME", help="issue it to this subscriber")
        parser.add_argument(
            "--scope",
            action="append",
            choices=[*Scope.values, ALL],
            help="a scope, can be repeated; `all`: all of its kind; without any: all except `keys`",
        )
        parser.add_argument("--label", default="", help="where it is used")
        end = parser.add_mutually_exclusive_group()
        end.add_argument("--expires-at", type=instant, metavar="TIME", help="its end, such as 2027-06-30T00:00:00Z")
        end.add_argument("--days", type=int, metavar="N", help="its lifetime instead")
        parser.add_argument(
            "--requests-per-minute", type=int, metavar="N", help="its maximum requests to each web process"
        )

    def handle(self, *_: Any, days: int | None, **options: Any) -> str:
        """Issue the key; return its token, which is printed."""
        owner = _owner(options["publisher"], options["subscriber"])
        now, expires_at, scopes = timezone.now(), options["expires_at"], options["scope"]
        if days is not None:
            if not 0 < days <= MAX_LIFETIME.days:
                raise CommandError(
                    f"--days: a key lives from 1 to {MAX_LIFETIME.days} days; without it, it does not expire."
                )
            expires_at = now + dt.timedelta(days=days)
        try:
            _key, token = issue(
                owner,
                now=now,
                issuer=ISSUER,
                label=options["label"],
                scopes=[*OPENED[kind_of(owner)]] if scopes and ALL in scopes else scopes,
                expires_at=expires_at,
                requests_per_minute=options["requests_per_minute"],
            )
        except ValidationError as refused:
            lines = [f"{FLAGS[name]}: {text}" for name, texts in refused.message_dict.items() for text in texts]
            raise CommandError(" ".join(lines)) from None
        return token


def instant(text: str) -> dt.datetime:
    """Return the instant that a text with a time zone names."""
    try:
        named = dt.datetime.fromisoformat(text)
    except ValueError:
        named = None
    if named is None or named.tzinfo is None:
        raise ArgumentTypeError(f"{text!r} is no time with its zone, such as 2027-06-30T00:00:00Z")
    return named


def _owner(publisher: str | None, subscriber: str | None) -> Owner:
    for model, name in ((Publisher, publisher), (Subscriber, subscriber)):
        if name is not None:
            named = model._default_manager.filter(name=name)  # noqa: SLF001 - documented by Django
            owner: Owner = named.first() if is_name(name) else None
            if owner is None:
                raise CommandError(f"There is no {model._meta.verbose_name} {name}.")  # noqa: SLF001
            return owner
    return None
