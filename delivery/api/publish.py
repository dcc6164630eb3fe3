"""Publishing over HTTP: one event, or a batch (behaviour 2)."""

from collections.abc import Sequence

from django.conf import settings
from django.http import HttpResponseBase
from django.urls import reverse
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from broker_project.core.api.parsing import RawParser
from delivery.api import problems as _problems  # noqa: F401 - says what the use cases' exceptions mean
from delivery.api.event_requests import HEADERS, ONE_EVENT, SEVERAL_EVENTS
from delivery.api.publish_requests import cloud_events_in, content_type_of, event_in, events_in
from delivery.api.published import AcceptedBatch, AcceptedEvent, answer_of
from delivery.api.sync import answer_to, refuse_unsuitable
from delivery.api.volatile import RESPONSES, answer_to_volatile, is_volatile, refuse_volatile_batch
from delivery.callbacks.terms import callback_terms
from delivery.publish.accept import accept, checked
from delivery.publish.cloud_events import is_batch, is_cloud_event
from delivery.publish.draft import Draft
from delivery.publish.errors import Refusal, RefusedItems
from delivery.publish.publish import publish
from delivery.publish.store import Accepted, NewMessage
from subscriptions.api.permissions import MayPublish, key_of
from subscriptions.models import EventKind, Scope


class Publish(APIView):
    """Publish one event: the body is the payload."""

    permission_classes = [MayPublish]
    needs = {"post": Scope.PUBLISH}
    parser_classes = [RawParser]

    @extend_schema(
        operation_id="publish_event",
        parameters=HEADERS,
        request=ONE_EVENT,
        responses={202: AcceptedEvent, **RESPONSES},
    )
    def post(self, request: Request, event_type: str) -> HttpResponseBase:
        """Store the event with a delivery for every subscription that qualifies; answered once that is durable.

        A volatile event is stored nowhere. A SYNC event is answered with what its endpoint answers.
        """
        return answer_to_one(request, event_in(request, event_type))


class PublishBatch(APIView):
    """Publish up to 1,000 events at once, all or none; or one CloudEvent, which names its event type itself."""

    permission_classes = [MayPublish]
    needs = {"post": Scope.PUBLISH}
    parser_classes = [RawParser]

    @extend_schema(
        operation_id="publish_batch",
        parameters=HEADERS,
        request=SEVERAL_EVENTS,
        responses={202: PolymorphicProxySerializer("Accepted", [AcceptedBatch, AcceptedEvent], None), **RESPONSES},
    )
    def post(self, request: Request) -> HttpResponseBase:
        """Store the events in their order in one transaction; answer for each.

        One CloudEvent is answered as where its event type is named in the address. Headers speak of CloudEvents only:
        an item of the broker's own form has fields for what it says.
        """
        content_type = content_type_of(request)
        if is_cloud_event(content_type, request.headers) and not is_batch(content_type):
            return answer_to_one(request, event_in(request))
        refuse_volatile_batch(request)
        accepted = accepted_by(request, cloud_events_in(request) if is_batch(content_type) else events_in(request))
        return Response({"results": [answer_of(one) for one in accepted]}, status.HTTP_202_ACCEPTED)


def answer_to_one(request: Request, draft: Draft) -> HttpResponseBase:
    """Publish one event and return what its publisher is answered."""
    message = message_of(request, draft)
    if message.kind == EventKind.SYNC:
        refuse_unsuitable(request)
        return answer_to(message, publisher_id=key_of(request).publisher_id)
    if is_volatile(request):
        return answer_to_volatile(request, message)
    accepted = published_by(request, message)
    location = reverse("message", args=[accepted.id])
    replayed = {"Idempotency-Replayed": "true"} if accepted.replayed else {}
    return Response(answer_of(accepted), status.HTTP_202_ACCEPTED, headers={"Location": location, **replayed})


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
            most_open=_most_open(request),
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
        most_open=_most_open(request),
    )


def _most_open(request: Request) -> int | None:
    publisher = key_of(request).publisher
    return None if publisher is None else publisher.max_open_messages
