"""CloudEvents 1.0.2: their attributes, and events in structured, binary and batched mode (contract 2.12)."""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from broker_project.core.json import is_json, media_type_of
from delivery.publish.draft import Draft
from delivery.publish.errors import InvalidCloudEvent, Refusal, UnsuitableContentType
from delivery.publish.json_cursor import JsonCursor, NotAsExpected

JSON: Final = "application/json"
STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
ANY_FORMAT: Final = "application/cloudevents"
"""The media type of every format of CloudEvents begins with this."""

PREFIX: Final = "ce-"
"""In binary mode an attribute is a header whose name begins with this."""
BINARY: Final = "ce-specversion"
"""The header of a binary-mode event. Without it `ce-*` headers are ordinary headers."""
SPECVERSION: Final = "1.0"
REQUIRED: Final = ("specversion", "id", "source", "type")
OPTIONAL: Final = ("subject", "time", "dataschema", "datacontenttype")
PAYLOAD_MEMBERS: Final = frozenset({"data", "data_base64"})
"""Names that no attribute may have."""
INTEGERS: Final = range(-(2**31), 2**31)

_NAME: Final = re.compile("[a-z0-9]+")
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_LEAP_SECOND: Final = re.compile(r"(?<=T..:..:)60")
_INTEGER: Final = re.compile("-?[0-9]{1,10}")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SAFE: Final = "".join(character for character in map(chr, range(0x21, 0x7F)) if character not in '"%')
"""Visible ASCII except the quote and the percent sign is not encoded in a header (HTTP binding 3.1.3.2)."""

Members = Mapping[str, tuple[Any, str]]
"""The members of a JSON object by name: the value, and its text as sent."""
Found = TypeVar("Found")


def is_attribute(name: str) -> bool:
    """Return whether an attribute can have this name."""
    return bool(_NAME.fullmatch(name)) and name not in PAYLOAD_MEMBERS


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Raise `InvalidCloudEvent` for an attribute that is missing or not allowed by CloudEvents 1.0."""
    if missing := [name for name in REQUIRED if not attributes.get(name)]:
        raise InvalidCloudEvent(f"The attribute {missing[0]!r} is missing or empty; a CloudEvent has one.")
    if attributes["specversion"] != SPECVERSION:
        raise InvalidCloudEvent(f"This is CloudEvents {attributes['specversion'][:20]!r}; send {SPECVERSION!r}.")
    for name, value in attributes.items():
        if not is_attribute(name):
            raise InvalidCloudEvent(f"No attribute can be called {name[:100]!r}: use letters a to z and digits.")
        if name in OPTIONAL and not value:
            raise InvalidCloudEvent(f"The attribute {name!r} is empty; leave it out.")
        if _FORBIDDEN.search(value):
            raise InvalidCloudEvent(f"The attribute {name!r} has characters that no attribute may have.")
    if "time" in attributes and not _is_time(attributes["time"]):
        raise InvalidCloudEvent("The attribute 'time' is not as in RFC 3339, such as 2026-01-31T12:00:00Z.")


def _is_time(text: str) -> bool:
    try:
        return bool(_TIME.fullmatch(text) and datetime.fromisoformat(_LEAP_SECOND.sub("59", text.upper())))
    except ValueError:
        return False


def header_value(value: str) -> str:
    """Return an attribute's value as a header has it: percent-encoded UTF-8."""
    return quote(value, safe=_SAFE)


def attribute_value(header: str, errors: str = "replace") -> str:
    """Return the attribute's value that a header has; invalid UTF-8 is replaced, or raises with `strict`."""
    quoted = _QUOTED.fullmatch(header)
    return unquote(re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else header, errors=errors)


