"""Accepting what publishers send: check it against its event type, then publish it (behaviour 2)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from delivery.forwarded_headers import kept
from delivery.payloads import check_content_type, check_json
from delivery.publishing import publish
from delivery.refusals import (
    EventTypeNotAllowed,
    InvalidMetadata,
    KindNotServed,
    PayloadTooLarge,
    Refusal,
    RefusedItems,
    SchemaViolated,
    UnknownEventType,
)
from delivery.storing import Accepted, NewMessage
from subscriptions.database import rows
from subscriptions.media_types import is_json
from subscriptions.models import EventKind
from subscriptions.names import is_name
from subscriptions.validating import violations_of

MOST_KEY_CHARACTERS: Final = 255

PUBLISHABLE: Final = """
SELECT e.name, e.id, e.kind, e.content_type, CASE WHEN e.schema IS NOT NULL THEN e.version END,
       NOT EXISTS (SELECT FROM subscriptions_publisher_event_types p WHERE p.publisher_id = %(publisher)s)
       OR EXISTS (SELECT FROM subscriptions_publisher_event_types p
                   WHERE p.publisher_id = %(publisher)s AND p.eventtype_id = e.id)
  FROM subscriptions_eventtype e WHERE e.name = ANY(%(names)s)
"""

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,255}")
MOST_HEADERS: Final = 100
MOST_HEADER_CHARACTERS: Final = 32 * 1024
"""All of a message's headers together: what an endpoint could not take would hold its line for ever."""

_CONTENT_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,254}")
_FILTER_STRING = re.compile(r"[\t\x20-\x7e]{1,4096}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")


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


@dataclass(frozen=True, slots=True)
class _Publishable:
    id: int
    kind: str
    content_type: str
    schema_version: int | None
    """None: it has no schema."""
    allowed: bool


def accept(
    drafts: Sequence[Draft | Refusal], *, publisher_id: int | None, key_hours: int, most_bytes: int
) -> list[Accepted]:
    """Store all the drafts, in their order, or none; return an answer for each.

    A `Refusal` in a draft's place is one that could not even be read.

    Raises:
        RefusedItems: some cannot be accepted; it says which and why.
        PublishUnderWayError, KeyReusedError: see `publishing.publish`.

    """
    event_types = _event_types({draft.event_type for draft in drafts if isinstance(draft, Draft)}, publisher_id)
    messages: list[NewMessage] = []
    refusals: dict[int, Refusal] = {}
    for position, draft in enumerate(drafts):
        try:
            messages.append(_checked(draft, event_types, most_bytes))
        except Refusal as refusal:
            refusals[position] = refusal
    if refusals:
        raise RefusedItems(refusals, len(drafts))
    return publish(messages, publisher_id=publisher_id, key_hours=key_hours)


def _event_types(names: set[str], publisher_id: int | None) -> dict[str, _Publishable]:
    storable = sorted(name for name in names if is_name(name))
    found = rows(PUBLISHABLE, {"publisher": publisher_id, "names": storable})
    return {name: _Publishable(*columns) for name, *columns in found}


def _checked(draft: Draft | Refusal, event_types: dict[str, _Publishable], most_bytes: int) -> NewMessage:
    if isinstance(draft, Refusal):
        raise draft
    event_type = _allowed(draft.event_type, event_types)
    if len(draft.body) > most_bytes:
        raise PayloadTooLarge(f"A message has at most {most_bytes} bytes; this one has {len(draft.body)}.")
    _check_metadata(draft)
    content_type = draft.content_type or event_type.content_type
    check_content_type(content_type, event_type.content_type)
    if is_json(event_type.content_type):
        check_json(draft.body)
        _check_schema(draft, event_type)
    return NewMessage(
        event_type_id=event_type.id,
        event_type=draft.event_type,
        body=draft.body,
        content_type=content_type,
        headers=kept(draft.headers),
        filter_string=draft.filter_string,
        idempotency_key=draft.idempotency_key,
        kind=event_type.kind,
    )


def _check_schema(draft: Draft, event_type: _Publishable) -> None:
    if event_type.schema_version is None:
        return
    broken = violations_of(draft.body, event_type_id=event_type.id, version=event_type.schema_version)
    if broken:
        raise SchemaViolated(f"The body does not satisfy the schema of {draft.event_type}; see errors.", broken)


def _allowed(name: str, event_types: dict[str, _Publishable]) -> _Publishable:
    if name not in event_types:
        raise UnknownEventType(f"There is no event type {name[:255]!r}; create it before publishing.")
    event_type = event_types[name]
    if not event_type.allowed:
        raise EventTypeNotAllowed(f"This publisher may not publish {name}.")
    if event_type.kind != EventKind.TOPIC:
        raise KindNotServed(f"{name} is of kind {event_type.kind}; this version publishes TOPIC events only.")
    return event_type


def _check_metadata(draft: Draft) -> None:
    if draft.idempotency_key is not None and not _PRINTABLE.fullmatch(draft.idempotency_key):
        raise InvalidMetadata(
            f"An idempotency key has 1 to {MOST_KEY_CHARACTERS} visible ASCII characters without blanks."
        )
    if draft.filter_string is not None and not _FILTER_STRING.fullmatch(draft.filter_string):
        raise InvalidMetadata("A filter string has 1 to 4096 characters, visible ASCII and blanks; or leave it out.")
    if draft.content_type and not _CONTENT_TYPE.fullmatch(draft.content_type):
        raise InvalidMetadata("A content type has 1 to 255 visible ASCII characters, such as application/json.")
    _check_headers(draft.headers)


def _check_headers(headers: Sequence[tuple[str, str]]) -> None:
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > MOST_HEADER_CHARACTERS:
        raise InvalidMetadata(
            f"A message has at most {MOST_HEADERS} headers of {MOST_HEADER_CHARACTERS} characters in all."
        )
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidMetadata(f"{name[:100]!r} is not a usable header: its name or its value is malformed.")
