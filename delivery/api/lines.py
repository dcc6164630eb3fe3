"""The operator's view of a subscriber's line, and cancelling what waits there."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.cancelling import cancel_deliveries_of
from delivery.models import Lane, Line, LineEvent
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.scopes import subscribers_for, subscriptions_for

EVENTS_SHOWN = 50


class LineEventSerializer(serializers.ModelSerializer[LineEvent]):
    """One thing worth knowing in a line's history."""

    class Meta:
        model = LineEvent
        fields = ("at", "kind", "sequence", "delivery_id", "reason")


class LineSerializer(serializers.ModelSerializer[Line]):
    """Whether a line moves: held since when, why, and when it tries again."""

    subscriber = serializers.CharField(source="subscriber.name", read_only=True)
    next_try_at = serializers.DateTimeField(source="due_at", read_only=True, allow_null=True)
    head_delivery_id = serializers.IntegerField(source="head_id", read_only=True, allow_null=True)
    history = serializers.SerializerMethodField()

    class Meta:
        model = Line
        fields = (
            "subscriber",
            "held_since",
            "held_reason",
            "next_try_at",
            "head_delivery_id",
            "failures",
            "last_sequence",
            "worker",
            "lease_until",
            "history",
        )

    def get_history(self, line: Line) -> list[dict[str, Any]]:
        """Return the newest events of its history."""
        return [dict(LineEventSerializer(event).data) for event in line.events.order_by("-id")[:EVENTS_SHOWN]]


class LineOfSubscriber(APIView):
    """A subscriber's line."""

    permission_classes = [MayReceive]

    @extend_schema(operation_id="read_line", responses=LineSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return how the line stands."""
        subscriber = get_object_or_404(subscribers_for(key_of(request)), name=name)
        return Response(LineSerializer(subscriber.lines.get(lane=Lane.MAIN)).data)


class Cancelled(serializers.Serializer[Any]):
    """What cancelling did."""

    cancelled = serializers.IntegerField(help_text="Ended as CANCELLED.")
    under_way = serializers.IntegerField(help_text="Under way: end so unless their answer ends them otherwise.")


class CancelDeliveries(APIView):
    """Everything a subscription has unfinished."""

    permission_classes = [MayReceive]

    @extend_schema(operation_id="cancel_deliveries", request=None, responses=Cancelled)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """End it all as CANCELLED, so that the subscription can be deleted."""
        subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
        cancelled, under_way = cancel_deliveries_of(subscription.pk, reason="cancelled over the API")
        return Response({"cancelled": cancelled, "under_way": under_way})
