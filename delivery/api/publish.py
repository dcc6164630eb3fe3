"""Publish over HTTP: one event or a batch (contract 2)."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from django.conf import settings
from django.http import HttpResponseBase
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from broker_project.core.api.parsing import RawParser
from delivery.api import problems as _problems  # noqa: F401 - says what the use cases' exceptions mean
from delivery.api.publish_requests import cloud_events_in, content_type_of, event_in, events_in
from delivery.api.sync import answer_to, refuse_unsuitable
from delivery.api.volatile import DURABILITY, RESPONSES, answer_to_volatile, is_volatile, refuse_volatile_batch
from delivery.callbacks.address import callback_terms
from delivery.models import MessageOutcome
from delivery.publish.cloud_events import (
    BATCHED,
    JSON,
    OPTIONAL,
    REQUIRED,
    SPECVERSION,
    STRUCTURED,
    is_batch,
    is_cloud_event,
)
from delivery.publish.draft import VOLATILE, Draft
from delivery.publish.errors import Refusal, RefusedItems
from delivery.publish.publish import STORED, check_drafts, publish
from delivery.publish.store import Accepted, NewMessage
from subscriptions.api.permissions import MayPublish, key_of
from subscriptions.models import EventKind, Scope

ANYTHING: Final = "*/*"

ASTRAY: Final[dict[str, str]] = {
    MessageOutcome.DISCARDED: "None of the destination's subscriptions qualifies: the message is kept, nobody gets it.",
    MessageOutcome.DEAD_LETTERED: "There is no subscriber of this name: the message is kept, nobody gets it.",
}
"""What is said where a message's destination does not get it (contract 2.8)."""

CLOUD_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "A CloudEvent 1.0 in JSON; other members are extensions.",
    "required": [*REQUIRED],
    "properties": {
        **{name: {"type": "string"} for name in (*REQUIRED, *OPTIONAL)},
        "specversion": {"type": "string", "enum": [SPECVERSION]},
        "data": {"description": "The payload, kept to the letter."},
        "data_base64": {"type": "string", "description": "The payload's bytes, instead of `data`."},
    },
    "additionalProperties": {"type": ["string", "integer", "boolean"]},
}

ONE_EVENT: Final = {
    JSON: OpenApiTypes.ANY,
    STRUCTURED: CLOUD_EVENT,
    ANYTHING: OpenApiTypes.BINARY,
}
"""What one event's type takes; a CloudEvent in binary mode is told by its headers."""


class BatchItem(serializers.Serializer[Any]):
    """One event of a batch."""

    event = serializers.CharField(help_text="The event type's name.")
    body = serializers.JSONField(required=False, help_text="The payload; its text is kept as it stands here.")
    body_base64 = serializers.CharField(required=False, help_text="The payload's bytes, instead of `body`.")
    content_type = serializers.CharField(required=False)
    headers = serializers.DictField(child=serializers.CharField(), required=False)
    filter_string = serializers.CharField(required=False)
    idempotency_key = serializers.CharField(required=False)
    callback_url = serializers.CharField(required=False, help_text="Where to post the result of a QUEUE event.")
    destination = serializers.CharField(required=False, help_text="As `Broker-Destination` where it is sent alone.")
    ttl = serializers.CharField(required=False, help_text="As `Broker-TTL`.")
    not_before = serializers.CharField(required=False, help_text="As `Broker-Not-Before`.")


class EventBatch(serializers.Serializer[Any]):
    """Up to 1,000 events."""

    events = BatchItem(many=True)


SEVERAL_EVENTS: Final = {
    JSON: EventBatch,
    BATCHED: {"type": "array", "items": CLOUD_EVENT},
    STRUCTURED: CLOUD_EVENT,
    ANYTHING: OpenApiTypes.BINARY,
}
"""A batch of either form, or one CloudEvent of any mode."""


def _header(name: str, text: str) -> OpenApiParameter:
    return OpenApiParameter(name, OpenApiTypes.STR, OpenApiParameter.HEADER, description=text)


