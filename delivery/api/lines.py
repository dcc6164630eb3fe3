"""The state of lines: a subscriber's own, and those of the QUEUE senders."""

from typing import Any, Final

from django.http import Http404
from django.shortcuts import get_object_or_404
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import NullableTime
from broker_project.core.api.records import operation
from delivery.models import Lane, LineEvent
from delivery.status.line_status import (
    MAX_COUNTED,
    MAX_HOLDS,
    Diversion,
    LineHold,
    LineState,
    LineStatus,
    diversions_of,
    line_statuses,
)
from delivery.status.queue_status import GroupState, senders
from subscriptions.api.permissions import MayManage, MayReceive, key_of, subscribers_for
from subscriptions.models import EventKind, Scope, Subscription

EVENTS_SHOWN: Final = 50
PAUSES_SHOWN: Final = 100


class LineEventSerializer(serializers.ModelSerializer[LineEvent]):
    """One entry in a line's history."""

    class Meta:
        model = LineEvent
        fields = ("at", "kind", "sequence", "delivery_id", "reason")


class RetryLineSerializer(serializers.Serializer[LineStatus]):
    """The retry line, in which failed deliveries do not hold up others."""

    state = serializers.ChoiceField(LineState.choices)
    waiting = serializers.IntegerField(help_text=f"Deliveries, counted to {MAX_COUNTED}.")
    next_due_at = NullableTime(source="deferred_due_at", help_text="When the next of them is due.")


class HoldSerializer(serializers.Serializer[LineHold]):
    """A delivery that could not be sent, and that nothing may overtake; of a CONCURRENT subscriber it uses a place."""

    delivery_id = serializers.IntegerField()
    since = serializers.DateTimeField()
    reason = serializers.CharField()
    next_try_at = serializers.DateTimeField()
    failures = serializers.IntegerField(help_text="Unsuccessful tries in a row.")


class LinePauseSerializer(serializers.ModelSerializer[Subscription]):
    """A paused subscription."""

    subscription_id = serializers.IntegerField(source="id")

    class Meta:
        model = Subscription
        fields = ("subscription_id", "paused_since", "paused_by", "paused_reason", "half_open", "probe_due_at")
        read_only_fields = fields


class DiversionSerializer(serializers.Serializer[Diversion]):
    """A subscription whose endpoint hangs: the retry line tries it, and what is new waits behind that."""

    subscription_id = serializers.IntegerField()
    diverted_since = serializers.DateTimeField()
    next_probe_at = serializers.DateTimeField(allow_null=True, help_text="Null: in a moment.")


class LineSerializer(serializers.Serializer[Any]):
    """The state of a line: what waits in it, since when and why it is held, and when it is tried next."""

    subscriber = serializers.CharField(source="line.subscriber.name")
    state = serializers.ChoiceField(LineState.choices, source="status.state")
    waiting = serializers.IntegerField(
        source="status.waiting", help_text=f"Unfinished deliveries, counted to {MAX_COUNTED}."
    )
    deferred = serializers.IntegerField(
        source="status.deferred", help_text="Those of them that failed and are retried later."
    )
    awaiting_release = serializers.IntegerField(
        source="status.awaiting_release", help_text="Those of them that are HELD until released."
    )
    delayed = serializers.IntegerField(source="status.delayed", help_text="Those of them that are not to be sent yet.")
    deferred_due_at = NullableTime(source="status.deferred_due_at", help_text="When the next deferred delivery is due.")
    held_since = NullableTime(source="status.hold.since", help_text="Of the oldest hold, as the next two.")
    held_reason = serializers.CharField(source="status.hold.reason", read_only=True, default="")
    next_try_at = NullableTime(source="status.hold.next_try_at")
    holds = HoldSerializer(source="status.holds", many=True, help_text=f"The {MAX_HOLDS} oldest.")
    last_sequence = serializers.IntegerField(source="line.last_sequence")
    worker = serializers.CharField(source="line.run_by")
    lease_until = NullableTime(source="line.lease_until")
    retry = RetryLineSerializer()
    paused = LinePauseSerializer(many=True, help_text=f"The first {PAUSES_SHOWN} that were paused.")
    diverted = DiversionSerializer(many=True, help_text=f"The first {MAX_HOLDS} that were diverted.")
    history = LineEventSerializer(many=True, help_text=f"The newest {EVENTS_SHOWN} events.")


@operation("get", Scope.READ, MayReceive, responses=LineSerializer)
def read_line(request: Request, name: str) -> Response:
    """Read the state of a subscriber's line."""
    subscriber = get_object_or_404(subscribers_for(key_of(request)), name=name)
    lines = {line.lane: line for line in subscriber.lines.all()}
    found = line_statuses([line.pk for line in lines.values()])
    if not found:  # the subscriber has been deleted since
        raise Http404
    main, retry = lines[Lane.MAIN], lines[Lane.RETRY]
    paused = subscriber.subscriptions.filter(kind=EventKind.TOPIC, paused_since__isnull=False)
    now = {
        "line": main,
        "status": found[main.pk],
        "retry": found[retry.pk],
        "paused": paused.order_by("paused_since", "pk")[:PAUSES_SHOWN],
        "diverted": diversions_of(subscriber.pk),
        "history": main.events.order_by("-id")[:EVENTS_SHOWN],
    }
    return Response(LineSerializer(now).data)


class SenderSerializer(serializers.Serializer[Any]):
    """The state of a QUEUE sender: waiting groups, requests in flight, and its worker."""

    sender = serializers.IntegerField()
    queue = serializers.CharField(help_text="Its Celery queue.")
    state = serializers.ChoiceField(LineState.choices, source="line.state")
    waiting = serializers.IntegerField(
        source="line.waiting", help_text=f"Groups without a winner, counted to {MAX_COUNTED}."
    )
    deferred = serializers.IntegerField(
        source="line.deferred", help_text="Those of them for which all endpoints failed."
    )
    deferred_due_at = NullableTime(source="line.deferred_due_at", help_text="When the next deferred group is due.")
    delayed = serializers.IntegerField(source="line.delayed", help_text="Those of them that are not to be sent yet.")
    awaiting_release = serializers.IntegerField(
        source="line.awaiting_release", help_text="Those of them that are HELD until released."
    )
    in_flight = serializers.IntegerField(help_text="Requests in flight.")
    oldest_since = NullableTime(help_text="Since when the oldest group waits that can be sent.")
    worker = serializers.CharField()
    lease_until = NullableTime()


@operation("get", Scope.READ, MayManage, responses=SenderSerializer(many=True))
def list_senders(request: Request) -> Response:  # noqa: ARG001 - every operation gets it
    """List QUEUE senders: the state of each that ever had work, in their order."""
    return Response(SenderSerializer(senders(), many=True).data)


class GroupSerializer(serializers.Serializer[Any]):
    """A group of subscriptions with the same filter, of which exactly one gets the message."""

    id = serializers.IntegerField(help_text="Its requests have it as webhook-id, after grp_.")
    state = serializers.ChoiceField(GroupState.choices)
    delivery_ids = serializers.ListField(child=serializers.IntegerField())
    taken_by = serializers.IntegerField(
        source="taken_by.id", default=None, allow_null=True, help_text="The delivery whose endpoint accepted it."
    )
    attempts = serializers.IntegerField(help_text="How many requests were sent for it.")
    cycles = serializers.IntegerField(
        allow_null=True, help_text="How often all its endpoints have failed; null once it has ended."
    )
    next_try_at = serializers.DateTimeField(allow_null=True)
