"""Publishing over HTTP: one event, or a batch (behaviour 2)."""

from collections.abc import Sequence
from typing import Any, Final

from django.conf import settings
from django.http import HttpResponseBase
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.api import problems as _problems  # noqa: F401 - says what the use cases' exceptions mean
from delivery.api.batches import drafts_of
from delivery.api.calls import RESPONSES, answer_to, refuse_unsuitable
from delivery.api.published import AcceptedBatch, AcceptedEvent, EventBatch, answer_of
from delivery.callbacks.terms import callback_terms
from delivery.intake.drafts import Draft
from delivery.intake.refusals import InvalidMetadata, KindNotServed, Refusal, RefusedItems
from delivery.messages.accepting import accept, checked
from delivery.messages.publishing import publish
from delivery.messages.storing import Accepted, NewMessage
from subscriptions.api.parsing import RawParser, body_of
from subscriptions.api.permissions import MayPublish, key_of
from subscriptions.models import EventKind

AMBIGUOUS_HEADERS: Final = "broker.ambiguous_headers"
"""Where the web server says which variables stand for two headers with different values."""

NOT_SERVED: Final = {
    "Broker-Destination": "direct delivery",
    "Broker-TTL": "a time to live",
    "Broker-Not-Before": "delayed messages",
}
"""Headers whose meaning this version does not know; ignoring them would be worse than refusing."""


def _header(name: str, text: str) -> OpenApiParameter:
    return OpenApiParameter(name, OpenApiTypes.STR, OpenApiParameter.HEADER, description=text)


HEADERS: Final = [
    _header("FILTER_STRING", "Compared literally with the subscriptions' header filter; also as `Filter-String`."),
    _header("Idempotency-Key", "The same publish under the same key gets the first answer for 24 h."),
    _header("CallbackURL", "Where the result of a QUEUE event is to be posted."),
]


class Publish(APIView):
    """Publish one event: the body is the payload."""

    permission_classes = [MayPublish]
    parser_classes = [RawParser]

    @extend_schema(
        operation_id="publish_event",
        parameters=HEADERS,
        request={"application/json": OpenApiTypes.ANY, "*/*": OpenApiTypes.BINARY},
        responses={202: AcceptedEvent, **RESPONSES},
    )
    def post(self, request: Request, event_type: str) -> HttpResponseBase:
        """Store the event with a delivery for every subscription that qualifies; answered once that is durable.

        A SYNC event is answered with what its endpoint answers.
        """
        draft = Draft(
            event_type=event_type,
            body=body_of(request, limit=settings.MAX_BODY_BYTES),
            content_type=request.META.get("CONTENT_TYPE") or None,
            headers=list(request.headers.items()),
            filter_string=filter_string_of(request),
            idempotency_key=request.META.get("HTTP_IDEMPOTENCY_KEY"),
            callback_url=request.META.get("HTTP_CALLBACKURL"),
        )
        message = message_of(request, draft)
        if message.kind == EventKind.SYNC:
            refuse_unsuitable(request)
            return answer_to(message, publisher_id=key_of(request).publisher_id)
        refuse_unserved(request)
        accepted = published_by(request, message)
        location = reverse("message", args=[accepted.id])
        replayed = {"Idempotency-Replayed": "true"} if accepted.replayed else {}
        return Response(answer_of(accepted), status.HTTP_202_ACCEPTED, headers={"Location": location, **replayed})


class PublishBatch(APIView):
    """Publish up to 1,000 events at once, all or none."""

    permission_classes = [MayPublish]
    parser_classes = [RawParser]

    @extend_schema(operation_id="publish_batch", request=EventBatch, responses={202: AcceptedBatch})
    def post(self, request: Request) -> Response:
        """Store the events in their order in one transaction; answer for each."""
        refuse_unserved(request)
        if "Idempotency-Key" in request.headers:
            raise InvalidMetadata("In a batch each event has a key of its own: give it in the field 'idempotency_key'.")
        if "CallbackURL" in request.headers:
            raise InvalidMetadata("In a batch each event has its own CallbackURL: give it in the field 'callback_url'.")
        drafts = drafts_of(body_of(request, limit=settings.MAX_BATCH_BYTES), most_items=settings.MAX_BATCH_ITEMS)
        accepted = accepted_by(request, drafts)
        return Response({"results": [answer_of(one) for one in accepted]}, status.HTTP_202_ACCEPTED)


def message_of(request: Request, draft: Draft) -> NewMessage:
    """Return the message that a draft is, of whatever kind; nothing is stored yet."""
    try:
        (message,) = checked(
            [draft],
            publisher_id=key_of(request).publisher_id,
            most_bytes=settings.MAX_BODY_BYTES,
            kinds=frozenset(EventKind),
        )
    except RefusedItems as refused:
        raise refused.refusals[0] from None
    return message


def published_by(request: Request, message: NewMessage) -> Accepted:
    """Publish a message for the publisher whose key calls."""
    try:
        (accepted,) = publish(
            [message],
            publisher_id=key_of(request).publisher_id,
            key_hours=settings.IDEMPOTENCY_KEY_HOURS,
            senders=settings.QUEUE_SENDERS,
            callbacks=callback_terms(),
        )
    except RefusedItems as refused:
        raise refused.refusals[0] from None
    return accepted


def accepted_by(request: Request, drafts: Sequence[Draft | Refusal]) -> list[Accepted]:
    """Accept the drafts for the publisher whose key calls."""
    return accept(
        drafts,
        publisher_id=key_of(request).publisher_id,
        key_hours=settings.IDEMPOTENCY_KEY_HOURS,
        most_bytes=settings.MAX_BODY_BYTES,
        senders=settings.QUEUE_SENDERS,
        callbacks=callback_terms(),
    )


def filter_string_of(request: Request) -> str | None:
    """Return the `FILTER_STRING` header, or `Filter-String` for proxies that drop underscores (behaviour 2.3).

    Raises:
        InvalidMetadata: both are there and differ.

    """
    if "HTTP_FILTER_STRING" in request.META.get(AMBIGUOUS_HEADERS, ()):
        raise InvalidMetadata("FILTER_STRING and Filter-String differ; send one of them.")
    return request.META.get("HTTP_FILTER_STRING")


def refuse_unserved(request: Request) -> None:
    """Raise `KindNotServed` for headers that ask for what this version cannot do."""
    asked: dict[str, Any] = {name: what for name, what in NOT_SERVED.items() if name in request.headers}
    if request.headers.get("Broker-Durability", "guaranteed") != "guaranteed":
        asked["Broker-Durability"] = "volatile messages"
    for name, what in asked.items():
        raise KindNotServed(f"This version does not serve {what}; publish without the header {name}.")
