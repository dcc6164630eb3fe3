"""CloudEvents as JSON: one object with the attributes and the payload, or an array of them (JSON format 1.0.2)."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker_project.core.media_types import is_json
from delivery.publish.attributes import NEVER, check_attributes
from delivery.publish.errors import InvalidCloudEvent
from delivery.publish.json_cursor import JsonCursor, NotAsExpected

JSON: Final = "application/json"
WHOLE_NUMBERS: Final = range(-(2**31), 2**31)

_WHOLE: Final = re.compile("-?[0-9]{1,10}")

Members = Mapping[str, tuple[Any, str]]
"""The members of a JSON object by name: what each is, and its text."""


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
