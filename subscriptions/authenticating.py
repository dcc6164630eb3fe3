"""Authenticating: from a bearer token to its key."""

import datetime as dt
from typing import Final

from django.db.models import Q

from subscriptions.key_tokens import digest_of
from subscriptions.models import ApiKey

USE_IS_NOTED_EVERY: Final = dt.timedelta(minutes=1)
"""`last_used_at` is for people who clean up; a write per request would make it the hottest row of the broker."""


def key_for(token: str, *, now: dt.datetime) -> ApiKey | None:
    """Return the usable key that `token` belongs to, None if there is none; notes its use once a minute."""
    key = ApiKey.objects.usable(at=now).filter(digest=digest_of(token)).first()
    if key and (key.last_used_at is None or key.last_used_at <= now - USE_IS_NOTED_EVERY):
        _note_use(key, now)
    return key


def _note_use(key: ApiKey, now: dt.datetime) -> None:
    """Set `last_used_at` unless somebody else just did."""
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USE_IS_NOTED_EVERY)
    ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=now)
