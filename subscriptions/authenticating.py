"""Authenticating: from a bearer token to its key."""

import datetime as dt
from typing import Final

from django.db import DEFAULT_DB_ALIAS
from django.db.models import Q

from subscriptions.database import rows
from subscriptions.key_tokens import digest_of
from subscriptions.models import ApiKey

USE_IS_NOTED_EVERY: Final = dt.timedelta(minutes=1)
"""`last_used_at` is for people who clean up; a write per request would make it the hottest row of the broker."""

COLUMNS: Final = ("id", "kind", "publisher_id", "subscriber_id", "last_used_at")
"""What a request needs to know of its key; anything else would be read when asked for."""

USABLE: Final = """
SELECT id, kind, publisher_id, subscriber_id, last_used_at
  FROM subscriptions_apikey
 WHERE digest = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %s)
"""
"""Prepared, since every publish begins with it: through the ORM it costs as much as the publish itself."""

STILL: Final = """
SELECT FROM subscriptions_apikey WHERE id = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %s)
"""


def key_for(token: str, *, now: dt.datetime) -> ApiKey | None:
    """Return the usable key that `token` belongs to, None if there is none; notes its use once a minute."""
    found = rows(USABLE, [digest_of(token), now])
    if not found:
        return None
    key = ApiKey.from_db(DEFAULT_DB_ALIAS, COLUMNS, found[0])
    if key.last_used_at is None or key.last_used_at <= now - USE_IS_NOTED_EVERY:
        _note_use(key, now)
    return key


def is_usable(key: ApiKey, *, now: dt.datetime) -> bool:
    """Tell whether a key that was usable is so still: for whoever has waited since."""
    return bool(rows(STILL, [key.pk, now]))


def _note_use(key: ApiKey, now: dt.datetime) -> None:
    """Set `last_used_at` unless somebody else just did."""
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USE_IS_NOTED_EVERY)
    ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=now)
