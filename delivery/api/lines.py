"""The operator's view of a subscriber's line, and cancelling what waits there."""

from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.models import Lane, Line, LineEvent
from delivery.operations import cancel_deliveries_of
from delivery.status.line_status import MAX_COUNTED, LineState, LineStatus, line_statuses
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.resources import Noted, refuse_body
from subscriptions.api.visibility import subscribers_for, subscriptions_for
from subscriptions.models import EventKind, Scope, Subscription

EVENTS_SHOWN: Final = 50
PAUSES_SHOWN: Final = 100


class LineEventSerializer(serializers.ModelSerializer[LineEvent]):
    """One thing worth knowing in a line's history."""

    class Meta:
        model = LineEvent
        fields = ("at", "kind", "sequence", "delivery_id", "reason")


class RetrySerializer(serializers.Serializer[LineStatus]):
    """What is tried again apart from the line, and holds up nothing in it."""

    state = serializers.ChoiceField(LineState.choices, read_only=True)
    waiting = serializers.IntegerField(read_only=True, help_text=f"Deliveries, counted to {MAX_COUNTED}.")
    next_due_at = serializers.DateTimeField(
        source="deferred_due_at", read_only=True, allow_null=True, help_text="When the next of them is due."
    )


class LinePauseSerializer(serializers.ModelSerializer[Subscription]):
    """A subscription that is not sent for the time being."""

    subscription_id = serializers.IntegerField(source="id", read_only=True)

    class Meta:
        model = Subscription
        fields = ("subscription_id", "paused_since", "paused_by", "paused_reason", "half_open", "probe_due_at")
        read_only_fields = fields


@dataclass(frozen=True, slots=True)
class LineNow:
    """A line, how it stands, and how its sister does where deliveries are tried again apart."""

    line: Line
    standing: LineStatus
    retry: LineStatus

    @property
    def paused(self) -> "QuerySet[Subscription]":
        """Those of its subscriptions that are paused, the first ones to be so first."""
        own = Subscription.objects.filter(subscriber=self.line.subscriber_id, kind=EventKind.TOPIC)
        return own.filter(paused_since__isnull=False).order_by("paused_since", "pk")[:PAUSES_SHOWN]


class LineSerializer(serializers.Serializer[LineNow]):
    """Whether a line moves: what waits in it, held since when, why, and when it tries again."""

    subscriber = serializers.CharField(source="line.subscriber.name", read_only=True)
    state = serializers.ChoiceField(LineState.choices, source="standing.state", read_only=True)
    waiting = serializers.IntegerField(
        source="standing.waiting", read_only=True, help_text=f"Unfinished deliveries, counted to {MAX_COUNTED}."
    )
    deferred = serializers.IntegerField(
        source="standing.deferred", read_only=True, help_text="Those of them that failed and are tried again later."
    )
    awaiting_release = serializers.IntegerField(
        source="standing.awaiting_release",
        read_only=True,
        help_text="Those of them that are HELD until they are released.",
    )
    delayed = serializers.IntegerField(
        source="standing.delayed", read_only=True, help_text="Those of them that are not to be sent before a moment."
    )
    deferred_due_at = serializers.DateTimeField(
        source="standing.deferred_due_at", read_only=True, allow_null=True, help_text="When the next of those is due."
    )
    held_since = serializers.DateTimeField(source="standing.hold.since", read_only=True, allow_null=True)
    held_reason = serializers.CharField(source="standing.hold.reason", read_only=True, default="")
    next_try_at = serializers.DateTimeField(source="standing.hold.next_try_at", read_only=True, allow_null=True)
    head_delivery_id = serializers.IntegerField(source="line.head_id", read_only=True, allow_null=True)
    failures = serializers.IntegerField(source="line.failures", read_only=True)
    last_sequence = serializers.IntegerField(source="line.last_sequence", read_only=True)
    worker = serializers.CharField(source="line.worker", read_only=True)
    lease_until = serializers.DateTimeField(source="line.lease_until", read_only=True, allow_null=True)
    retry = RetrySerializer(read_only=True)
    paused = LinePauseSerializer(many=True, read_only=True, help_text=f"The first {PAUSES_SHOWN} to have been paused.")
    history = serializers.SerializerMethodField()

    def get_history(self, now: LineNow) -> list[dict[str, Any]]:
        """Return the newest events of its history."""
        return [dict(LineEventSerializer(event).data) for event in now.line.events.order_by("-id")[:EVENTS_SHOWN]]


class LineOfSubscriber(APIView):
    """A subscriber's line."""

    permission_classes = [MayReceive]
    needs = {"get": Scope.READ}

    @extend_schema(operation_id="read_line", responses=LineSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return how the line stands."""
        subscriber = get_object_or_404(subscribers_for(key_of(request)), name=name)
        lines = {line.lane: line for line in subscriber.lines.all()}
        standings = line_statuses([line.pk for line in lines.values()])
        main, retry = lines[Lane.MAIN], lines[Lane.RETRY]
        return Response(LineSerializer(LineNow(main, standings[main.pk], standings[retry.pk])).data)


class CancelledSerializer(serializers.Serializer[Any]):
    """What cancelling did."""

    cancelled = serializers.IntegerField(help_text="Ended as CANCELLED.")
    in_flight = serializers.IntegerField(help_text="Under way: end so unless their answer ends them otherwise.")


class CancelDeliveries(Noted):
    """Everything a subscription has unfinished."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.OPERATE}

    @extend_schema(operation_id="cancel_deliveries", request=None, responses=CancelledSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """End it all as CANCELLED, so that the subscription can be deleted."""
        subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
        refuse_body(request)
        cancelled, in_flight = cancel_deliveries_of(subscription.pk, reason="cancelled over the API")
        return Response({"cancelled": cancelled, "in_flight": in_flight})
