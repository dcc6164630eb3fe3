"""What a publisher sends, and the checks that need no database (contract 2)."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import orjson
from django.core.exceptions import ValidationError

from broker_project.core.json import is_json
from delivery.publish.errors import InvalidMetadata, MalformedPayload, UnsuitableCallback
from delivery.publish.json_cursor import GRAMMAR
from subscriptions.endpoints import parse_endpoint
from subscriptions.filters import Document
from subscriptions.names import FIRST, FURTHER, MAX_NAME_LENGTH

MAX_HEADERS: Final = 100
MAX_HEADER_CHARACTERS: Final = 32 * 1024
"""All headers of a message together. An endpoint that cannot take more would hold its line forever."""
MAX_HEADER_NAME: Final = 256
MAX_HEADER_VALUE: Final = 8192
SAFE_LEVELS: Final = 900
"""This nesting is always accepted; whether more is depends on the parser."""

GUARANTEED: Final = "guaranteed"
"""Stored before it is answered, and sent until it is accepted."""
VOLATILE: Final = "volatile"
"""Never stored, and sent once."""

MAX_AHEAD: Final = timedelta(days=30)
"""The longest time to live, and the furthest `not_before`."""
UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

PATTERNS: Final = (
    (
        "idempotency_key",
        re.compile(r"[\x21-\x7e]{1,255}"),
        "An idempotency key has 1 to 255 visible ASCII characters without blanks.",
    ),
    (
        "filter_string",
        re.compile(r"[\t\x20-\x7e]{1,4096}"),
        "A filter string has 1 to 4096 characters, visible ASCII and blanks; or leave it out.",
    ),
    (
        "content_type",
        re.compile(r"([\x21-\x7e][\x20-\x7e]{0,254})?"),
        "A content type has 1 to 255 visible ASCII characters, such as application/json.",
    ),
)
"""Fields of a draft, what they must match, and the error text."""

_HEADER_NAME = re.compile(rf"[!#$%&'*+.^_`|~0-9A-Za-z-]{{1,{MAX_HEADER_NAME}}}")
_HEADER_VALUE = re.compile(rf"[\t\x20-\x7e\x80-\xff]{{0,{MAX_HEADER_VALUE}}}")
_ABSOLUTE = re.compile("https?://", re.IGNORECASE)
_WITH_LOGIN = re.compile("https?://[^/?#]*@", re.IGNORECASE)
_DESTINATION = re.compile(rf"({FIRST}{FURTHER}*)(?:/(\d{{1,10}}))?|#(\d{{1,18}})", re.ASCII)
_TTL = re.compile(r"(\d{1,8})([smhd]?)", re.ASCII)
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Draft:
    """One message as a publisher sent it, not checked yet."""

    event_type: str
    body: bytes
    content_type: str | None = None
    """None: the event type's."""
    headers: Sequence[tuple[str, str]] = ()
    filter_string: str | None = None
    idempotency_key: str | None = None
    callback_url: str | None = None
    """Where the result of a QUEUE message is to be posted (contract 6.7)."""
    destination: str | None = None
    """A subscriber or subscription (`Addressee`), `default` (each subscriber once), or None: all that qualify."""
    ttl: float | None = None
    """Seconds after which it is not sent any more (contract 2.10)."""
    not_before: datetime | None = None
    """It is not sent earlier (contract 2.13)."""


class Addressee(NamedTuple):
    """Whom a destination names (contract 2.8): by a name a subscriber, or by position or id one subscription."""

    subscriber: str | None
    position: int | None
    subscription_id: int | None


def parse_destination(destination: str) -> Addressee:
    """Return whom a destination names; raise `InvalidMetadata` if it has none of its three forms."""
    found = _DESTINATION.fullmatch(destination)
    if not found or len(destination) > MAX_NAME_LENGTH:
        raise InvalidMetadata(
            "A destination is the name of a subscriber, NAME/POSITION or #ID for one subscription, or 'default' for "
            f"each subscriber once, and has at most {MAX_NAME_LENGTH} characters."
        )
    position, subscription_id = (int(number) if number else None for number in found.groups()[1:])
    return Addressee(found[1], position, subscription_id)


def document_of(
    headers: Sequence[tuple[str, str]], content_type: str, filter_string: str | None, body: bytes
) -> Document:
    """Return what filters see of a message: its stored headers, `FILTER_STRING` among them, and its body."""
    seen = [*headers]
    if all(name.lower() != "content-type" for name, _ in headers):
        seen.append(("Content-Type", content_type))  # an item of a batch, or one that left it to its event type
    if filter_string is not None:
        seen.append(("FILTER_STRING", filter_string))
    return Document(seen, body, is_json=is_json(content_type))


