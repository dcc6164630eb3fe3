"""Mailboxes as whoever calls may see them, and the receipts that they have given out."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from django.conf import settings
from django.http import Http404
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.views import APIView

from broker_project.core.api.fields import StrictSerializer
from delivery.mailbox.hand_outs import Fetched
from delivery.mailbox.mailbox import Receipt, read, receipt_key, written
from delivery.mailbox.opening import Mailbox, mailbox_named
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.credentials.authenticate import is_usable
from subscriptions.models import Scope


class MailboxView(APIView):
    """One of the calls that a mailbox takes."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.RECEIVE}

    def mailbox(self, request: Request, name: str) -> Mailbox:
        """Return the one of that name.

        Raises:
            Http404: there is none, or not for this key.

        """
        found = mailbox_named(name, key=key_of(request))
        if found is None:
            raise Http404
        return found

    def is_still_allowed(self, request: Request) -> Callable[[], bool]:
        """Return what tells, later, whether the key that was good for the call is good still."""
        return lambda: is_usable(key_of(request), now=timezone.now())

    def given(self, request: Request, serializer_class: type[StrictSerializer]) -> dict[str, Any]:
        """Return what the body says; an empty one says nothing.

        Raises:
            ValidationError: it says something else.

        """
        values: dict[str, Any] = _checking(serializer_class).run_validation(request.data)
        return values


@cache
def _checking(serializer_class: type[StrictSerializer]) -> StrictSerializer:
    """Return one for all calls: making one, with copies of all its fields, costs as much as what it checks."""
    return serializer_class()


def receipts_for(fetched: Sequence[Fetched], subscriber_id: int) -> list[str]:
    """Return a receipt for each, as its client gets it."""
    key = receipt_key(settings.SECRET_KEY)
    return [written(one.receipt, subscriber_id=subscriber_id, key=key) for one in fetched]


def receipts_in(texts: Sequence[str], subscriber_id: int) -> list[Receipt | None]:
    """Return what each stands for; None: this mailbox has never given it out."""
    keys = [receipt_key(secret) for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    return [read(text, subscriber_id=subscriber_id, keys=keys) for text in texts]
