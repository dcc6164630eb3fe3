"""Resubmit one delivery or message (contract 5.8)."""

from typing import Any

from django.conf import settings
from django.shortcuts import get_object_or_404
from django.urls import reverse
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import Base64Field, StrictSerializer, TextField
from broker_project.core.api.problems import ProblemType, register
from broker_project.core.api.views import operation, refuse_body, valid
from delivery.api.deliveries import DeliverySerializer, deliveries_for
from delivery.api.messages import messages_for
from delivery.api.publish import AcceptedEvent, answer_of
from delivery.api.trials import AS_TEXT
from delivery.callbacks.address import callback_terms
from delivery.models import Message
from delivery.replay.resubmit import Edit, NoLongerKept, NotResubmittable, republish, resubmit
from subscriptions.api.permissions import MayPublish, MayReceive, key_of
from subscriptions.models import Scope

register({NotResubmittable: ProblemType(409, "not_resubmittable"), NoLongerKept: ProblemType(410, "no_longer_kept")})


class EditSerializer(StrictSerializer):
    """Nothing, or a body to send instead of the message's."""

    body = TextField(
        required=False, allow_blank=True, error_messages={"not_text": AS_TEXT}, help_text="As text, JSON too."
    )
    body_base64 = Base64Field(required=False, help_text="Instead of `body`: any bytes.")
    content_type = TextField(required=False, help_text="Of the new body; without it, the message's.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse two bodies, and a content type without a body."""
        bodies = attrs.keys() & {"body", "body_base64"}
        if len(bodies) > 1:
            raise serializers.ValidationError({"body_base64": ["Give one body."]})
        if "content_type" in attrs and not bodies:
            raise serializers.ValidationError({"content_type": ["Give it with a body."]})
        return attrs


@operation(
    "post",
    Scope.OPERATE,
    MayReceive,
    is_audited=True,
    request=EditSerializer,
    responses={201: DeliverySerializer},
)
def resubmit_delivery(request: Request, id: int) -> Response:
    """Send it again as a new delivery to the same destination; the old one is unchanged."""
    visible = deliveries_for(key_of(request))
    old = get_object_or_404(visible, pk=id)
    given = valid(EditSerializer, request)
    edit = None
    if given:
        body = given["body"].encode() if "body" in given else given["body_base64"]
        edit = Edit(body, given.get("content_type"))
    new_id = resubmit(old.pk, edit=edit, max_bytes=settings.MAX_BODY_BYTES, senders=settings.QUEUE_SENDERS)
    location = reverse("delivery", args=[new_id])
    created = DeliverySerializer(visible.get(pk=new_id)).data
    return Response(created, status.HTTP_201_CREATED, headers={"Location": location})


class ResubmittedEvent(AcceptedEvent):
    """The answer to a message that is published again."""

    copy_of = serializers.IntegerField(help_text="The message that this one is a copy of; for a copy, its original.")


@operation("post", Scope.OPERATE, MayPublish, is_audited=True, request=None, responses={202: ResubmittedEvent})
def resubmit_message(request: Request, id: int) -> Response:
    """Publish it again, as a copy, to all subscriptions that qualify now; the old one is unchanged."""
    message = get_object_or_404(messages_for(key_of(request)).select_related(None).only("pk"), pk=id)
    refuse_body(request)
    accepted = republish(
        message.pk,
        key_hours=settings.IDEMPOTENCY_KEY_HOURS,
        senders=settings.QUEUE_SENDERS,
        callbacks=callback_terms(),
    )
    location = reverse("message", args=[accepted.id])
    (copy_of,) = Message.objects.values_list("copy_of", flat=True).filter(pk=accepted.id)
    answer = {**answer_of(accepted), "copy_of": copy_of}
    return Response(answer, status.HTTP_202_ACCEPTED, headers={"Location": location})
