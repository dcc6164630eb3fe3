"""Parse what a request publishes: one event, or a batch of either form."""

import base64
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.http.request import HttpHeaders
from django.utils import timezone
from rest_framework.exceptions import ParseError
from rest_framework.request import Request

from broker_project.core.api.bodies import body_of
from broker_project.core.json import is_json
from delivery.publish.cloud_events import BATCHED, JSON, read_batch, read_event
from delivery.publish.draft import Draft, time_of
from delivery.publish.errors import InvalidMetadata, Refusal, UnsuitableContentType
from delivery.publish.json_cursor import JsonCursor, NotAsExpected

AMBIGUOUS_HEADERS: Final = "broker.ambiguous_headers"
"""Where the web server names variables that stand for two headers with different values."""

OF_ONE_ITEM: Final = {
    "FILTER_STRING": "filter_string",
    "Idempotency-Key": "idempotency_key",
    "CallbackURL": "callback_url",
    "Broker-Destination": "destination",
    "Broker-TTL": "ttl",
    "Broker-Not-Before": "not_before",
}
"""Headers about one event, and the fields that batches have for them."""
VARIABLES: Final = {f"HTTP_{name.upper().replace('-', '_')}": field for name, field in OF_ONE_ITEM.items()}
"""The same by the variables of the headers."""
NO_HEADERS: Final = VARIABLES | {"HTTP_CONTENT_TYPE": "content_type"}
"""The same for the headers of an item."""
MAX_NAMES: Final = 1024
"""Names of headers that are kept as Django writes them."""
FIELDS: Final = ("event", "body", "body_base64", "content_type", "headers", *OF_ONE_ITEM.values())

Item = dict[str, tuple[Any, str]]
"""One item of a batch: the value and the text of each field."""


def event_in(request: Request, event_type: str = "") -> Draft:
    """Return one event, of the type in its address or, empty, that it names itself as a CloudEvent.

    Raises:
        InvalidMetadata: a header cannot be read.
        InvalidCloudEvent, UnsuitableContentType: see `cloud_events.read_event`.
    """
    return read_event(_draft_of(request, event_type, body_of(request, max_bytes=settings.MAX_BODY_BYTES)))


def cloud_events_in(request: Request) -> list[Draft | Refusal]:
    """Return the events of a batch of CloudEvents; the request's headers apply to each of them.

    Raises:
        InvalidMetadata: a header cannot be read, or is a key, of which each event has its own.
        InvalidCloudEvent: see `cloud_events.read_batch`.
    """
    if "Idempotency-Key" in request.headers:
        raise InvalidMetadata("In a batch of CloudEvents the source and id of each are its key; send no other.")
    batch = _draft_of(request, "", body_of(request, max_bytes=settings.MAX_BATCH_BYTES))
    return read_batch(batch, max_items=settings.MAX_BATCH_ITEMS)


def _draft_of(request: Request, event_type: str, body: bytes) -> Draft:
    """Return the event of a request; `FILTER_STRING` is also `Filter-String`, for proxies (contract 2.3)."""
    variables = request.META
    given = {field: variables.get(variable) for variable, field in VARIABLES.items()}
    ttl, not_before = time_of(given.pop("ttl"), given.pop("not_before"), now=timezone.now())
    if "HTTP_FILTER_STRING" in variables.get(AMBIGUOUS_HEADERS, ()):
        raise InvalidMetadata("FILTER_STRING and Filter-String differ; send one of them.")
    return Draft(
        event_type=event_type,
        body=body,
        content_type=variables.get("CONTENT_TYPE") or None,
        headers=[
            (name, value)
            for variable, value in variables.items()
            if (name := _header_name(variable)) and (value or variable != "CONTENT_TYPE")  # which WSGI has empty
        ],
        ttl=ttl,
        not_before=not_before,
        **given,
    )


_header_name: Final = lru_cache(MAX_NAMES)(HttpHeaders.parse_header_name)
"""The name of the header that a variable stands for, None if it stands for none; `request.headers` takes five times
as long."""


