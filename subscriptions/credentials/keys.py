"""Authenticate, issue, rotate and revoke API keys; one owner can have several (contract 1.2)."""

import datetime as dt
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import structlog
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Q, QuerySet

from broker_project.core import boot_clock
from broker_project.core.db import array, rows
from subscriptions.credentials.scopes import Issuer, KeyKind, NotOpened, scopes_of
from subscriptions.credentials.tokens import BEGINNING, SHOWN_CHARACTERS, TOKEN_BYTES, could_be_token, digest_of
from subscriptions.edit import Versions, change, locked
from subscriptions.models import ApiKey, Publisher, Subscriber
from subscriptions.names import is_name
from subscriptions.publishable import COLUMNS, Publishable

Owner = Publisher | Subscriber | None
"""Of a key; None is management."""

OVERLAP: Final = dt.timedelta(hours=24)
"""How long a rotated key stays valid beside its successor by default."""
MAX_OVERLAP: Final = dt.timedelta(days=30)
MAX_LIFETIME: Final = dt.timedelta(days=36_525)
"""A hundred years: without a limit, the end of a successor could be beyond the calendar."""
USE_IS_NOTED_EVERY: Final = dt.timedelta(minutes=1)
"""`last_used_at` is for cleaning up; a write per request would make it the hottest row of the broker."""
CLEANED: Final = frozenset({"label", "requests_per_minute"})
"""Fields of a new key that the model validates; the others follow from its owner, scopes and end."""

log = structlog.get_logger(__name__)

KEY: Final = ("id", "kind", "publisher_id", "subscriber_id", "label", "prefix", "requests_per_minute", "last_used_at")
SUBSCRIBER: Final = ("id", "name", "mailbox_ordered", "ack_seconds", "max_redeliveries")
PUBLISHER: Final = ("id", "max_open_messages")
"""The fields of a key and its owner that requests need, in the order of the model; others are deferred.

Prefix and label are logged when the connection may already have been returned, or lost.
"""
EVENT_TYPE_COLUMNS: Final = len(fields(Publishable))
_MAX_OPEN: Final = "(SELECT p.max_open_messages FROM subscriptions_publisher p WHERE p.id = k.publisher_id)"
STATE: Final = f"hash_record_extended(ROW (k.id, k.publisher_id, k.requests_per_minute, {_MAX_OPEN}, {COLUMNS}), 0)"
"""A hash of what can change of a key `k`, its publisher and an event type `e`, and a publish is checked against."""
_AT_ALL: Final = """
  JOIN subscriptions_apikey k ON k.digest = a.digest
  LEFT JOIN subscriptions_eventtype e ON e.name = a.event_type"""
_USABLE: Final = """k.revoked_at IS NULL
   AND (k.expires_at IS NULL OR k.expires_at > {now}) AND (k.retires_at IS NULL OR k.retires_at > {now})"""
USABLE: Final = f"""
SELECT a.number,
       k.id, k.kind, k.publisher_id, k.subscriber_id, k.label, k.prefix, k.requests_per_minute, k.last_used_at,
       s.id, s.name, s.mailbox_ordered, s.ack_seconds, s.max_redeliveries, array_to_string(k.scopes, ' '),
       {_MAX_OPEN}, {STATE},
       {COLUMNS}
  FROM unnest(%(digests)s::bytea[], %(event_types)s::text[]) WITH ORDINALITY AS a (digest, event_type, number){_AT_ALL}
  LEFT JOIN subscriptions_subscriber s ON s.id = k.subscriber_id
 WHERE {_USABLE.format(now="%(now)s")}
"""
"""Keys, each with an event type to be published with it, if there is one.

Prepared, since it is what publishes and fetches begin with: through the ORM it costs as much as the publish itself. The
scopes are read as text: for psycopg, making a list of an array takes longer than all the rest.
"""
AS_FOUND: Final = f"""NOT EXISTS (
  SELECT FROM unnest(%(digests)s::bytea[], %(event_types)s::text[], %(states)s::bigint[])
           AS f (digest, event_type, state)
   WHERE f.state IS DISTINCT FROM (
     SELECT {STATE} FROM (SELECT f.digest, f.event_type) a{_AT_ALL} WHERE {_USABLE.format(now="clock_timestamp()")}))"""
"""The condition that keys are usable, and as they were found, and the event types too."""
MAX_REMEMBERED: Final = 1024
"""Keys with event types that a process remembers."""
FORGOTTEN_SECONDS: Final = 10.0
"""How long a key with an event type is not remembered again after a publish that was not confirmed."""
STILL_USABLE: Final = """
SELECT FROM subscriptions_apikey
 WHERE id = %(id)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)
   AND (retires_at IS NULL OR retires_at > %(now)s)
"""


