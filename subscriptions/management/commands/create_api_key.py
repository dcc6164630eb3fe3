"""`manage.py create_api_key`: issue an API key and print its token, this once (behaviour 1.2)."""

import secrets
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from subscriptions.key_issuing import Owner, issue
from subscriptions.key_tokens import TOKEN_BYTES
from subscriptions.models import Publisher, Subscriber


class Command(BaseCommand):
    """A first management key, or one for a publisher or subscriber."""

    help = "Issues an API key and prints its token: for management, or for a publisher or subscriber that exists."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the owner, or nobody for management, and a label."""
        owner = parser.add_mutually_exclusive_group()
        owner.add_argument("--publisher", metavar="NAME", help="issue it to this publisher")
        owner.add_argument("--subscriber", metavar="NAME", help="issue it to this subscriber")
        parser.add_argument("--label", default="", help="what people will know it by")

    def handle(self, *_: Any, **options: Any) -> str:
        """Issue the key; return its token, which is printed."""
        owner = _owner(options["publisher"], options["subscriber"])
        random_bytes = secrets.token_bytes(TOKEN_BYTES)
        _key, token = issue(owner, random_bytes=random_bytes, now=timezone.now(), label=options["label"])
        return token


def _owner(publisher: str | None, subscriber: str | None) -> Owner:
    try:
        if publisher is not None:
            return Publisher.objects.get(name=publisher)
        return Subscriber.objects.get(name=subscriber) if subscriber is not None else None
    except Publisher.DoesNotExist:
        raise CommandError(f"There is no publisher {publisher}.") from None
    except Subscriber.DoesNotExist:
        raise CommandError(f"There is no subscriber {subscriber}.") from None
