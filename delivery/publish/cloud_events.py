"""CloudEvents 1.0.2 in structured, binary and batched mode (contract 2.12)."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from broker_project.core.media_types import is_json, media_type_of
from delivery.publish.attributes import (
    NEVER,
    PREFIX,
    attributes_in,
    check_attributes,
    check_encoding,
    header_value,
    idempotency_key_of,
)
from delivery.publish.draft import Draft
from delivery.publish.errors import InvalidCloudEvent, Refusal, UnsuitableContentType
from delivery.publish.json_cursor import JsonCursor, NotAsExpected

JSON: Final = "application/json"
WHOLE_NUMBERS: Final = range(-(2**31), 2**31)

_WHOLE: Final = re.compile("-?[0-9]{1,10}")

Members = Mapping[str, tuple[Any, str]]
"""The members of a JSON object by name: what each is, and its text."""

ANY: Final = "application/cloudevents"
STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
BINARY: Final = "ce-specversion"
"""The header that says that the others are attributes; without it `ce-*` are headers like any others."""


class CloudEvent(NamedTuple):
    """What such an object says."""

    attributes: Mapping[str, str]
    """All but the payload's content type."""
    body: bytes
    content_type: str | None
    """None: there is no payload, or it does not say."""


def members_of(body: bytes) -> Members:
    """Return the members of the object that a body is; raise `InvalidCloudEvent` if it is none."""
    cursor = _cursor(body)
    try:
        members = _members(cursor)
        cursor.end()
    except NotAsExpected as broken:
        raise InvalidCloudEvent(f"The body is not a CloudEvent: {broken}.") from None
    return members


def members_of_each(body: bytes) -> list[Members]:
    """Return the members of each object of the array that a body is; raise `InvalidCloudEvent` if it is none."""
    cursor = _cursor(body)
    try:
        items = [_members(cursor) for _ in cursor.elements()]
        cursor.end()
    except NotAsExpected as broken:
        raise InvalidCloudEvent(f"The body is not a batch of CloudEvents: {broken}.") from None
    return items


def cloud_event_of(members: Members) -> CloudEvent:
    """Return the event; raise `InvalidCloudEvent` if it is not as CloudEvents 1.0 says."""
    attributes = {
        name: _attribute(name, value, text)
        for name, (value, text) in members.items()
        if name not in NEVER and value is not None  # null: not set
    }
    check_attributes(attributes)
    content_type = attributes.pop("datacontenttype", JSON if "data" in members else None)
    return CloudEvent(attributes, _payload(members, content_type), content_type)


def _cursor(body: bytes) -> JsonCursor:
    try:
        return JsonCursor(body.decode())
    except UnicodeDecodeError:
        raise InvalidCloudEvent("The body is not UTF-8.") from None


def _members(cursor: JsonCursor) -> Members:
    return {name: cursor.value() for name in cursor.members()}


def _attribute(name: str, value: Any, text: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or (_WHOLE.fullmatch(text) and int(text) in WHOLE_NUMBERS):
        return text
    raise InvalidCloudEvent(f"The attribute {name[:100]!r} is neither a text nor a whole number nor true or false.")


def _payload(members: Members, content_type: str | None) -> bytes:
    """Return the payload's bytes: JSON as it stands there, a text in UTF-8, or what base64 stands for."""
    if members.keys() >= NEVER:
        raise InvalidCloudEvent("Give either 'data' or 'data_base64'.")
    if "data" in members:
        value, text = members["data"]
        return text.encode() if is_json(content_type or JSON) else _bytes_of(value)
    return _decoded(members["data_base64"][0]) if "data_base64" in members else b""


def _bytes_of(value: Any) -> bytes:
    try:
        return str.encode(value)
    except (TypeError, UnicodeEncodeError):
        raise InvalidCloudEvent("With this datacontenttype 'data' must be a text of Unicode characters.") from None


def _decoded(value: Any) -> bytes:
    try:
        return base64.b64decode(str.encode(value), validate=True)
    except (TypeError, UnicodeEncodeError, binascii.Error):
        raise InvalidCloudEvent("The member 'data_base64' is not base64.") from None


def is_cloud_event(content_type: str | None, header_names: Iterable[str]) -> bool:
    """Tell whether a request is a CloudEvent, or several: by its content type, or by its headers."""
    return media_type_of(content_type or "").startswith(ANY) or BINARY in map(str.lower, header_names)


def is_batch(content_type: str | None) -> bool:
    """Tell whether a request's body is a batch of CloudEvents."""
    return media_type_of(content_type or "") == BATCHED


def opened(draft: Draft) -> Draft:
    """Return the message that a request is; one that is no CloudEvent as it is.

    The draft's event type is what its address says, empty where that leaves it to the event.

    Raises:
        InvalidCloudEvent: it cannot be read, or is for another event type than its address.
        UnsuitableContentType: its form is none that is taken here.

    """
    if not is_cloud_event(draft.content_type, (name for name, _ in draft.headers)):
        return draft
    media_type = media_type_of(draft.content_type or "")
    if media_type == STRUCTURED:
        return _made_of(members_of(draft.body), draft)
    if media_type.startswith(ANY):
        raise UnsuitableContentType(f"Send a CloudEvent as {STRUCTURED}, or a batch as {BATCHED} to /events.")
    headers = dict(draft.headers)
    check_encoding(headers)
    attributes = attributes_in(headers)
    check_attributes(attributes)
    return _addressed(draft, attributes)


def opened_batch(draft: Draft, *, max_items: int) -> list[Draft | Refusal]:
    """Return the messages of a batch in their order, each with the request's headers; or what is wrong with one.

    Raises:
        InvalidCloudEvent: the body is no batch, or has more than `max_items`.

    """
    items = members_of_each(draft.body)
    if len(items) > max_items:
        raise InvalidCloudEvent(f"A batch has up to {max_items} events; this one has {len(items)}.")
    return [_made_or_refused(members, draft) for members in items]


def _made_or_refused(members: Members, draft: Draft) -> Draft | Refusal:
    try:
        return _made_of(members, draft)
    except Refusal as refusal:
        return refusal


def _made_of(members: Members, draft: Draft) -> Draft:
    event = cloud_event_of(members)
    addressed = _addressed(draft, event.attributes)
    return replace(addressed, body=event.body, content_type=event.content_type, headers=_headers(event, draft))


def _addressed(draft: Draft, attributes: Mapping[str, str]) -> Draft:
    """Return the draft with the event type of its CloudEvent, and under the key that it brings."""
    event_type = attributes["type"]
    if draft.event_type not in {"", event_type}:
        raise InvalidCloudEvent(f"The event's type is {event_type[:255]!r}, its address says {draft.event_type!r}.")
    key = idempotency_key_of(attributes) if draft.idempotency_key is None else draft.idempotency_key
    return replace(draft, event_type=event_type, idempotency_key=key)


def _headers(event: CloudEvent, draft: Draft) -> list[tuple[str, str]]:
    """Return the headers of the request that are not about the document, and those that the event stands for."""
    others = [(name, value) for name, value in draft.headers if not _is_of_document(name.lower())]
    content_type = [("Content-Type", event.content_type)] if event.content_type else []
    own = [(f"{PREFIX}{name}", header_value(value)) for name, value in event.attributes.items()]
    return [*others, *content_type, *own]


def _is_of_document(name: str) -> bool:
    return name == "content-type" or name.startswith(PREFIX)