class Asked(NamedTuple):
    """The digest of a token, and the event type that is to be published with it; empty: none, or not known yet."""

    digest: bytes
    event_type: str = ""


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A usable key, with the event type that is to be published with it."""

    asked: Asked
    key: ApiKey
    event_type: Publishable | None = None
    """None: there is no such event type, or none was asked for."""
    state: int = 0
    """A hash of both as they were read."""
    is_remembered: bool = False
    """Whether they were read for an earlier publish, so that the statement that stores this one has to confirm them."""


_remembered: Final[dict[Asked, FoundKey]] = {}
"""What publishes in one statement were checked against: the next ones need not look it up."""
_not_before: Final[dict[Asked, float]] = {}
"""What was forgotten, and the time since boot before which it is not remembered again."""


class KeyEnded(Exception):
    """The key is no longer valid, so it has no successor."""


def key_for(token: str, *, now: dt.datetime) -> ApiKey | None:
    """Return the usable key with this token, None if there is none; log a refusal, note the use once a minute."""
    if not could_be_token(token):
        log.warning("api_key.unknown")
        return None
    asked = Asked(digest_of(token))
    if found := keys_for([asked], now=now):
        return found[asked].key
    refused = ApiKey.objects.filter(digest=asked.digest).first()
    if refused is None:
        log.warning("api_key.unknown")
        return None
    why = "revoked" if refused.revoked_at else "rotated" if refused.retires_at == refused.ends_at else "expired"
    log.warning("api_key.refused", why=why, key=refused.pk, prefix=refused.prefix)
    return None


def keys_for(asked: Collection[Asked], *, now: dt.datetime) -> dict[Asked, FoundKey]:
    """Read usable keys, each with the event type to be published with it; note their use once a minute."""
    places = [*asked]
    found: dict[Asked, FoundKey] = {}
    keys: dict[bytes, ApiKey] = {}
    for number, *columns in rows(USABLE, {**_columns(places), "now": now}) if places else []:
        *of_key, state = columns[:-EVENT_TYPE_COLUMNS]
        of_event_type, one = columns[-EVENT_TYPE_COLUMNS:], places[number - 1]
        event_type = None if of_event_type[0] is None else Publishable(*of_event_type)
        key = keys[one.digest] = keys.get(one.digest) or _used(of_key, now)
        found[one] = FoundKey(one, key, event_type, state)
    return found


def remembered_keys(asked: Collection[Asked], *, now: dt.datetime) -> dict[Asked, FoundKey]:
    """Return what is remembered, if that is all that is asked for and no use has to be noted; else nothing."""
    found = {one: _remembered.get(one) for one in asked}
    known = {one: of_one for one, of_one in found.items() if of_one and not _is_to_be_noted(of_one.key, now)}
    return known if len(known) == len(found) else {}


def remember(found: Iterable[FoundKey]) -> None:
    """Remember keys and event types that a statement has just confirmed, unless they were forgotten a moment ago."""
    if len(_remembered) > MAX_REMEMBERED:
        _remembered.clear()
    for one in found:
        if not one.is_remembered and _not_before.get(one.asked, 0.0) <= boot_clock.since_boot():
            _remembered[one.asked] = replace(one, is_remembered=True)


def forget(asked: Iterable[Asked]) -> None:
    """Forget these for a while: a publish that is not confirmed is read twice, which costs more than a look-up."""
    if len(_not_before) > MAX_REMEMBERED:
        _not_before.clear()
    for one in asked:
        _remembered.pop(one, None)
        _not_before[one] = boot_clock.since_boot() + FORGOTTEN_SECONDS


def as_found(found: Sequence[FoundKey]) -> dict[str, Any]:
    """Return the arguments of `AS_FOUND`."""
    return {**_columns([one.asked for one in found]), "states": array(one.state for one in found)}


def _columns(asked: Sequence[Asked]) -> dict[str, Any]:
    return {
        "digests": array(f'"\\\\x{one.digest.hex()}"' for one in asked),
        "event_types": array(f'"{one.event_type}"' if is_name(one.event_type) else None for one in asked),
    }


def _is_to_be_noted(key: ApiKey, now: dt.datetime) -> bool:
    return key.last_used_at is None or key.last_used_at <= now - USE_IS_NOTED_EVERY


def _used(row: Sequence[Any], now: dt.datetime) -> ApiKey:
    *columns, scopes, max_open = row
    key = ApiKey.from_db(DEFAULT_DB_ALIAS, KEY, columns[: len(KEY)])
    key.scopes = scopes.split()
    if key.subscriber_id is not None:
        key.subscriber = Subscriber.from_db(DEFAULT_DB_ALIAS, SUBSCRIBER, columns[len(KEY) :])
    elif key.publisher_id is not None:
        key.publisher = Publisher.from_db(DEFAULT_DB_ALIAS, PUBLISHER, [key.publisher_id, max_open])
    if _is_to_be_noted(key, now):
        stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USE_IS_NOTED_EVERY)  # unless another request just did
        ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=now)
        key.last_used_at = now
    return key


def is_usable(key: ApiKey, *, now: dt.datetime) -> bool:
    """Return whether a key that was usable still is, for requests that have waited since."""
    return bool(rows(STILL_USABLE, {"id": key.pk, "now": now}))


def kind_of(owner: Owner) -> KeyKind:
    """Return the kind of a key of `owner`."""
    match owner:
        case Publisher():
            return KeyKind.PUBLISHER
        case Subscriber():
            return KeyKind.SUBSCRIBER
        case None:
            return KeyKind.MANAGEMENT


def end_problem(expires_at: dt.datetime | None, *, now: dt.datetime) -> str:
    """Return why a key cannot have this end; "" if it can."""
    if expires_at is None or now < expires_at <= now + MAX_LIFETIME:
        return ""
    if expires_at <= now:
        return "This time has passed already; revoke the key to end it now."
    return "This is more than a hundred years away: leave it empty for a key that does not expire."


def issue(
    owner: Owner,
    *,
    now: dt.datetime,
    issuer: Issuer,
    label: str = "",
    scopes: Collection[str] | None = None,
    expires_at: dt.datetime | None = None,
    requests_per_minute: int | None = None,
    portal_token: str = "",
) -> tuple[ApiKey, str]:
    """Store a new key of `owner`; return it with its token, which cannot be read again.

    With `portal_token`, that is the token, and the key is for the portal.

    Raise `ValidationError` for an invalid end, scope, label or limit, `BeyondIssuer` if it could do more than `issuer`.
    """
    if problem := end_problem(expires_at, now=now):
        raise ValidationError({"expires_at": problem})
    kind = kind_of(owner)
    try:
        opened = scopes_of(kind, scopes)
    except NotOpened as refused:
        raise ValidationError({"scopes": str(refused)}) from refused
    issuer.check(kind, opened, until=expires_at, requests_per_minute=requests_per_minute)
    key = ApiKey(
        kind=kind,
        publisher=owner if isinstance(owner, Publisher) else None,
        subscriber=owner if isinstance(owner, Subscriber) else None,
        scopes=opened,
        label=label,
        expires_at=expires_at,
        requests_per_minute=requests_per_minute,
        is_portal=bool(portal_token),
    )
    key.clean_fields(exclude={field.name for field in ApiKey._meta.fields} - CLEANED)  # noqa: SLF001 - documented by Django
    return key, _store(key, now=now, issuer=issuer, token=portal_token or _new_token())


def rotate(
    queryset: QuerySet[ApiKey],
    *,
    now: dt.datetime,
    issuer: Issuer,
    overlap: dt.timedelta = OVERLAP,
    expected: Versions | None = None,
) -> tuple[ApiKey, str]:
    """Issue a successor of the one key in `queryset`, which ends after `overlap`, or sooner; return it with its token.

    The successor differs in its token only, and lives as long as the former key was issued for: an end that the former
    has because of this or an earlier rotation is not the successor's. Raise `KeyEnded` if the key is no longer valid,
    `BeyondIssuer` if the successor could do more than `issuer`, else as `edit.change`.
    """
    with transaction.atomic():
        former = locked(queryset, expected)
        if former.has_ended(now):
            raise KeyEnded("This key has ended, and nothing takes its place: issue another one.")
        expires_at = former.expires_at and now + min(former.expires_at - former.created_at, MAX_LIFETIME)
        issuer.check(former.kind, former.scopes, until=expires_at, requests_per_minute=former.requests_per_minute)
        change(queryset, changes={"retires_at": min(former.retires_at or now + overlap, now + overlap)})
        same = ("kind", "publisher_id", "subscriber_id", "scopes", "label", "requests_per_minute")
        successor = ApiKey(**{name: getattr(former, name) for name in same}, expires_at=expires_at, successor_of=former)
        return successor, _store(successor, now=now, issuer=issuer, token=_new_token())


def revoke(queryset: QuerySet[ApiKey], *, now: dt.datetime, expected: Versions | None = None) -> ApiKey:
    """Make the one key in `queryset` invalid from now on; revoking twice keeps the first time."""
    with transaction.atomic():
        key = change(queryset, changes={}, expected=expected)
        return key if key.revoked_at else change(queryset, changes={"revoked_at": now})


def _new_token() -> str:
    return BEGINNING + secrets.token_urlsafe(TOKEN_BYTES)


def _store(key: ApiKey, *, now: dt.datetime, issuer: Issuer, token: str) -> str:
    """Save a new key; return its token."""
    key.prefix, key.digest = token[:SHOWN_CHARACTERS], digest_of(token)
    key.created_at, key.issued_by = now, issuer.name[: ApiKey._meta.get_field("issued_by").max_length]  # noqa: SLF001 - documented by Django
    key.save(force_insert=True)
    return token
