"""CloudEvents 1.0 as publishers send them, opened: what is stored is the payload, with the attributes as headers.

So filters see both, and a CloudEvent goes on as one without anything being made of it (behaviour 2.12).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from broker_project.core.media_types import media_type_of
from delivery.publish.attributes import (
    PREFIX,
    attributes_in,
    check_attributes,
    check_encoding,
    header_value,
    idempotency_key_of,
)
from delivery.publish.cloud_event_documents import CloudEvent, Members, cloud_event_of, members_of, members_of_each
from delivery.publish.draft import Draft
from delivery.publish.errors import InvalidCloudEvent, Refusal, UnsuitableContentType

ANY: Final = "application/cloudevents"
STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
BINARY: Final = "ce-specversion"
"""The header that says that the others are attributes; without it `ce-*` are headers like any others."""


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


def opened_batch(draft: Draft, *, most_items: int) -> list[Draft | Refusal]:
    """Return the messages of a batch in their order, each with the request's headers; or what is wrong with one.

    Raises:
        InvalidCloudEvent: the body is no batch, or has more than `most_items`.

    """
    items = members_of_each(draft.body)
    if len(items) > most_items:
        raise InvalidCloudEvent(f"A batch has up to {most_items} events; this one has {len(items)}.")
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
