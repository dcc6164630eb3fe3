"""What a publisher sends, checked as far as it can be without the database (contract 2)."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import orjson
from django.core.exceptions import ValidationError

from broker_project.core.media_types import is_json, media_type_of
from delivery.publish.errors import InvalidMetadata, MalformedPayload, UnsuitableCallback, UnsuitableContentType
from subscriptions.endpoints import parse_endpoint
from subscriptions.names import is_name

MAX_KEY_CHARACTERS: Final = 255
MAX_HEADERS: Final = 100
MAX_HEADER_CHARACTERS: Final = 32 * 1024
"""All of a message's headers together: what an endpoint could not take would hold its line for ever."""

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,255}")
_CONTENT_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,254}")
_FILTER_STRING = re.compile(r"[\t\x20-\x7e]{1,4096}")
_ABSOLUTE = re.compile("https?://", re.IGNORECASE)
_WITH_LOGIN = re.compile("https?://[^/?#]*@", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")

SAFE_LEVELS: Final = 900
"""So deep is always taken; what lies beyond depends on the parser."""

GUARANTEED: Final = "guaranteed"
"""Stored before it is answered, and sent until it is taken."""
VOLATILE: Final = "volatile"
"""Stored nowhere, and sent once."""
MOST: Final = timedelta(days=30)
"""So long a message may live, or be held back, at most."""
UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

_TTL = re.compile(r"(\d{1,8})([smhd]?)", re.ASCII)
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Draft:
    """One message as a publisher sent it, not looked at yet."""

    event_type: str
    body: bytes
    content_type: str | None = None
    """None: not said; the event type's."""
    headers: Sequence[tuple[str, str]] = ()
    filter_string: str | None = None
    idempotency_key: str | None = None
    callback_url: str | None = None
    """Where the result of a QUEUE message is to be posted (contract 6.7)."""
    destination: str | None = None
    """The subscriber that it is for, or `default`: one for each; None: whoever qualifies (contract 2.8)."""
    ttl: float | None = None
    """Seconds after which it is not sent any more (contract 2.10)."""
    not_before: datetime | None = None
    """Before when it is not sent (contract 2.13)."""


def check_metadata(draft: Draft) -> None:
    """Raise `InvalidMetadata` or `UnsuitableCallback` for what is unusable beside the body, whatever the event type."""
    if draft.idempotency_key is not None and not _PRINTABLE.fullmatch(draft.idempotency_key):
        raise InvalidMetadata(
            f"An idempotency key has 1 to {MAX_KEY_CHARACTERS} visible ASCII characters without blanks."
        )
    if draft.filter_string is not None and not _FILTER_STRING.fullmatch(draft.filter_string):
        raise InvalidMetadata("A filter string has 1 to 4096 characters, visible ASCII and blanks; or leave it out.")
    if draft.content_type and not _CONTENT_TYPE.fullmatch(draft.content_type):
        raise InvalidMetadata("A content type has 1 to 255 visible ASCII characters, such as application/json.")
    if draft.destination is not None and not is_name(draft.destination):
        raise InvalidMetadata("A destination is the name of a subscriber, or 'default' for each of them once.")
    if draft.callback_url is not None:
        _check_callback_url(draft.callback_url)
    _check_headers(draft.headers)


def _check_callback_url(url: str) -> None:
    if not _ABSOLUTE.match(url):
        raise UnsuitableCallback("Give an absolute http:// or https:// URL as CallbackURL; replies are sent with POST.")
    if _WITH_LOGIN.match(url):
        raise UnsuitableCallback("The CallbackURL has a login; put what it needs into its path or query.")
    try:
        parse_endpoint(url)
    except ValidationError as refused:
        raise UnsuitableCallback(f"The CallbackURL cannot be used. {refused.message}") from None


def _check_headers(headers: Sequence[tuple[str, str]]) -> None:
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_CHARACTERS:
        raise InvalidMetadata(
            f"A message has at most {MAX_HEADERS} headers of {MAX_HEADER_CHARACTERS} characters in all."
        )
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidMetadata(f"{name[:100]!r} is not a usable header: its name or its value is malformed.")


def check_content_type(given: str, declared: str) -> None:
    """Raise `UnsuitableContentType` unless what is sent is what the event type declares."""
    if media_type_of(given) != media_type_of(declared) and not (is_json(given) and is_json(declared)):
        raise UnsuitableContentType(f"This event type takes {declared}; send it with that Content-Type.")


def check_json(body: bytes) -> None:
    """Raise `MalformedPayload`, with what is wrong and where, unless `body` is JSON in UTF-8.

    What JSON allows is allowed: keys that stand twice, numbers of any size, lone surrogates as escapes.
    """
    try:
        orjson.loads(body)  # fast, and stricter than JSON: what it takes is JSON
    except orjson.JSONDecodeError:
        _check_slowly(body)


def _check_slowly(body: bytes) -> None:
    if not body:
        raise MalformedPayload("The body is empty; send a JSON value.")
    try:
        text = body.decode()
    except UnicodeDecodeError as broken:
        raise MalformedPayload(f"The body is not UTF-8: byte {broken.start} cannot be read.") from None
    if text.startswith("\ufeff"):
        raise MalformedPayload("The body begins with a byte order mark; JSON is sent without one.")
    try:
        _GRAMMAR.decode(text)
    except RecursionError:
        raise MalformedPayload(f"The body is nested too deep; keep it within {SAFE_LEVELS} levels.") from None
    except ValueError as broken:
        raise MalformedPayload(f"The body is not JSON: {broken}.") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


# Numbers stay texts: only the grammar is wanted, and a number of 5,000 digits costs nothing.
_GRAMMAR: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)


