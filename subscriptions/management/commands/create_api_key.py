"""`manage.py create_api_key`: issue an API key and print its token, this once (behaviour 1.2)."""

import secrets
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from subscriptions.key_issuing import Owner, issue, kind_of
from subscriptions.key_scopes import OPENED, Issuer
from subscriptions.key_tokens import TOKEN_BYTES
from subscriptions.models import Publisher, Scope, Subscriber

ALL: Final = "all"
ISSUER: Final = Issuer("command line")


class Command(BaseCommand):
    """A first management key, or one for a publisher or subscriber."""

    help = "Issues an API key and prints its token: for management, or for a publisher or subscriber that exists."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the owner, or nobody for management, scopes and a label."""
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

    def handle(self, *_: Any, **options: Any) -> str:
        """Issue the key; return its token, which is printed."""
        owner = _owner(options["publisher"], options["subscriber"])
        chosen = {"label": options["label"], "scopes": _scopes(owner, options["scope"])}
        random_bytes = secrets.token_bytes(TOKEN_BYTES)
        try:
            _key, token = issue(owner, random_bytes=random_bytes, now=timezone.now(), issuer=ISSUER, **chosen)
        except ValidationError as refused:
            raise CommandError(" ".join(refused.messages)) from None
        return token


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
