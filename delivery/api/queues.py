"""How QUEUE work stands, over the API: the senders, and the groups of a message."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.status.line_status import MAX_COUNTED, LineState
from delivery.status.queue_status import GroupState, senders
from subscriptions.api.permissions import MayManage
from subscriptions.models import Scope


class SenderSerializer(serializers.Serializer[Any]):
    """Whether a sender moves: which groups wait in it, how many are under way, and who drives it."""

    sender = serializers.IntegerField()
    queue = serializers.CharField(help_text="Its Celery queue.")
    state = serializers.ChoiceField(LineState.choices, source="standing.state")
    waiting = serializers.IntegerField(
        source="standing.waiting", help_text=f"Groups that nobody has taken, counted to {MAX_COUNTED}."
    )
    deferred = serializers.IntegerField(
        source="standing.deferred", help_text="Those of them that all endpoints were asked for in vain."
    )
    deferred_due_at = serializers.DateTimeField(
        source="standing.deferred_due_at", allow_null=True, help_text="When the next of those is tried again."
    )
    awaiting_release = serializers.IntegerField(
        source="standing.awaiting_release", help_text="Those of them that are HELD until they are released."
    )
    in_flight = serializers.IntegerField(help_text="Requests that are under way.")
    oldest_since = serializers.DateTimeField(
        allow_null=True, help_text="Since when the oldest waits of those that can be sent."
    )
    worker = serializers.CharField()
    lease_until = serializers.DateTimeField(allow_null=True)


class Senders(APIView):
    """The QUEUE senders."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ}

    @extend_schema(operation_id="list_senders", responses=SenderSerializer(many=True))
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """Return how each sender stands that has ever got something, in their order."""
        return Response(SenderSerializer(senders(), many=True).data)


class GroupSerializer(serializers.Serializer[Any]):
    """A group of like subscriptions, of which exactly one takes the message."""

    id = serializers.IntegerField(help_text="Its requests carry it as webhook-id, after grp_.")
    state = serializers.ChoiceField(GroupState.choices)
    delivery_ids = serializers.ListField(child=serializers.IntegerField())
    taken_by = serializers.IntegerField(
        source="taken_by.id", default=None, allow_null=True, help_text="The delivery whose endpoint took it."
    )
    attempts = serializers.IntegerField(help_text="Requests that it has had.")
    cycles = serializers.IntegerField(
        allow_null=True, help_text="How often all its endpoints were tried in vain; null once it has ended."
    )
    next_try_at = serializers.DateTimeField(allow_null=True)
