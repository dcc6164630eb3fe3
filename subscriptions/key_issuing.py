"""Issuing and revoking API keys; several of one owner live at once, for rotation (behaviour 1.2)."""

import datetime as dt

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from subscriptions.configuring import Versions, change
from subscriptions.key_tokens import digest_of, shown_prefix_of, token_of
from subscriptions.models import ApiKey, KeyKind, Publisher, Subscriber

Owner = Publisher | Subscriber | None
"""Whose key it is; None for management."""


def issue(
    owner: Owner,
    *,
    random_bytes: bytes,
    now: dt.datetime,
    label: str = "",
    expires_at: dt.datetime | None = None,
    requests_per_minute: int | None = None,
) -> tuple[ApiKey, str]:
    """Store a new key of `owner`; return it with its token, which nobody can read again.

    Raises:
        ValidationError: it would have expired already.

    """
    if expires_at is not None and expires_at <= now:
        raise ValidationError({"expires_at": "This time has passed already."})
    token = token_of(random_bytes)
    key = ApiKey.objects.create(
        kind=_kind_of(owner),
        publisher=owner if isinstance(owner, Publisher) else None,
        subscriber=owner if isinstance(owner, Subscriber) else None,
        label=label,
        expires_at=expires_at,
        requests_per_minute=requests_per_minute,
        prefix=shown_prefix_of(token),
        digest=digest_of(token),
    )
    return key, token


def _kind_of(owner: Owner) -> KeyKind:
    match owner:
        case Publisher():
            return KeyKind.PUBLISHER
        case Subscriber():
            return KeyKind.SUBSCRIBER
        case None:
            return KeyKind.MANAGEMENT


def revoke(which: QuerySet[ApiKey], *, now: dt.datetime, expected: Versions | None = None) -> ApiKey:
    """Make the one key in `which` useless from now on; revoking twice keeps the first time."""
    with transaction.atomic():
        key = change(which, changes={}, expected=expected)
        return key if key.revoked_at else change(which, changes={"revoked_at": now})
