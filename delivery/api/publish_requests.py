"""What a request asks to be published: one event, whose body is the payload, or a batch of either form."""

from typing import Final

from django.conf import settings
from django.utils import timezone
from rest_framework.request import Request

from broker_project.core.api.parsing import body_of
from broker_project.core.media_types import is_json
from delivery.api.batches import drafts_of
from delivery.publish.cloud_event_documents import JSON
from delivery.publish.cloud_events import BATCHED, opened, opened_batch
from delivery.publish.draft import Draft
from delivery.publish.errors import InvalidMetadata, Refusal, UnsuitableContentType
from delivery.publish.terms import time_of

AMBIGUOUS_HEADERS: Final = "broker.ambiguous_headers"
"""Where the web server says which variables stand for two headers with different values."""

OF_ONE_ITEM: Final = {
    "Idempotency-Key": "idempotency_key",
    "CallbackURL": "callback_url",
    "Broker-Destination": "destination",
    "Broker-TTL": "ttl",
    "Broker-Not-Before": "not_before",
}
"""Headers that say something of one event; in a batch each has a field of its own for it."""


def event_in(request: Request, event_type: str = "") -> Draft:
    """Return one event, for the type that its address names or, empty, that it names itself as a CloudEvent.

    Raises:
        InvalidMetadata: a header cannot be read.
        InvalidCloudEvent, UnsuitableContentType: see `cloud_events.opened`.

    """
    return opened(_draft_of(request, event_type, body_of(request, limit=settings.MAX_BODY_BYTES)))


def events_in(request: Request) -> list[Draft | Refusal]:
    """Return the events of a batch, of which each says for itself what of one event stands in headers.

    Raises:
        UnsuitableContentType: it says that it is something else than JSON.
        InvalidMetadata: a header speaks for all of them.

    """
    if not is_json(content_type_of(request) or JSON):
        raise UnsuitableContentType(f"Send a batch as {JSON}, or one of CloudEvents as {BATCHED}.")
    for name, field in OF_ONE_ITEM.items():
        if name in request.headers:
            raise InvalidMetadata(f"In a batch each event has its own {name}: give it in the field '{field}'.")
    body = body_of(request, limit=settings.MAX_BATCH_BYTES)
    return drafts_of(body, most_items=settings.MAX_BATCH_ITEMS, now=timezone.now())


def cloud_events_in(request: Request) -> list[Draft | Refusal]:
    """Return the events of a batch of CloudEvents; what stands in headers is said of each of them.

    Raises:
        InvalidMetadata: a header cannot be read, or is a key, of which each event has its own.
        InvalidCloudEvent: see `cloud_events.opened_batch`.

    """
    if "Idempotency-Key" in request.headers:
        raise InvalidMetadata("In a batch of CloudEvents the source and id of each are its key; send no other.")
    batch = _draft_of(request, "", body_of(request, limit=settings.MAX_BATCH_BYTES))
    return opened_batch(batch, most_items=settings.MAX_BATCH_ITEMS)


def _draft_of(request: Request, event_type: str, body: bytes) -> Draft:
    said = (request.headers.get(name) for name in ("Broker-TTL", "Broker-Not-Before"))
    ttl, not_before = time_of(*said, now=timezone.now())
    return Draft(
        event_type=event_type,
        body=body,
        content_type=content_type_of(request),
        headers=list(request.headers.items()),
        filter_string=filter_string_of(request),
        idempotency_key=request.META.get("HTTP_IDEMPOTENCY_KEY"),
        callback_url=request.META.get("HTTP_CALLBACKURL"),
        destination=request.headers.get("Broker-Destination"),
        ttl=ttl,
        not_before=not_before,
    )


def content_type_of(request: Request) -> str | None:
    """Return the content type, None where the publisher leaves it to the event type."""
    return request.META.get("CONTENT_TYPE") or None


def filter_string_of(request: Request) -> str | None:
    """Return the `FILTER_STRING` header, or `Filter-String` for proxies that drop underscores (behaviour 2.3).

    Raises:
        InvalidMetadata: both are there and differ.

    """
    if "HTTP_FILTER_STRING" in request.META.get(AMBIGUOUS_HEADERS, ()):
        raise InvalidMetadata("FILTER_STRING and Filter-String differ; send one of them.")
    return request.META.get("HTTP_FILTER_STRING")
