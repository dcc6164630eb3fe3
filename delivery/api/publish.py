"""Publish over HTTP: one event or a batch (contract 2)."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import orjson
from django.conf import settings
from django.http import HttpResponse, HttpResponseBase
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer
from rest_framework import serializers, status
from rest_framework.request import Request

from broker_project.core.api.bodies import RawParser
from broker_project.core.api.records import operation
from delivery.api import problems as _problems  # noqa: F401 - registers the use cases' exceptions
from delivery.api.grouped_view import DeferredAnswer, GroupedView
from delivery.api.publish_requests import cloud_events_in, content_type_of, event_in, events_in
from delivery.api.sync_and_volatile import ANSWERED, DURABILITY, UNSENT, accept_volatile, answer_to_sync, is_volatile
from delivery.models import MessageOutcome
from delivery.publish import cloud_events
from delivery.publish.check import ANY_KIND, Submission, check_together
from delivery.publish.draft import VOLATILE, Draft
from delivery.publish.errors import InvalidMetadata, RefusedItems
from delivery.publish.publish import Publication, publish_terms, publish_together
from delivery.publish.store import Accepted, NewMessage
from delivery.publish.together import together
from subscriptions.api.authentication import FOUND
from subscriptions.api.permissions import MayPublish, key_of
from subscriptions.credentials.keys import FoundKey
from subscriptions.models import EventKind, Scope

ANYTHING: Final = "*/*"

CLOUD_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "A CloudEvent 1.0 in JSON; other members are extensions.",
    "examples": [
        {
            "specversion": cloud_events.SPECVERSION,
            "id": "order-4711",
            "source": "https://shop.example/orders",
            "type": "Shop.Order.Placed",
            "data": {"order": 4711, "total": "19.90"},
        }
    ],
    "required": [*cloud_events.REQUIRED],
    "properties": {
        **{name: {"type": "string"} for name in (*cloud_events.REQUIRED, *cloud_events.OPTIONAL)},
        "specversion": {"type": "string", "enum": [cloud_events.SPECVERSION]},
        "data": {"description": "The payload, kept exactly."},
        "data_base64": {"type": "string", "description": "The payload's bytes, instead of `data`."},
    },
    "additionalProperties": {"type": ["string", "integer", "boolean"]},
}
ONE_EVENT: Final = {
    cloud_events.JSON: {"description": "The payload.", "examples": [{"order": 4711, "total": "19.90"}]},
    cloud_events.STRUCTURED: CLOUD_EVENT,
    ANYTHING: OpenApiTypes.BINARY,
}
"""The bodies of one event; a CloudEvent in binary mode is recognized by its headers."""


class BatchItem(serializers.Serializer[Any]):
    """One event of a batch."""

    example = {"event": "Shop.Order.Placed", "body": {"order": 4712}, "idempotency_key": "order-4712"}
    event = serializers.CharField(help_text="The event type's name.")
    body = serializers.JSONField(required=False, help_text="The payload; its text is kept exactly.")
    body_base64 = serializers.CharField(required=False, help_text="The payload's bytes, instead of `body`.")
    content_type = serializers.CharField(required=False)
    headers = serializers.DictField(child=serializers.CharField(), required=False)
    filter_string = serializers.CharField(required=False)
    idempotency_key = serializers.CharField(required=False)
    callback_url = serializers.CharField(required=False, help_text="Where to post the result of a QUEUE event.")
    destination = serializers.CharField(required=False, help_text="As `Broker-Destination` of a single event.")
    ttl = serializers.CharField(required=False, help_text="As `Broker-TTL`.")
    not_before = serializers.CharField(required=False, help_text="As `Broker-Not-Before`.")


class EventBatch(serializers.Serializer[Any]):
    """Up to 1,000 events."""

    example = {"events": [BatchItem.example]}
    events = BatchItem(many=True)


SEVERAL_EVENTS: Final = {
    cloud_events.JSON: EventBatch,
    cloud_events.BATCHED: {"type": "array", "items": CLOUD_EVENT},
    cloud_events.STRUCTURED: CLOUD_EVENT,
    ANYTHING: OpenApiTypes.BINARY,
}
"""The bodies of a batch of either form, or of one CloudEvent in any mode."""

_HEADERS: Final = {
    "FILTER_STRING": "Compared literally with the subscriptions' header filter; also as `Filter-String`.",
    "Idempotency-Key": "The same publish with the same key gets the first answer for 24 h.",
    "CallbackURL": "Where to post the result of a QUEUE event.",
    "Broker-Destination": "TOPIC: the only subscriber to get it, by the first of its subscriptions that qualifies; "
    "`NAME/POSITION` or `#ID`: its only subscription to get it; `default`: each subscriber once.",
    "Broker-TTL": "How long it may be sent: seconds, or for example `15m`, `12h`, `4d`; up to 30 days.",
    DURABILITY: "TOPIC: `guaranteed`, the default, or `volatile`: never stored, sent at most once.",
    "Broker-Not-Before": "The earliest time to send it: RFC 3339, or an HTTP date; up to 30 days ahead.",
}
HEADERS: Final = [
    OpenApiParameter(name, OpenApiTypes.STR, OpenApiParameter.HEADER, description=text)
    for name, text in _HEADERS.items()
]


class AcceptedEvent(serializers.Serializer[Any]):
    """The answer to one event."""

    id = serializers.IntegerField(allow_null=True, help_text="The message's id; null: volatile, it is not stored.")
    outcome = serializers.ChoiceField(MessageOutcome.choices)
    deliveries = serializers.IntegerField(
        help_text="TOPIC: how many subscriptions get it. QUEUE: how many qualify; one of each group gets it."
    )
    detail = serializers.CharField(required=False, help_text="If present: why its destination does not get it.")
    durability = serializers.ChoiceField([VOLATILE], required=False, help_text="If present: it is sent at most once.")
    replayed = serializers.BooleanField(required=False, help_text="If present: the answer to an earlier publish.")


class AcceptedBatch(serializers.Serializer[Any]):
    """The answer to a batch: a result for each event, in order."""

    results = AcceptedEvent(many=True)


NOT_DELIVERED: Final[dict[str, str]] = {
    MessageOutcome.DISCARDED: "The destination exists, but it is not active, is for other events, or its filters do "
    "not let this one through",
    MessageOutcome.DEAD_LETTERED: "There is no such subscriber or subscription",
}
"""Why a message's destination does not get it (contract 2.8)."""


