"""What people do with subscriptions and deliveries: pause, resume, test, cancel, release (contract 1.6, 3.6)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.shortcuts import get_object_or_404
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import DecodedField, StrictSerializer, TextField
from broker_project.core.api.problems import ProblemType, register
from broker_project.core.api.records import Audited, etag_of, operation, refuse_body, valid
from delivery import pause
from delivery.api.deliveries import DeliverySerializer, deliveries_for
from delivery.operations import cancel_deliveries_of, release_one, try_one_now
from delivery.playground.test_events import EndpointAnswer, NothingToSendTo, try_endpoint
from subscriptions.api.permissions import MayReceive, key_of, subscribers_for, subscriptions_for
from subscriptions.api.subscriptions import SubscriptionSerializer
from subscriptions.models import Scope, Subscription

MAX_REASON_CHARACTERS: Final = 1000
_operation = partial(operation, "post", Scope.OPERATE, MayReceive, base=Audited)

register(
    {
        pause.NotPausable: ProblemType(400, "not_pausable", "Cannot be paused"),
        pause.Backfilling: ProblemType(409, "backfilling", "Getting older messages"),
        NothingToSendTo: ProblemType(400, "nothing_to_send_to"),
    }
)


NOT_CHANGED: Final = ("not_pausable", "backfilling")
"""Why a subscription is neither paused nor resumed."""


class PauseSerializer(StrictSerializer):
    """A pause."""

    example = {"reason": "The warehouse moves to another machine."}
    reason = TextField(required=False, default="", allow_blank=True, max_length=MAX_REASON_CHARACTERS)


class Changed(serializers.Serializer[Any]):
    """How many subscriptions were paused or resumed."""

    changed = serializers.IntegerField(help_text="Subscriptions that were not so before.")


def _shown(subscription: Subscription) -> Response:
    changed = Subscription.objects.get(pk=subscription.pk)  # refreshing would decrypt what may be unreadable
    return Response(SubscriptionSerializer(changed).data, headers={"ETag": etag_of(changed)})


def _subscriptions_of(request: Request, name: str) -> list[int]:
    subscriber = get_object_or_404(subscribers_for(key_of(request)), name=name)
    return [*subscriber.subscriptions.values_list("pk", flat=True)]


@_operation(request=PauseSerializer, responses=SubscriptionSerializer, problems=NOT_CHANGED)
def pause_subscription(request: Request, id: int) -> Response:
    """Pause a subscription: messages for it are stored, and nothing is sent."""
    subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
    pause.pause_one(subscription.pk, reason=valid(PauseSerializer, request)["reason"])
    return _shown(subscription)


@_operation(request=None, responses=SubscriptionSerializer, problems=NOT_CHANGED)
def resume_subscription(request: Request, id: int) -> Response:
    """Resume a subscription: the messages that have come meanwhile are sent, in order.

    It was paused by someone, or suspended because its retries were exhausted.
    """
    subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
    refuse_body(request)
    pause.resume_one(subscription.pk, reason="")
    return _shown(subscription)


@_operation(request=PauseSerializer, responses=Changed)
def pause_subscriber(request: Request, name: str) -> Response:
    """Pause a subscriber: its present TOPIC and QUEUE subscriptions, except those being backfilled."""
    subscriptions, asked = _subscriptions_of(request, name), valid(PauseSerializer, request)
    return Response({"changed": len(pause.pause(subscriptions, reason=asked["reason"]))})


@_operation(request=None, responses=Changed)
def resume_subscriber(request: Request, name: str) -> Response:
    """Resume a subscriber: all its paused subscriptions."""
    subscriptions = _subscriptions_of(request, name)
    refuse_body(request)
    return Response({"changed": len(pause.resume(subscriptions))})


class TestAnswer(serializers.Serializer[EndpointAnswer]):
    """The answer to a test event."""

    status_code = serializers.IntegerField(allow_null=True, help_text="Null: there was no answer.")
    reason = serializers.CharField(allow_blank=True, help_text="Why there was no answer; else empty.")
    duration_ms = serializers.IntegerField()
    answer_headers = DecodedField("latin-1", help_text="The status line and headers.")
    answer_excerpt = DecodedField(errors="replace", help_text="The first KiB of the body.")


@_operation(request=None, responses=TestAnswer, problems=["nothing_to_send_to"])
def send_test_event(request: Request, id: int) -> Response:
    """Send a test event to a subscription's endpoint; its answer follows within some seconds.

    The payload is the event type's sample, or `{"test": true}`, signed, with the configured headers and
    `Webhook-Test: true`. The subscription's status does not matter, and the line is bypassed. Test events are not
    stored, and nothing follows from the answer.
    """
    subscriptions = subscriptions_for(key_of(request)).select_related("event_type")
    subscription = get_object_or_404(subscriptions, pk=id)
    refuse_body(request)
    answer = try_endpoint(subscription, egress=settings.EGRESS_POLICY)
    return Response(TestAnswer(answer).data)


class CancelledSerializer(serializers.Serializer[Any]):
    """How many deliveries were cancelled."""

    cancelled = serializers.IntegerField(source="ended", help_text="Ended as CANCELLED.")
    in_flight = serializers.IntegerField(help_text="In flight: end so, unless their answer ends them otherwise.")
    complete = serializers.BooleanField(source="is_complete", help_text="False: there is more. Call again.")


@_operation(request=None, responses=CancelledSerializer)
def cancel_deliveries(request: Request, id: int) -> Response:
    """Cancel the unfinished deliveries of a subscription, as many as a few seconds allow; then it can be deleted."""
    subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
    refuse_body(request)
    done = cancel_deliveries_of(subscription.pk, reason="cancelled over the API")
    return Response(CancelledSerializer(done).data)


@_operation(request=None, responses=DeliverySerializer, problems=["not_held"])
def release_delivery(request: Request, id: int) -> Response:
    """Release a HELD delivery: it is sent regardless of its filter. The answer is the delivery, now PENDING."""
    return _changed(request, id, release_one)


@_operation(request=None, responses=DeliverySerializer, problems=["not_waiting"])
def try_delivery_now(request: Request, id: int) -> Response:
    """Try a delivery that waits to be tried again at once; the answer is the delivery.

    One whose line waits for it is tried with its line. In a line that goes on meanwhile it can take two seconds.
    """
    return _changed(request, id, try_one_now)


def _changed(request: Request, id: int, change: Callable[[int], None]) -> Response:
    """Change a delivery that the key may see; answer with the delivery as it is then."""
    visible = deliveries_for(key_of(request))
    delivery = get_object_or_404(visible, pk=id)
    refuse_body(request)
    with transaction.atomic():  # its line is locked: it is not sent before it is read
        change(delivery.pk)
        changed = visible.get(pk=id)
    return Response(DeliverySerializer(changed).data)