def attributes_in(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes among headers, in their order."""
    return {
        name.lower().removeprefix(PREFIX): attribute_value(value)
        for name, value in headers.items()
        if name.lower().startswith(PREFIX)
    }


def with_id_suffix(headers: Sequence[tuple[str, str]], suffix: str) -> list[tuple[str, str]]:
    """Return a message's headers, with `suffix` appended to the event's id if it is a CloudEvent.

    Two events with different data must not have the same source and id: consumers drop the second one.
    """
    if not any(name.lower() == BINARY for name, _ in headers):
        return [*headers]
    return [
        (name, header_value(attribute_value(value) + suffix) if name.lower() == f"{PREFIX}id" else value)
        for name, value in headers
    ]


def is_cloud_event(content_type: str | None, header_names: Iterable[str]) -> bool:
    """Return whether a request is a CloudEvent or a batch of them: by its content type, or by its headers."""
    return media_type_of(content_type or "").startswith(ANY_FORMAT) or BINARY in map(str.lower, header_names)


def is_batch(content_type: str | None) -> bool:
    """Return whether a request's body is a batch of CloudEvents."""
    return media_type_of(content_type or "") == BATCHED


def read_event(draft: Draft) -> Draft:
    """Return the message that a request carries; a request that is no CloudEvent is returned unchanged.

    The draft's event type is the one in the request's path, empty if the path leaves it to the event.

    Raises:
        InvalidCloudEvent: it cannot be read, or has another event type than the path.
        UnsuitableContentType: the format is not supported here.
    """
    if not is_cloud_event(draft.content_type, (name for name, _ in draft.headers)):
        return draft
    media_type = media_type_of(draft.content_type or "")
    if media_type == STRUCTURED:
        return _structured(_parsed(draft.body, "a CloudEvent", _members), draft)
    if media_type.startswith(ANY_FORMAT):
        raise UnsuitableContentType(f"Send a CloudEvent as {STRUCTURED}, or a batch as {BATCHED} to /events.")
    for name, value in draft.headers:
        if name.lower().startswith(PREFIX):
            try:  # with replaced bytes two attributes could seem to be the same
                attribute_value(value, errors="strict")
            except UnicodeDecodeError:
                raise InvalidCloudEvent(f"The header {name[:100]!r} is not percent-encoded UTF-8.") from None
    attributes = attributes_in(dict(draft.headers))
    check_attributes(attributes)
    return _addressed(draft, attributes)


def read_batch(draft: Draft, *, max_items: int) -> list[Draft | Refusal]:
    """Return the messages of a batch in their order, each with the request's headers, or why one is refused.

    Raises `InvalidCloudEvent` if the body is no batch, or has more than `max_items`.
    """
    items = _parsed(draft.body, "a batch of CloudEvents", lambda cursor: [_members(cursor) for _ in cursor.elements()])
    if len(items) > max_items:
        raise InvalidCloudEvent(f"A batch has up to {max_items} events; this one has {len(items)}.")
    events: list[Draft | Refusal] = []
    for members in items:
        try:
            events.append(_structured(members, draft))
        except Refusal as refusal:
            events.append(refusal)
    return events


def _parsed(body: bytes, expected: str, read: Callable[[JsonCursor], Found]) -> Found:
    """Return what `read` finds in the JSON of a body; raise `InvalidCloudEvent` unless it is `expected`."""
    try:
        cursor = JsonCursor(body.decode())
        found = read(cursor)
        cursor.end()
    except UnicodeDecodeError:
        raise InvalidCloudEvent("The body is not UTF-8.") from None
    except NotAsExpected as broken:
        raise InvalidCloudEvent(f"The body is not {expected}: {broken}.") from None
    return found


def _members(cursor: JsonCursor) -> Members:
    return {name: cursor.value() for name in cursor.members()}


def _structured(members: Members, draft: Draft) -> Draft:
    """Return the message that a JSON object stands for: attributes become headers, its payload the body."""
    attributes = {
        name: _attribute(name, value, text)
        for name, (value, text) in members.items()
        if name not in PAYLOAD_MEMBERS and value is not None  # null: not set
    }
    check_attributes(attributes)
    content_type = attributes.pop("datacontenttype", JSON if "data" in members else None)
    others = [
        (name, value)
        for name, value in draft.headers
        if name.lower() != "content-type" and not name.lower().startswith(PREFIX)
    ]
    payload_type = [("Content-Type", content_type)] if content_type else []
    own = [(f"{PREFIX}{name}", header_value(value)) for name, value in attributes.items()]
    body = _payload(members, content_type)
    return replace(
        _addressed(draft, attributes), body=body, content_type=content_type, headers=[*others, *payload_type, *own]
    )


def _attribute(name: str, value: Any, text: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or (_INTEGER.fullmatch(text) and int(text) in INTEGERS):
        return text
    raise InvalidCloudEvent(f"The attribute {name[:100]!r} is neither a text nor a whole number nor true or false.")


def _payload(members: Members, content_type: str | None) -> bytes:
    """Return the payload: JSON as it was sent, a text in UTF-8, or decoded base64."""
    if members.keys() >= PAYLOAD_MEMBERS:
        raise InvalidCloudEvent("Give either 'data' or 'data_base64'.")
    if "data" in members:
        value, text = members["data"]
        if is_json(content_type or JSON):
            return text.encode()
        try:
            return str.encode(value)
        except (TypeError, UnicodeEncodeError):
            raise InvalidCloudEvent("With this datacontenttype 'data' must be a text of Unicode characters.") from None
    if "data_base64" not in members:
        return b""
    try:
        return base64.b64decode(str.encode(members["data_base64"][0]), validate=True)
    except (TypeError, UnicodeEncodeError, binascii.Error):
        raise InvalidCloudEvent("The member 'data_base64' is not base64.") from None


def _addressed(draft: Draft, attributes: Mapping[str, str]) -> Draft:
    """Return the draft with the event's type and, unless the publisher gives a key, source and id as its key (2.6)."""
    event_type = attributes["type"]
    if draft.event_type not in {"", event_type}:
        raise InvalidCloudEvent(f"The event's type is {event_type[:255]!r}, its address says {draft.event_type!r}.")
    key = draft.idempotency_key
    if key is None:
        key = "ce:" + hashlib.sha256(f"{attributes['source']}\0{attributes['id']}".encode()).hexdigest()
    return replace(draft, event_type=event_type, idempotency_key=key)