def answer_of(accepted: Accepted) -> Mapping[str, object]:
    """Return the answer to an accepted event."""
    answer: dict[str, object] = {
        "id": accepted.id or None,
        "outcome": str(accepted.outcome),
        "deliveries": accepted.deliveries,
    }
    if not accepted.id:
        answer["durability"] = VOLATILE
    if reason := NOT_DELIVERED.get(accepted.outcome):
        answer["detail"] = f"{reason}: {'the message is kept and' if accepted.id else 'it is'} not delivered."
    return {**answer, "replayed": True} if accepted.replayed else answer


class Publish(NamedTuple):
    """What one request asks for."""

    submission: Submission
    max_open: int | None
    """How many messages of the publisher may have unfinished deliveries."""
    found: FoundKey | None = None
    """The key and the event type, if they were found for several requests together."""
    is_batch: bool = False
    """Whether all is stored. A single event is not if it is of kind SYNC or volatile."""


Published = Sequence[Accepted] | NewMessage
"""What was stored, or a message that is not stored before it is sent."""


def publish_all(asked: Sequence[Publish]) -> list[Published | Exception]:
    """Check and store what several requests publish; return the result of each."""
    check = partial(check_together, max_bytes=settings.MAX_BODY_BYTES)
    results: list[Any] = together(check, [one.submission for one in asked])
    stored: dict[int, Publication] = {}
    for number, (one, checked) in enumerate(zip(asked, results, strict=True)):
        if isinstance(checked, Exception):
            continue
        if one.is_batch or not (one.submission.is_volatile or checked[0].kind == EventKind.SYNC):
            stored[number] = Publication(checked, one.max_open, one.found)
        else:
            results[number] = checked[0]
    for number, result in zip(stored, publish_together([*stored.values()], publish_terms()), strict=True):
        results[number] = result
    return [
        result.refusals[0] if isinstance(result, RefusedItems) and not one.is_batch else result
        for one, result in zip(asked, results, strict=True)
    ]


