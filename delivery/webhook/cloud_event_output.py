"""Messages as CloudEvents, for subscriptions that want them so (contract 2.12; CloudEvents 1.0.2).

A message that was published as one keeps its attributes; any other gets those that the broker can vouch for.
"""

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import orjson

from broker_project.core.json import is_json
from delivery.publish.cloud_events import (
    PREFIX,
    REQUIRED,
    SPECVERSION,
    STRUCTURED,
    attributes_in,
    header_value,
    is_attribute,
)
from delivery.webhook.headers_policy import merged
from delivery.webhook.parts import Content, Headers
from subscriptions.payload_format import PayloadFormat

CONTENT_TYPE: Final = "datacontenttype"
SOURCE: Final = "urn:broker:event:"
"""With the event type's name: the source of what was not published as a CloudEvent."""


def enveloped(content: Content, output: str, configured: Mapping[str, str]) -> Content:
    """Return what is sent of a message in the form that its subscription wants; `configured` are its own headers."""
    if output == PayloadFormat.AS_PUBLISHED:
        return content
    headers = merged(dict(content.headers), configured)
    attributes = _attributes(content, headers)
    others = {name: value for name, value in headers.items() if not name.lower().startswith(PREFIX)}
    if output == PayloadFormat.CLOUDEVENTS_BINARY:
        own = {f"{PREFIX}{name}": header_value(value) for name, value in attributes.items()}
        return replace(content, headers=tuple({**others, **own}.items()))
    content_type = _content_type(others)
    return replace(content, headers=_structured(others), body=_document(attributes, content_type, content.body))


def _attributes(content: Content, headers: Mapping[str, str]) -> dict[str, str]:
    theirs = {name: value for name, value in attributes_in(headers).items() if is_attribute(name)}
    theirs.pop(CONTENT_TYPE, None)  # the header of that name says it
    if all(theirs.get(name) for name in REQUIRED):
        return theirs
    return theirs | {
        "specversion": SPECVERSION,
        "id": content.known_as or str(content.message_id),
        "source": f"{SOURCE}{content.event_type}",
        "type": content.event_type,
        "time": _rfc3339(content.published_ms),
    }


def _rfc3339(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _content_type(headers: Mapping[str, str]) -> str:
    return next((value for name, value in headers.items() if name.lower() == "content-type"), "")


def _structured(headers: Mapping[str, str]) -> Headers:
    return tuple(merged(headers, {"Content-Type": STRUCTURED}).items())


def _document(attributes: Mapping[str, str], content_type: str, body: bytes) -> bytes:
    """Return the event as JSON; a JSON payload stands in it to the letter, any other as base64."""
    said = {CONTENT_TYPE: content_type} if content_type else {}
    envelope = orjson.dumps({**attributes, **said})
    if not body:
        return envelope
    payload = body if is_json(content_type) and _is_read(body) else orjson.dumps(base64.b64encode(body).decode())
    name = b"data" if payload is body else b"data_base64"
    return b'%s,"%s":%s}' % (envelope[:-1], name, payload)


def _is_read(body: bytes) -> bool:
    """Tell whether it is JSON that whoever reads the event can read within it."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True
