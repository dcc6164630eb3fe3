"""Send messages as CloudEvents to subscriptions that are configured so (contract 2.12; CloudEvents 1.0.2)."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import orjson

from broker_project.core.json import is_json
from delivery.publish import cloud_events
from delivery.publish.cloud_events import PREFIX
from delivery.webhook.content import Content, merged
from subscriptions.payload_format import PayloadFormat

CONTENT_TYPE: Final = "datacontenttype"
SOURCE: Final = "urn:broker:event:"
"""With the event type's name: the source of messages that were not published as CloudEvents."""


def in_payload_format(content: Content, output: str, configured: Mapping[str, str]) -> Content:
    """Return what is sent of a message in the payload format `output`; `configured` are the subscription's headers."""
    if output == PayloadFormat.AS_PUBLISHED:
        return content
    headers = merged(dict(content.headers), configured)
    attributes = _attributes(content, headers)
    others = {name: value for name, value in headers.items() if not name.lower().startswith(PREFIX)}
    if output == PayloadFormat.CLOUDEVENTS_BINARY:
        own = {f"{PREFIX}{name}": cloud_events.header_value(value) for name, value in attributes.items()}
        return replace(content, headers=tuple({**others, **own}.items()))
    content_type = next((value for name, value in others.items() if name.lower() == "content-type"), "")
    structured = merged(others, {"Content-Type": cloud_events.STRUCTURED})
    return replace(content, headers=tuple(structured.items()), body=_document(attributes, content_type, content.body))


def _attributes(content: Content, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes that it was published with, or those that the broker can vouch for."""
    published = cloud_events.attributes_in(headers)
    published = {name: value for name, value in published.items() if cloud_events.is_attribute(name)}
    published.pop(CONTENT_TYPE, None)  # the header of that name says it
    if all(published.get(name) for name in cloud_events.REQUIRED):
        return published
    moment = datetime.fromtimestamp(content.published_ms / 1000, UTC)
    return published | {
        "specversion": cloud_events.SPECVERSION,
        "id": content.known_as or str(content.message_id),
        "source": f"{SOURCE}{content.event_type}",
        "type": content.event_type,
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


def _document(attributes: Mapping[str, str], content_type: str, body: bytes) -> bytes:
    """Return the event as JSON, with a JSON payload byte for byte and any other as base64."""
    envelope = orjson.dumps({**attributes, **({CONTENT_TYPE: content_type} if content_type else {})})
    if not body:
        return envelope
    if is_json(content_type):
        with suppress(orjson.JSONDecodeError):  # some JSON would make the event unreadable for strict readers
            orjson.loads(body)
            return b'%s,"data":%s}' % (envelope[:-1], body)
    return b'%s,"data_base64":"%s"}' % (envelope[:-1], base64.b64encode(body))