REFUSALS: Final = (
    *("unknown_event_type", "event_type_not_allowed", "unsuitable_content_type", "malformed_payload"),
    *("schema_violated", "invalid_metadata", "invalid_cloud_event", "unsuitable_callback", "unreadable_header"),
    *("idempotency_key_reused", "too_many_deliveries", "too_many_open_messages", "volatile_pulled", "not_served"),
)
"""Why an event is not published."""

_publishing: Final = partial(
    operation, "post", Scope.PUBLISH, MayPublish, base=GroupedView, parser_classes=[RawParser], parameters=HEADERS
)


@_publishing(
    request=ONE_EVENT, responses={202: AcceptedEvent, **ANSWERED}, problems=(*REFUSALS, "publish_in_progress", *UNSENT)
)
def publish_event(request: Request, event_type: str) -> DeferredAnswer[Publish, Published]:
    """Publish an event: it is stored with a delivery for every subscription that qualifies.

    The body is the payload. The answer follows the commit. A volatile event is not stored. The answer to a SYNC event
    is its endpoint's.
    """
    return _one(request, event_in(request, event_type))


@_publishing(
    request=SEVERAL_EVENTS,
    responses={202: PolymorphicProxySerializer("Accepted", [AcceptedBatch, AcceptedEvent], None), **ANSWERED},
    problems=(
        *(*REFUSALS, "publish_in_progress", *UNSENT),
        *("malformed_body", "invalid_items", "batch_exceeds_open_limit"),
    ),
)
def publish_batch(request: Request) -> DeferredAnswer[Publish, Published]:
    """Publish up to 1,000 events: they are stored in their order, all or none; the answer has a result for each.

    One CloudEvent, which names its event type itself, gets the same answer as at the address of its event type.
    Headers are for CloudEvents only: items of the broker's own form have fields instead.
    """
    content_type = content_type_of(request)
    if cloud_events.is_cloud_event(content_type, request.headers) and not cloud_events.is_batch(content_type):
        return _one(request, event_in(request))
    if is_volatile(request):
        raise InvalidMetadata("A batch is always stored: publish volatile events one by one.")
    drafts = cloud_events_in(request) if cloud_events.is_batch(content_type) else events_in(request)
    asked = Publish(Submission(drafts, key_of(request).publisher_id), max_open_of(request), is_batch=True)
    return DeferredAnswer(publish_all, asked, _answer_to_batch)


def _accepted(answer: Mapping[str, object], headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Return the answer as DRF's `Response` would, for a quarter of its CPU time."""
    return HttpResponse(orjson.dumps(answer), cloud_events.JSON, status.HTTP_202_ACCEPTED, headers=headers)


@cache
def _address_of_messages() -> str:
    """Return what the addresses of messages begin with: to ask for each takes as long as all else of its answer."""
    return reverse("message", args=[0]).removesuffix("0")


def _answer_to_batch(published: Published) -> HttpResponse:
    assert not isinstance(published, NewMessage)  # noqa: S101 - what a batch has is stored
    return _accepted({"results": [answer_of(one) for one in published]})


def _one(request: Request, draft: Draft) -> DeferredAnswer[Publish, Published]:
    """Return the answer to one event."""
    found, publisher_id = request.META.get(FOUND), key_of(request).publisher_id
    known = {(publisher_id, found.asked.event_type): found.event_type} if found and found.event_type else {}
    submission = Submission([draft], publisher_id, kinds=ANY_KIND, event_types=known, is_volatile=is_volatile(request))
    asked = Publish(submission, max_open_of(request), found)
    answer = partial(_answer_to_one, request)
    return DeferredAnswer(publish_all, asked, answer, is_slow=lambda published: isinstance(published, NewMessage))


def _answer_to_one(request: Request, published: Published) -> HttpResponseBase:
    """Return the answer to an event; to one that is not stored first: the endpoint's, or that workers have it."""
    if isinstance(published, NewMessage):
        if published.kind == EventKind.SYNC:
            return answer_to_sync(request, published)
        return _accepted(answer_of(accept_volatile(request, published)))
    (one,) = published
    headers = {"Location": f"{_address_of_messages()}{one.id}"}
    if one.replayed:
        headers["Idempotency-Replayed"] = "true"
    return _accepted(answer_of(one), headers)


def max_open_of(request: Request) -> int | None:
    """Return how many messages of the request's publisher may have unfinished deliveries; None: any number."""
    publisher = key_of(request).publisher
    return publisher.max_open_messages if publisher else None
