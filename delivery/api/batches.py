"""A batch as it is sent: `{"events": [{"event": …, "body": …}, …]}`, each body kept to the letter."""

import base64
import binascii
from datetime import datetime
from typing import Any, Final

from rest_framework.exceptions import ParseError

from delivery.publish.draft import Draft
from delivery.publish.errors import InvalidMetadata, Refusal
from delivery.publish.json_cursor import JsonCursor, NotAsExpected
from delivery.publish.terms import time_of

FIELDS: Final = (
    "event",
    "body",
    "body_base64",
    "content_type",
    "headers",
    "filter_string",
    "idempotency_key",
    "callback_url",
    "destination",
    "ttl",
    "not_before",
)


def drafts_of(body: bytes, *, most_items: int, now: datetime) -> list[Draft | Refusal]:
    """Return the batch's items in order; one whose fields are wrong is the refusal that says so.

    Raises:
        ParseError: the body is no batch at all.

    """
    try:
        items = _items(JsonCursor(body.decode()))
    except UnicodeDecodeError:
        raise ParseError("The body is not UTF-8.") from None
    except NotAsExpected as broken:
        raise ParseError(f"The body is not a batch: {broken}.") from None
    if not 1 <= len(items) <= most_items:
        raise ParseError(f"A batch has 1 to {most_items} events; this one has {len(items)}.")
    return [_draft(item, now) for item in items]


def _items(cursor: JsonCursor) -> list[dict[str, tuple[Any, str]]]:
    items: list[dict[str, tuple[Any, str]]] = []
    for name in cursor.members():
        if name != "events":
            raise NotAsExpected(f"there is no field {name[:100]!r} beside 'events'")
        for _ in cursor.elements():
            items.append({field: cursor.value() for field in cursor.members()})
    cursor.end()
    return items


def _draft(item: dict[str, tuple[Any, str]], now: datetime) -> Draft | Refusal:
    try:
        for field in item:
            if field not in FIELDS:
                raise InvalidMetadata(f"There is no field {field[:100]!r}; the fields are {', '.join(FIELDS)}.")
        ttl, not_before = time_of(_text(item, "ttl"), _text(item, "not_before"), now=now)
        return Draft(
            event_type=_text(item, "event") or "",
            body=_body(item),
            content_type=_text(item, "content_type"),
            headers=_headers(item),
            filter_string=_text(item, "filter_string"),
            idempotency_key=_text(item, "idempotency_key"),
            callback_url=_text(item, "callback_url"),
            destination=_text(item, "destination"),
            ttl=ttl,
            not_before=not_before,
        )
    except Refusal as refusal:
        return refusal


def _text(item: dict[str, tuple[Any, str]], field: str) -> str | None:
    if field not in item:
        if field == "event":
            raise InvalidMetadata("The field 'event' is missing: name the event type.")
        return None
    value, _ = item[field]
    if not isinstance(value, str):
        raise InvalidMetadata(f"The field {field!r} must be a text.")
    return value


def _body(item: dict[str, tuple[Any, str]]) -> bytes:
    if ("body" in item) == ("body_base64" in item):
        raise InvalidMetadata("Give either 'body', a JSON value, or 'body_base64', any bytes.")
    if "body" in item:
        return item["body"][1].encode()
    try:
        return base64.b64decode(_text(item, "body_base64") or "", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidMetadata("The field 'body_base64' is not base64.") from None


def _headers(item: dict[str, tuple[Any, str]]) -> list[tuple[str, str]]:
    headers, _ = item.get("headers", ({}, "{}"))
    if not isinstance(headers, dict):
        raise InvalidMetadata("The field 'headers' must be an object of names and texts.")
    for name, value in headers.items():
        if not isinstance(value, str):
            raise InvalidMetadata(f"The header {name[:100]!r} must be a text.")
    return list(headers.items())