def check_metadata(draft: Draft) -> None:
    """Raise `InvalidMetadata` or `UnsuitableCallback` for anything unusable except the body."""
    for field, pattern, text in PATTERNS:
        value = getattr(draft, field)
        if value is not None and not pattern.fullmatch(value):
            raise InvalidMetadata(text)
    if draft.destination is not None:
        parse_destination(draft.destination)
    if draft.callback_url is not None:
        _check_callback_url(draft.callback_url)
    characters = sum(len(name) + len(value) for name, value in draft.headers)
    if len(draft.headers) > MAX_HEADERS or characters > MAX_HEADER_CHARACTERS:
        raise InvalidMetadata(
            f"A message has at most {MAX_HEADERS} headers of {MAX_HEADER_CHARACTERS} characters in all."
        )
    for name, value in draft.headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidMetadata(
                f"{name[:100]!r} is not a usable header: a name has 1 to {MAX_HEADER_NAME} letters, digits or hyphens, "
                f"a value up to {MAX_HEADER_VALUE} characters of Latin-1 without control characters."
            )


def _check_callback_url(url: str) -> None:
    if not _ABSOLUTE.match(url):
        raise UnsuitableCallback("Give an absolute http:// or https:// URL as CallbackURL; replies are sent with POST.")
    if _WITH_LOGIN.match(url):
        raise UnsuitableCallback("The CallbackURL has a login; put what it needs into its path or query.")
    try:
        parse_endpoint(url)
    except ValidationError as refused:
        raise UnsuitableCallback(f"The CallbackURL cannot be used. {refused.message}") from None


def check_json(body: bytes) -> None:
    """Raise `MalformedPayload`, saying what is wrong and where, unless `body` is JSON in UTF-8.

    All that JSON allows is accepted: repeated keys, numbers of any size, lone surrogates as escapes.
    """
    try:
        orjson.loads(body)  # fast, and stricter than JSON: what it accepts is JSON
    except orjson.JSONDecodeError:
        if not body:
            raise MalformedPayload("The body is empty; send a JSON value.") from None
    else:
        return
    try:
        text = body.decode()
    except UnicodeDecodeError as broken:
        raise MalformedPayload(f"The body is not UTF-8: byte {broken.start} cannot be read.") from None
    if text.startswith("\ufeff"):
        raise MalformedPayload("The body begins with a byte order mark; JSON is sent without one.")
    try:
        GRAMMAR.decode(text)
    except RecursionError:
        raise MalformedPayload(f"The body is nested too deep; keep it within {SAFE_LEVELS} levels.") from None
    except ValueError as broken:
        raise MalformedPayload(f"The body is not JSON: {broken}.") from None


def durability_of(text: str | None) -> str:
    """Return `guaranteed` (also for None) or `volatile`; raise `InvalidMetadata` for any other text."""
    said = GUARANTEED if text is None else text
    if said not in {GUARANTEED, VOLATILE}:
        raise InvalidMetadata(
            f"Broker-Durability is '{GUARANTEED}', or '{VOLATILE}': send one of them, or leave it out."
        )
    return said


def time_of(ttl: str | None, not_before: str | None, *, now: datetime) -> tuple[float | None, datetime | None]:
    """Return a message's time to live from `now` in seconds, and before when it is not sent; None: not given.

    Raises `InvalidMetadata` if one cannot be read, or if the message would expire before it may be sent.
    """
    seconds = None if ttl is None else ttl_of(ttl)
    moment = None if not_before is None else moment_of(not_before, now=now)
    if seconds is not None and moment is not None and now + timedelta(seconds=seconds) <= moment:
        raise InvalidMetadata(
            "Its time to live, which counts from now on, ends before it may be sent: let it live longer."
        )
    return seconds, moment


def ttl_of(text: str) -> float:
    """Return the seconds of `90`, `15m` or `4d`; raise `InvalidMetadata` if unreadable or not from 1 s to 30 days."""
    found = _TTL.fullmatch(text)
    seconds = float(int(found[1]) * UNITS[found[2]]) if found else 0.0
    if not 1 <= seconds <= MAX_AHEAD.total_seconds():
        raise InvalidMetadata(
            f"A time to live is a number of seconds, or one with s, m, h or d behind it, as in 15m, from 1 s to "
            f"{MAX_AHEAD.days} d."
        )
    return seconds


def moment_of(text: str, *, now: datetime) -> datetime:
    """Return the moment, which may be past, in a text as in RFC 3339 or an HTTP date.

    Raises `InvalidMetadata` if it cannot be read, has no time zone, or is more than 30 days after `now`.
    """
    moment: datetime | None = None
    with suppress(ValueError, OverflowError):
        found = datetime.fromisoformat(text.upper()) if _RFC_3339.fullmatch(text) else parsedate_to_datetime(text)
        moment = found.astimezone(UTC) if found.tzinfo else None
    if moment is None:
        raise InvalidMetadata(
            "A time is given with its zone, as in 2026-12-24T18:00:00Z, or as in Thu, 24 Dec 2026 18:00:00 GMT."
        )
    if moment > now + MAX_AHEAD:
        raise InvalidMetadata(f"A message can be held back for {MAX_AHEAD.days} days at most.")
    return moment
