"""Deliveries and their attempts, to be read: a subscriber's own, or all."""

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.serializers import BaseSerializer

from delivery.api.records import Records
from delivery.models import Attempt, Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.api.pagination import Order, PageQuery
from subscriptions.api.permissions import MayReceive
from subscriptions.models import ApiKey, KeyKind

LARGEST_ID: Final = 2**63 - 1
COLUMNS: Final = {
    "status": "status",
    "subscriber": "subscription__subscriber__name",
    "subscription": "subscription_id",
    "message": "message_id",
}
"""What a list can be filtered by, and where it stands."""


class DeliveryQuery(PageQuery):
    """What deliveries can be listed by."""

    status = serializers.ChoiceField(DeliveryStatus.choices, required=False)
    subscriber = serializers.CharField(required=False, help_text="A subscriber's name.")
    subscription = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_ID)
    message = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_ID)


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """Where a delivery stands."""

    subscriber = serializers.CharField(
        source="subscription.subscriber.name",
        default=None,
        read_only=True,
        allow_null=True,
        help_text="Null: its subscription has been deleted.",
    )
    due_at = serializers.DateTimeField(
        source="next_try_at", read_only=True, allow_null=True, help_text="Null: never set aside, or finished."
    )

    class Meta:
        model = Delivery
        fields: tuple[str, ...] = (
            "id",
            "message_id",
            "subscription_id",
            "subscriber",
            "status",
            "reason",
            "attempts",
            "sequence",
            "due_at",
            "created_at",
            "finished_at",
        )


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """One request and what came back."""

    answer_headers = serializers.SerializerMethodField()
    answer_excerpt = serializers.SerializerMethodField()

    class Meta:
        model = Attempt
        fields = ("number", "started_at", "duration_ms", "status_code", "error", "answer_headers", "answer_excerpt")

    def get_answer_headers(self, attempt: Attempt) -> str:
        """Return the status line and headers as text; what is no text is replaced."""
        return bytes(attempt.answer_headers).decode("latin-1")

    def get_answer_excerpt(self, attempt: Attempt) -> str:
        """Return the body's beginning as text; what is no UTF-8 is replaced."""
        return bytes(attempt.answer_excerpt).decode("utf-8", "replace")


class WholeDeliverySerializer(DeliverySerializer):
    """A delivery with its attempts."""

    history = serializers.SerializerMethodField()

    class Meta(DeliverySerializer.Meta):
        fields = (*DeliverySerializer.Meta.fields, "history")

    @extend_schema_field(AttemptSerializer(many=True))
    def get_history(self, delivery: Delivery) -> Any:
        """Return its attempts, the newest 200 in their order."""
        newest = Attempt.objects.filter(delivery=delivery).order_by("-id")[:200]
        return AttemptSerializer(list(newest)[::-1], many=True).data


class Deliveries(Records[Delivery]):
    """What is on its way, and what became of it."""

    permission_classes = [MayReceive]
    serializer_class = DeliverySerializer
    query_class = DeliveryQuery
    order = Order("deliveries", descending=True)

    def scope(self, key: ApiKey) -> QuerySet[Delivery]:
        """Return management all, a subscriber its own."""
        deliveries = Delivery.objects.select_related("subscription__subscriber")
        if key.kind == KeyKind.MANAGEMENT:
            return deliveries
        return deliveries.filter(subscription__subscriber=key.subscriber_id)

    def filtered(self, rows: QuerySet[Delivery], query: Mapping[str, Any]) -> QuerySet[Delivery]:
        """Return those the query asks for."""
        return rows.filter(**{column: query[name] for name, column in COLUMNS.items() if name in query})

    def get_serializer_class(self) -> type[BaseSerializer[Delivery]]:
        """Return what a list shows, or a single one."""
        return WholeDeliverySerializer if self.action == "retrieve" else DeliverySerializer