def content_type_of(request: Request) -> str | None:
    """Return the content type, None if the publisher leaves it to the event type."""
    return request.META.get("CONTENT_TYPE") or None


def events_in(request: Request) -> list[Draft | Refusal]:
    """Return the events of a batch in order; an item with wrong fields is the refusal that says so.

    Raises:
        UnsuitableContentType: its content type is not JSON.
        InvalidMetadata: a header is about one event.
        ParseError: the body is not a batch at all.
    """
    if not is_json(content_type_of(request) or JSON):
        raise UnsuitableContentType(f"Send a batch as {JSON}, or one of CloudEvents as {BATCHED}.")
    for name, field in OF_ONE_ITEM.items():
        if name in request.headers:  # Django takes `Filter-String` for the same
            raise InvalidMetadata(f"In a batch each event has its own {name}: give it in the field '{field}'.")
    try:
        items = _items(JsonCursor(body_of(request, max_bytes=settings.MAX_BATCH_BYTES).decode()))
    except UnicodeDecodeError:
        raise ParseError("The body is not UTF-8.") from None
    except NotAsExpected as broken:
        raise ParseError(f"The body is not a batch: {broken}.") from None
    if not 1 <= len(items) <= settings.MAX_BATCH_ITEMS:
        raise ParseError(f"A batch has 1 to {settings.MAX_BATCH_ITEMS} events; this one has {len(items)}.")
    now = timezone.now()
    return [_draft(item, now) for item in items]


def _items(cursor: JsonCursor) -> list[Item]:
    items: list[Item] = []
    for name in cursor.members():
        if name != "events":
            raise NotAsExpected(f"there is no field {name[:100]!r} beside 'events'")
        for _ in cursor.elements():
            items.append({field: cursor.value() for field in cursor.members()})
    cursor.end()
    return items


def _draft(item: Item, now: datetime) -> Draft | Refusal:
    try:
        for field in item:
            if field not in FIELDS:
                raise InvalidMetadata(f"There is no field {field[:100]!r}; the fields are {', '.join(FIELDS)}.")
        given = {field: _text(item, field) for field in OF_ONE_ITEM.values()}
        ttl, not_before = time_of(given.pop("ttl"), given.pop("not_before"), now=now)
        return Draft(
            event_type=_text(item, "event") or "",
            body=_body(item),
            content_type=_text(item, "content_type"),
            headers=_headers(item),
            ttl=ttl,
            not_before=not_before,
            **given,
        )
    except Refusal as refusal:
        return refusal


def _text(item: Item, field: str) -> str | None:
    if field not in item:
        if field == "event":
            raise InvalidMetadata("The field 'event' is missing: name the event type.")
        return None
    value, _ = item[field]
    if not isinstance(value, str):
        raise InvalidMetadata(f"The field {field!r} must be a text.")
    return value


def _body(item: Item) -> bytes:
    if ("body" in item) == ("body_base64" in item):
        raise InvalidMetadata("Give either 'body', a JSON value, or 'body_base64', any bytes.")
    if "body" in item:
        return item["body"][1].encode()
    try:
        return base64.b64decode(_text(item, "body_base64") or "", validate=True)
    except ValueError:
        raise InvalidMetadata("The field 'body_base64' is not base64.") from None


def _headers(item: Item) -> list[tuple[str, str]]:
    headers, _ = item.get("headers", ({}, "{}"))
    if not isinstance(headers, dict):
        raise InvalidMetadata("The field 'headers' must be an object of names and texts.")
    for name, value in headers.items():
        if not isinstance(value, str):
            raise InvalidMetadata(f"The header {name[:100]!r} must be a text.")
        if field := NO_HEADERS.get(f"HTTP_{name.upper().replace('-', '_')}"):
            raise InvalidMetadata(f"An event of a batch has no header {name}: give it in the field '{field}'.")
    return list(headers.items())
