"""Authenticating: from a bearer token to its key; what is refused is logged, never with a token."""

import datetime as dt
from typing import Final

import structlog
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Q

from broker_project.core.db import rows
from subscriptions.credentials.tokens import could_be_token, digest_of
from subscriptions.models import ApiKey, Publisher, Subscriber

log = structlog.get_logger(__name__)

USE_IS_NOTED_EVERY: Final = dt.timedelta(minutes=1)
"""`last_used_at` is for people who clean up; a write per request would make it the hottest row of the broker."""

COLUMNS: Final = ("id", "kind", "publisher_id", "subscriber_id", "prefix", "requests_per_minute", "last_used_at")
"""What a request needs to know of its key, in the order of the model; anything else would be read when asked for.

The prefix, which the log names it by, must be known when all is done and the connection may have been given back.
"""
SUBSCRIBER: Final = ("id", "name", "mailbox_ordered", "ack_seconds", "max_redeliveries")
"""And of its subscriber, if it has one: what a mailbox's calls are about."""
PUBLISHER: Final = ("id", "max_open_messages")
"""And of its publisher."""

USABLE: Final = """
SELECT k.id, k.kind, k.publisher_id, k.subscriber_id, k.prefix, k.requests_per_minute, k.last_used_at,
       s.id, s.name, s.mailbox_ordered, s.ack_seconds, s.max_redeliveries, array_to_string(k.scopes, ' '),
       (SELECT p.max_open_messages FROM subscriptions_publisher p WHERE p.id = k.publisher_id)
  FROM subscriptions_apikey k LEFT JOIN subscriptions_subscriber s ON s.id = k.subscriber_id
 WHERE k.digest = %(digest)s AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > %(now)s)
   AND (k.retires_at IS NULL OR k.retires_at > %(now)s)
"""
"""Prepared, since every publish and fetch begins with it: through the ORM it costs as much as the publish itself.

The scopes are read as a text: psycopg takes longer to make a list of an array than for all the rest.
"""

STILL: Final = """
SELECT FROM subscriptions_apikey
 WHERE id = %(id)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)
   AND (retires_at IS NULL OR retires_at > %(now)s)
"""


def key_for(token: str, *, now: dt.datetime) -> ApiKey | None:
    """Return the usable key that `token` belongs to, None if there is none; notes its use once a minute."""
    found = rows(USABLE, {"digest": digest_of(token), "now": now}) if could_be_token(token) else []
    if not found:
        _log_refusal(token)
        return None
    *columns, scopes, max_open = found[0]
    key = ApiKey.from_db(DEFAULT_DB_ALIAS, COLUMNS, columns[: len(COLUMNS)])
    key.scopes = scopes.split()
    if key.subscriber_id is not None:
        key.subscriber = Subscriber.from_db(DEFAULT_DB_ALIAS, SUBSCRIBER, columns[len(COLUMNS) :])
    elif key.publisher_id is not None:
        key.publisher = Publisher.from_db(DEFAULT_DB_ALIAS, PUBLISHER, [key.publisher_id, max_open])
    if key.last_used_at is None or key.last_used_at <= now - USE_IS_NOTED_EVERY:
        _note_use(key, now)
    return key


def is_usable(key: ApiKey, *, now: dt.datetime) -> bool:
    """Tell whether a key that was usable is so still: for whoever has waited since."""
    return bool(rows(STILL, {"id": key.pk, "now": now}))


def _note_use(key: ApiKey, now: dt.datetime) -> None:
    """Set `last_used_at` unless somebody else just did."""
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USE_IS_NOTED_EVERY)
    ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=now)


def _log_refusal(token: str) -> None:
    """Say which key opened nothing, if there is one; of what is no key's token nothing is said."""
    key = ApiKey.objects.filter(digest=digest_of(token)).first() if could_be_token(token) else None
    if key is None:
        log.warning("api_key.unknown")
        return
    why = "revoked" if key.revoked_at else "rotated" if key.retires_at == key.ends_at else "expired"
    log.warning("api_key.refused", why=why, key=key.pk, prefix=key.prefix)
