"""Links to the portal: each opens one subscriber's pages, once, with a short-lived key of its own (contract 1.10).

The link has a random token. That of the key is its signature with the secret key of the broker: so whoever has the link
cannot use the API with it, and the broker stores neither of the two. A link that was signed with a former secret key
opens while that is among the fallbacks.
"""

import datetime as dt
import secrets
from collections.abc import Collection
from typing import Final

import structlog
from django.core.signing import Signer

from broker_project.core.db import rows
from subscriptions.credentials.keys import issue, revoke
from subscriptions.credentials.scopes import Issuer, Scope
from subscriptions.credentials.tokens import BEGINNING, TOKEN_BYTES, digest_of
from subscriptions.models import ApiKey, Subscriber

LIFETIME: Final = dt.timedelta(hours=1)
MIN_LIFETIME: Final = dt.timedelta(minutes=1)
MAX_LIFETIME: Final = dt.timedelta(days=1)
KEPT: Final = dt.timedelta(days=30)
"""How long ended keys of the portal are kept, so that the prefixes in the log name somebody."""
PORTAL_SCOPES: Final = (Scope.READ, Scope.CONFIGURE, Scope.OPERATE)
"""What a link can let people do in the portal; all but using the mailbox."""
DEFAULT_SCOPES: Final = (Scope.READ, Scope.OPERATE)
"""Without `configure`, since that subscribes to any TOPIC event type."""

MAX_FORMS: Final = 50
"""The newest are kept: nobody reloads older pages."""
NOTE_FORM: Final = f"""
UPDATE subscriptions_apikey
   SET sent_forms = sent_forms[GREATEST(1, cardinality(sent_forms) - {MAX_FORMS} + 2):] || %(form)s::varchar
 WHERE id = %(key_id)s AND %(form)s::varchar <> ALL (sent_forms) RETURNING id
"""

log = structlog.get_logger(__name__)


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

    Reading is always among its scopes, since every page does it. The key has the rate limit of its issuer.
    """
    link = secrets.token_urlsafe(TOKEN_BYTES)
    key, _ = issue(
        subscriber,
        now=now,
        issuer=issuer,
        label=label,
        scopes={Scope.READ, *scopes},
        expires_at=now + lifetime,
        requests_per_minute=issuer.requests_per_minute,
        portal_token=_tokens_behind(link)[0],
    )
    log_portal("portal.link_created", key)
    return key, link


def log_portal(event: str, key: ApiKey) -> None:
    """Log what happened to a link or the portal that it opens, and for whom."""
    log.info(event, subscriber=str(key.subscriber), key=key.pk, prefix=key.prefix, label=key.label)


def open_link(link: str, *, now: dt.datetime) -> str | None:
    """Return the token of the key behind a link; None if it was opened before, or the key is unknown or has ended.

    Until then nobody has had the token: the key has never been used.
    """
    unused = ApiKey.objects.filter(is_portal=True, last_used_at=None, revoked_at=None, retires_at=None)
    unopened = unused.filter(expires_at__gt=now)
    tokens = _tokens_behind(link)
    return next((one for one in tokens if unopened.filter(digest=digest_of(one)).update(last_used_at=now)), None)


def end_session(token: str, *, now: dt.datetime) -> None:
    """Revoke the key of the session with this token, if there is one."""
    running = ApiKey.objects.filter(is_portal=True, revoked_at=None, expires_at__gt=now, digest=digest_of(token))
    for key in running:
        log_portal("portal.left", revoke(ApiKey.objects.filter(pk=key.pk), now=now))


def subscriber_of(link: str) -> int | None:
    """Return the subscriber whose portal a link opens or has opened; None for an unknown link."""
    found = ApiKey.objects.filter(is_portal=True, digest__in=[*map(digest_of, _tokens_behind(link))])
    return found.values_list("subscriber_id", flat=True).first()


def note_form(key_id: int, form: str) -> bool:
    """Note that a form of a portal was sent; return False if that was noted before.

    It waits for the transaction in which the same form is noted at this moment.
    """
    return bool(rows(NOTE_FORM, {"key_id": key_id, "form": form}))


def forget_ended_portal_keys(now: dt.datetime) -> None:
    """Delete the keys of links and portals that expired long ago."""
    ApiKey.objects.filter(is_portal=True, expires_at__lte=now - KEPT).delete()


def _tokens_behind(link: str) -> list[str]:
    """Return the token that the present secret key makes of a link, and those of the former ones."""
    signer = Signer(salt="subscriptions.portal_link")
    return [BEGINNING + signer.signature(link, secret) for secret in (signer.key, *signer.fallback_keys)]
