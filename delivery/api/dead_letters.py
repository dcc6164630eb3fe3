"""Deliveries that came to nothing, in one place, by how they ended (contract 5.3)."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from django.db.models import QuerySet
from django.urls import path
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from broker_project.core.api.fields import OneOfField, TextField
from broker_project.core.api.pagination import Order, Page, PageQuery, Stretch, page_of
from delivery.api.deliveries import DeliverySerializer
from delivery.api.records import Records, deliveries_for
from delivery.models import OPEN_SHELF, Delivery, MessageOutcome
from delivery.status.dead_letters import REASONS, counts_of, dead_letters
from delivery.status.line_status import MAX_COUNTED
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.models import ApiKey, EventType, Scope, Subscription


class ReasonField(OneOfField):
    """How a delivery ended; who asks for messages to nobody is told where they are."""

    def to_internal_value(self, data: Any) -> str:
        """Return the status."""
        if data == MessageOutcome.DEAD_LETTERED:
            raise serializers.ValidationError("Messages to nobody have no delivery: messages?outcome=DEAD_LETTERED.")
        return str(super().to_internal_value(data))


class DeadLetterQuery(PageQuery):
    """What dead letters can be listed by."""

    reason = ReasonField([(reason, reason) for reason in REASONS], required=False, help_text="How they ended.")
    subscriber = TextField(required=False, help_text="A subscriber's name.")
    event_type = TextField(required=False, help_text="An event type's name: what was published as that.")


class DeadLetters(Records[Delivery]):
    """What nobody took and nobody will, unless somebody sends it again."""

    permission_classes = [MayReceive]
    serializer_class = DeliverySerializer
    query_class = DeadLetterQuery
    order = Order("dead-letters", descending=True)

    def visible_to(self, key: ApiKey) -> QuerySet[Delivery]:
        """Return management all, a subscriber its own."""
        return deliveries_for(key)

    def page(self, query: dict[str, Any]) -> Page[Delivery]:
        """Return the page that the query asks for, found reason by reason."""
        reasons = [query["reason"]] if "reason" in query else REASONS
        rows = self.get_queryset().filter(closed_on__lt=OPEN_SHELF)
        event_type = EventType.objects.filter(name=query.get("event_type", "")).first()
        if "event_type" in query and event_type is None:
            return page_of(rows.none(), self.order, query)
        ids = _subscriptions(key_of(self.request), query.get("subscriber"), event_type)
        wanted = event_type.pk if event_type else None

        def find(rows: QuerySet[Delivery], stretch: Stretch) -> QuerySet[Delivery]:
            return rows.filter(pk__in=dead_letters(reasons, ids, event_type_id=wanted, **asdict(stretch)))

        return page_of(rows, self.order, query, find)


class DeadLetterCounts(APIView):
    """How many came to nothing."""

    permission_classes = [MayReceive]
    needs = {"get": Scope.READ}

    @extend_schema(
        operation_id="count_dead_letters",
        responses=OpenApiResponse(
            {"type": "object", "additionalProperties": {"type": "integer"}},
            f"By how they ended, each counted to {MAX_COUNTED}. DEAD_LETTERED: messages to nobody.",
        ),
    )
    def get(self, request: Request) -> Response:
        """Return how many there are, by how they ended: for management of all, for a subscriber its own."""
        return Response(counts_of(_subscriptions(key_of(request))))


def _subscriptions(
    key: ApiKey, subscriber: str | None = None, event_type: EventType | None = None
) -> Sequence[int] | None:
    """Return the subscriptions whose dead letters are asked for, None where it is all of them."""
    asked: dict[str, Any] = {"subscriber": key.subscriber_id} if key.subscriber_id else {}
    if subscriber is not None:
        asked["subscriber__name"] = subscriber
    if not asked and event_type is None:
        return None
    everything = Subscription.objects.all()
    reached = everything.reached_by(event_type) if event_type else everything
    return [*reached.filter(**asked).values_list("pk", flat=True)]


urlpatterns: Final = [
    path("dead-letters", DeadLetters.as_view({"get": "list"})),
    path("dead-letters/counts", DeadLetterCounts.as_view()),
]