HEADERS: Final = [
    _header("FILTER_STRING", "Compared literally with the subscriptions' header filter; also as `Filter-String`."),
    _header("Idempotency-Key", "The same publish under the same key gets the first answer for 24 h."),
    _header("CallbackURL", "Where the result of a QUEUE event is to be posted."),
    _header(
        "Broker-Destination",
        "TOPIC: the subscriber that alone gets it, by the first of its subscriptions that qualifies; `default`: each "
        "subscriber once.",
    ),
    _header("Broker-TTL", "For how long it may be sent: seconds, or such as `15m`, `12h`, `4d`; up to 30 days."),
    _header(DURABILITY, "TOPIC: `guaranteed`, which is meant without it, or `volatile`: stored nowhere, sent once."),
    _header("Broker-Not-Before", "Before when it is not sent: RFC 3339, or an HTTP date; up to 30 days ahead."),
]


class AcceptedEvent(serializers.Serializer[Any]):
    """What is answered to one event."""

    id = serializers.IntegerField(allow_null=True, help_text="The message's id; null: volatile, it is stored nowhere.")
    outcome = serializers.ChoiceField(MessageOutcome.choices)
    deliveries = serializers.IntegerField(
        help_text="TOPIC: how many subscriptions get it. QUEUE: how many may be asked, one of each group takes it."
    )
    detail = serializers.CharField(required=False, help_text="There: why its destination does not get it.")
    durability = serializers.ChoiceField(
        [VOLATILE], required=False, help_text="There: each of them is sent it once, and never again."
    )
    replayed = serializers.BooleanField(required=False, help_text="There: an earlier publish with this key is meant.")


class AcceptedBatch(serializers.Serializer[Any]):
    """What is answered to a batch: a result for each event, in order."""

    results = AcceptedEvent(many=True)


def answer_of(accepted: Accepted) -> dict[str, object]:
    """Return what is answered for an accepted event."""
    answer: dict[str, object] = {
        "id": accepted.id,
        "outcome": str(accepted.outcome),
        "deliveries": accepted.deliveries,
    }
    if detail := ASTRAY.get(accepted.outcome):
        answer["detail"] = detail
    return {**answer, "replayed": True} if accepted.replayed else answer


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
        drafts = cloud_events_in(request) if is_batch(content_type) else events_in(request)
        accepted = _published(request, _checked(request, drafts, STORED))
        return Response({"results": [answer_of(one) for one in accepted]}, status.HTTP_202_ACCEPTED)


def answer_to_one(request: Request, draft: Draft) -> HttpResponseBase:
    """Publish one event and return what its publisher is answered."""
    try:
        (message,) = _checked(request, [draft], frozenset(EventKind))
        if message.kind == EventKind.SYNC:
            refuse_unsuitable(request)
            return answer_to(message, publisher_id=key_of(request).publisher_id)
        if is_volatile(request):
            return answer_to_volatile(request, message)
        (accepted,) = _published(request, [message])
    except RefusedItems as refused:
        raise refused.refusals[0] from None
    location = reverse("message", args=[accepted.id])
    replayed = {"Idempotency-Replayed": "true"} if accepted.replayed else {}
    return Response(answer_of(accepted), status.HTTP_202_ACCEPTED, headers={"Location": location, **replayed})


def _checked(request: Request, drafts: Sequence[Draft | Refusal], kinds: Collection[str]) -> list[NewMessage]:
    publisher_id = key_of(request).publisher_id
    return check_drafts(drafts, publisher_id=publisher_id, max_bytes=settings.MAX_BODY_BYTES, kinds=kinds)


def _published(request: Request, messages: Sequence[NewMessage]) -> list[Accepted]:
    """Publish the messages for the publisher whose key calls."""
    key = key_of(request)
    return publish(
        messages,
        publisher_id=key.publisher_id,
        key_hours=settings.IDEMPOTENCY_KEY_HOURS,
        senders=settings.QUEUE_SENDERS,
        callbacks=callback_terms(),
        max_open=key.publisher.max_open_messages if key.publisher else None,
    )
