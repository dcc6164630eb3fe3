"""Issuing, rotating and revoking API keys; several of one owner live at once (contract 1.2)."""

import datetime as dt
from collections.abc import Collection
from typing import Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from subscriptions.credentials.scopes import Issuer, KeyKind, NotOpened, Scope, scopes_of
from subscriptions.credentials.tokens import digest_of, shown_prefix_of, token_of
from subscriptions.edit import Versions, change, locked
from subscriptions.models import ApiKey, Publisher, Subscriber

Owner = Publisher | Subscriber | None
"""Whose key it is; None for management."""

OVERLAP: Final = dt.timedelta(hours=24)
"""For how long a rotated key goes on beside its successor, unless somebody says otherwise."""
MAX_OVERLAP: Final = dt.timedelta(days=30)
MAX_LIFETIME: Final = dt.timedelta(days=36_525)
"""A hundred years: a far end that somebody takes for none; without a bound calendars end before a successor does."""


CHECKED: Final = frozenset({"label", "requests_per_minute"})
"""What the model says of a new key's fields; all else follows from its owner, its scopes and its end."""


class KeyEnded(Exception):
    """A key opens nothing any more, so that nothing takes its place."""


def kind_of(owner: Owner) -> KeyKind:
    """Return the kind of a key of `owner`."""
    match owner:
        case Publisher():
            return KeyKind.PUBLISHER
        case Subscriber():
            return KeyKind.SUBSCRIBER
        case None:
            return KeyKind.MANAGEMENT


def what_is_wrong_with_end(expires_at: dt.datetime | None, *, now: dt.datetime) -> str:
    """Return why no key is given this end; nothing if one may be."""
    if expires_at is None or now < expires_at <= now + MAX_LIFETIME:
        return ""
    if expires_at <= now:
        return "This time has passed already; revoke the key to end it now."
    return "This is more than a hundred years away: leave it empty for a key that does not expire."


def issue(
    owner: Owner,
    *,
    random_bytes: bytes,
    now: dt.datetime,
    issuer: Issuer,
    label: str = "",
    scopes: Collection[str] | None = None,
    expires_at: dt.datetime | None = None,
    requests_per_minute: int | None = None,
) -> tuple[ApiKey, str]:
    """Store a new key of `owner`; return it with its token, which nobody can read again.

    Raises:
        ValidationError: it would have expired already, or in too many years, or its kind has not these scopes, or no
            key has such a label or limit.
        BeyondIssuer: it would open more than `issuer` may pass on, for longer, or send more.

    """
    if wrong := what_is_wrong_with_end(expires_at, now=now):
        raise ValidationError({"expires_at": wrong})
    given = _given(kind_of(owner), scopes)
    issuer.check(kind_of(owner), given, until=expires_at, requests_per_minute=requests_per_minute)
    key = ApiKey(
        kind=kind_of(owner),
        publisher=owner if isinstance(owner, Publisher) else None,
        subscriber=owner if isinstance(owner, Subscriber) else None,
        scopes=given,
        label=label,
        expires_at=expires_at,
        requests_per_minute=requests_per_minute,
    )
    key.clean_fields(exclude={field.name for field in ApiKey._meta.fields} - CHECKED)  # noqa: SLF001 - documented by Django
    return _stored(key, random_bytes=random_bytes, now=now, issuer=issuer)


def rotate(
    which: QuerySet[ApiKey],
    *,
    random_bytes: bytes,
    now: dt.datetime,
    issuer: Issuer,
    overlap: dt.timedelta = OVERLAP,
    expected: Versions | None = None,
) -> tuple[ApiKey, str]:
    """Let a successor take the place of the one key in `which`, which ends after `overlap`, or sooner.

    The successor is the same but for its token, and lives as long as the former was issued for: an end that the former
    has by this or an earlier rotation is not the successor's.

    Raises:
        KeyEnded: it opens nothing any more.
        BeyondIssuer: it opens more than `issuer` may pass on or may send more, or its successor would live longer.
        VersionMismatch: see `configuring.change`.

    """
    with transaction.atomic():
        former = locked(which, expected)
        if former.has_ended(now):
            raise KeyEnded("This key has ended, and nothing takes its place: issue another one.")
        expires_at = former.expires_at and now + min(former.expires_at - former.created_at, MAX_LIFETIME)
        issuer.check(former.kind, former.scopes, until=expires_at, requests_per_minute=former.requests_per_minute)
        change(which, changes={"retires_at": min(former.retires_at or now + overlap, now + overlap)})
        return _stored(_successor(former, expires_at), random_bytes=random_bytes, now=now, issuer=issuer)


def _successor(former: ApiKey, expires_at: dt.datetime | None) -> ApiKey:
    return ApiKey(
        kind=former.kind,
        publisher_id=former.publisher_id,
        subscriber_id=former.subscriber_id,
        scopes=former.scopes,
        label=former.label,
        expires_at=expires_at,
        requests_per_minute=former.requests_per_minute,
        successor_of=former,
    )


def revoke(which: QuerySet[ApiKey], *, now: dt.datetime, expected: Versions | None = None) -> ApiKey:
    """Make the one key in `which` useless from now on; revoking twice keeps the first time."""
    with transaction.atomic():
        key = change(which, changes={}, expected=expected)
        return key if key.revoked_at else change(which, changes={"revoked_at": now})


def _given(kind: KeyKind, asked: Collection[str] | None) -> list[Scope]:
    try:
        return scopes_of(kind, asked)
    except NotOpened as refused:
        raise ValidationError({"scopes": str(refused)}) from refused


def _stored(key: ApiKey, *, random_bytes: bytes, now: dt.datetime, issuer: Issuer) -> tuple[ApiKey, str]:
    token = token_of(random_bytes)
    key.prefix, key.digest = shown_prefix_of(token), digest_of(token)
    key.created_at, key.issued_by = now, issuer.name[: ApiKey._meta.get_field("issued_by").max_length]  # noqa: SLF001 - documented by Django
    key.save(force_insert=True)
    return key, token
