"""Resubmit one delivery or message, or release a HELD delivery (contract 3.6, 5.8)."""

import base64
import binascii
from typing import Any

from django.conf import settings
from django.db import transaction
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import StrictSerializer, TextField
from broker_project.core.api.problems import ProblemType, register
from delivery.api.deliveries import DeliverySerializer
from delivery.api.publish import AcceptedEvent, answer_of
from delivery.api.records import deliveries_for
from delivery.api.trials import AS_TEXT
from delivery.callbacks.address import callback_terms
from delivery.models import Message
from delivery.operations import release_one
from delivery.replay.resubmit import Edit, NoLongerKept, NotResubmittable, republish, resubmit
from subscriptions.api.permissions import MayPublish, MayReceive, key_of
from subscriptions.api.resources import Noted, refuse_body
from subscriptions.models import KeyKind, Scope

register(
    {
        NotResubmittable: ProblemType(409, "not_resubmittable", "Not resubmittable"),
        NoLongerKept: ProblemType(410, "no_longer_kept", "No longer kept"),
    }
)


class EditSerializer(StrictSerializer):
    """Nothing, or what is sent in place of the message's body."""

    body = TextField(
        required=False, allow_blank=True, error_messages={"not_text": AS_TEXT}, help_text="As text, JSON too."
    )
    body_base64 = TextField(required=False, allow_blank=True, help_text="Instead of `body`: any bytes.")
    content_type = TextField(required=False, help_text="Of another body; without it, the message's.")

    def validate_body_base64(self, text: str) -> bytes:
        """Return the bytes."""
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise serializers.ValidationError("This is not base64.") from None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse two bodies, and a content type of none."""
        bodies = attrs.keys() & {"body", "body_base64"}
        if len(bodies) > 1:
            raise serializers.ValidationError({"body_base64": ["Give one body."]})
        if "content_type" in attrs and not bodies:
            raise serializers.ValidationError({"content_type": ["Give it with a body."]})
        return attrs


class ResubmitDelivery(Noted):
    """A delivery that came to nothing."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.OPERATE}

    @extend_schema(operation_id="resubmit_delivery", request=EditSerializer, responses={201: DeliverySerializer})
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Send it again, as a new delivery to the same destination; the old one stays as it is."""
        visible = deliveries_for(key_of(request))
        old = get_object_or_404(visible, pk=id)
        new_id = resubmit(
            old.pk, edit=_edit_of(request), max_bytes=settings.MAX_BODY_BYTES, senders=settings.QUEUE_SENDERS
        )
        location = reverse("delivery", args=[new_id])
        made = DeliverySerializer(visible.get(pk=new_id)).data
        return Response(made, status.HTTP_201_CREATED, headers={"Location": location})


def _edit_of(request: Request) -> Edit | None:
    serializer = EditSerializer(data=request.data)
    serializer.is_valid(raise_exception=True)
    given = serializer.validated_data
    if "body" in given:
        return Edit(given["body"].encode(), given.get("content_type"))
    return Edit(given["body_base64"], given.get("content_type")) if "body_base64" in given else None


class ResubmittedEvent(AcceptedEvent):
    """What is answered to a message published again."""

    copy_of = serializers.IntegerField(help_text="The message that this one is a copy of; of a copy, its original.")


class ResubmitMessage(Noted):
    """A message that nobody got."""

    permission_classes = [MayPublish]
    needs = {"post": Scope.OPERATE}

    @extend_schema(operation_id="resubmit_message", request=None, responses={202: ResubmittedEvent})
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Publish it again, as a copy, to whoever qualifies now; the old one stays as it is."""
        key, messages = key_of(request), Message.objects.all()
        visible = messages if key.kind == KeyKind.MANAGEMENT else messages.filter(publisher=key.publisher_id)
        message = get_object_or_404(visible.only("pk"), pk=id)
        refuse_body(request)
        accepted = republish(
            message.pk,
            key_hours=settings.IDEMPOTENCY_KEY_HOURS,
            senders=settings.QUEUE_SENDERS,
            callbacks=callback_terms(),
        )
        location = reverse("message", args=[accepted.id])
        (copy_of,) = messages.values_list("copy_of", flat=True).filter(pk=accepted.id)
        answer = {**answer_of(accepted), "copy_of": copy_of}
        return Response(answer, status.HTTP_202_ACCEPTED, headers={"Location": location})


urlpatterns = [
    path("deliveries/<int:id>/resubmit", ResubmitDelivery.as_view()),
    path("messages/<int:id>/resubmit", ResubmitMessage.as_view()),
]


class ReleaseDelivery(Noted):
    """A delivery whose filter or script failed."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.OPERATE}

    @extend_schema(operation_id="release_delivery", request=None, responses=DeliverySerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Let it be sent, whatever its filter says; answered with the delivery, which is PENDING now."""
        visible = deliveries_for(key_of(request))
        delivery = get_object_or_404(visible, pk=id)
        refuse_body(request)
        with transaction.atomic():  # its line is locked: nobody sends it before it is read
            release_one(delivery.pk)
            released = visible.get(pk=id)
        return Response(DeliverySerializer(released).data)