def durability_of(text: str | None) -> str:
    """Return `guaranteed`, which is meant where nothing is said, or `volatile`.

    Raises:
        InvalidMetadata: it says neither.

    """
    said = GUARANTEED if text is None else text
    if said not in {GUARANTEED, VOLATILE}:
        raise InvalidMetadata(
            f"Broker-Durability is '{GUARANTEED}', or '{VOLATILE}': send one of them, or leave it out."
        )
    return said


def time_of(ttl: str | None, not_before: str | None, *, now: datetime) -> tuple[float | None, datetime | None]:
    """Return how many seconds a message lives from `now` on, and before when it is not sent; None: not said.

    Raises:
        InvalidMetadata: one of them cannot be read, or it would not live until it may be sent.

    """
    seconds = None if ttl is None else ttl_of(ttl)
    moment = None if not_before is None else moment_of(not_before, now=now)
    if seconds is not None and moment is not None and now + timedelta(seconds=seconds) <= moment:
        raise InvalidMetadata(
            "Its time to live, which counts from now on, ends before it may be sent: let it live longer."
        )
    return seconds, moment


def ttl_of(text: str) -> float:
    """Return the seconds that a time to live says: `90`, `90s`, `15m`, `12h` or `4d`.

    Raises:
        InvalidMetadata: it says no time from 1 second to 30 days.

    """
    told = _TTL.fullmatch(text)
    seconds = float(int(told[1]) * UNITS[told[2]]) if told else 0.0
    if not 1 <= seconds <= MOST.total_seconds():
        raise InvalidMetadata(
            f"A time to live is a number of seconds, or one with s, m, h or d behind it, as in 15m, from 1 s to "
            f"{MOST.days} d."
        )
    return seconds


def moment_of(text: str, *, now: datetime) -> datetime:
    """Return the moment that a text in the form of RFC 3339, or of HTTP's dates, says; one that is past, too.

    Raises:
        InvalidMetadata: it says none, or one more than 30 days after `now`.

    """
    moment = _moment_of(text)
    if moment is None:
        raise InvalidMetadata(
            "A time is given with its zone, as in 2026-12-24T18:00:00Z, or as in Thu, 24 Dec 2026 18:00:00 GMT."
        )
    if moment > now + MOST:
        raise InvalidMetadata(f"A message can be held back for {MOST.days} days at most.")
    return moment


def _moment_of(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.upper()) if _RFC_3339.fullmatch(text) else parsedate_to_datetime(text)
        return moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None
