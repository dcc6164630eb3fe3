"""Links to the portal: each opens one subscriber's pages, once, with a short-lived key of its own (contract 1.10).

The link has a random token. That of the key is its signature with the secret key of the broker: so whoever has the link
cannot use the API with it, and the broker stores neither of the two.
"""

import datetime as dt
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Collection
from typing import Final

from django.utils.crypto import salted_hmac

from subscriptions.credentials.keys import issue
from subscriptions.credentials.scopes import Issuer, Scope
from subscriptions.credentials.tokens import BEGINNING, TOKEN_BYTES, digest_of
from subscriptions.models import ApiKey, Subscriber

LIFETIME: Final = dt.timedelta(hours=1)
MIN_LIFETIME: Final = dt.timedelta(minutes=1)
MAX_LIFETIME: Final = dt.timedelta(days=1)
PORTAL_SCOPES: Final = (Scope.READ, Scope.CONFIGURE, Scope.OPERATE)
"""What a link can let people do in the portal; all but using the mailbox."""
DEFAULT_SCOPES: Final = (Scope.READ, Scope.OPERATE)
"""Without `configure`, since that subscribes to any TOPIC event type."""


def issue_link(
    subscriber: Subscriber,
    *,
    now: dt.datetime,
    issuer: Issuer,
    lifetime: dt.timedelta = LIFETIME,
    scopes: Collection[str] = DEFAULT_SCOPES,
    label: str = "",
) -> tuple[ApiKey, str]:
    """Issue a key for the portal, which ends after `lifetime`; return it with the token of the link. Raise as `issue`.

    Reading is always among its scopes, since every page does it.
    """
    link = secrets.token_urlsafe(TOKEN_BYTES)
    key, _ = issue(
        subscriber,
        now=now,
        issuer=issuer,
        label=label,
        scopes={Scope.READ, *scopes},
        expires_at=now + lifetime,
        portal_token=_token_behind(link),
    )
    return key, link


def open_link(link: str, *, now: dt.datetime) -> str | None:
    """Return the token of the key behind a link; None if it was opened before, or the key is unknown or has ended.

    Until then nobody has had the token: the key has never been used.
    """
    token = _token_behind(link)
    unused = ApiKey.objects.filter(is_portal=True, last_used_at=None, revoked_at=None, retires_at=None)
    opened = unused.filter(digest=digest_of(token), expires_at__gt=now).update(last_used_at=now)
    return token if opened else None


def forget_ended_portal_keys(now: dt.datetime) -> None:
    """Delete the keys of links and portals that have expired."""
    ApiKey.objects.filter(is_portal=True, expires_at__lte=now).delete()


def _token_behind(link: str) -> str:
    signature = salted_hmac("subscriptions.portal_link", link, algorithm="sha256").digest()
    return BEGINNING + urlsafe_b64encode(signature).decode().rstrip("=")
