"""A delivery as the API shows it, with its attempts or without."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from delivery.api.attempts import AttemptSerializer
from delivery.models import Delivery
from delivery.statuses import DeliveryStatus


class StatusField(serializers.ChoiceField):
    """How a delivery stands now."""

    def __init__(self) -> None:
        super().__init__(choices=DeliveryStatus.choices, read_only=True)

    def get_attribute(self, instance: Delivery) -> str:
        """Return its status; PENDING where its hand-out has timed out."""
        return instance.status_at(timezone.now())


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """Where a delivery stands."""

    status = StatusField()
    subscriber = serializers.CharField(
        source="subscription.subscriber.name",
        default=None,
        read_only=True,
        allow_null=True,
        help_text="Null: its subscription has been deleted, or it is the reply to a callback.",
    )
    due_at = serializers.DateTimeField(
        source="next_try_at",
        read_only=True,
        allow_null=True,
        help_text="When it is tried again, or first tried where it is delayed. Null: at its turn, or finished.",
    )
    fetches = serializers.IntegerField(read_only=True, help_text="How often a mailbox has handed it out.")
    fetched_until = serializers.DateTimeField(
        read_only=True,
        allow_null=True,
        help_text="When its hand-out by a mailbox times out, and it is available again. Null: it is not handed out.",
    )
    lane = serializers.CharField(
        source="line.lane",
        default=None,
        read_only=True,
        allow_null=True,
        help_text="Which line of its owner it is in: main, or retry where it is tried again apart; queue, callback.",
    )

    class Meta:
        model = Delivery
        fields: tuple[str, ...] = (
            "id",
            "message_id",
            "subscription_id",
            "subscriber",
            "group_id",
            "status",
            "reason",
            "attempts",
            "fetches",
            "fetched_until",
            "sequence",
            "lane",
            "due_at",
            "not_before",
            "expires_at",
            "resubmit_of",
            "replay_id",
            "created_at",
            "finished_at",
        )


class WholeDeliverySerializer(DeliverySerializer):
    """A delivery with its attempts."""

    history = serializers.SerializerMethodField()

    class Meta(DeliverySerializer.Meta):
        fields = (*DeliverySerializer.Meta.fields, "history")

    @extend_schema_field(AttemptSerializer(many=True))
    def get_history(self, delivery: Delivery) -> Any:
        """Return its attempts, the newest 200 in their order."""
        newest = delivery.attempt_set.order_by("-id")[:200]  # and each knows its delivery
        return AttemptSerializer(list(newest)[::-1], many=True).data
