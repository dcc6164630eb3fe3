"""Deliveries and their attempts, to be read: a subscriber's own, or all."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.serializers import BaseSerializer

from broker_project.core.api.fields import OneOfField, QueryNumberField, TextField
from broker_project.core.api.pagination import Order, Page, PageQuery, page_of
from delivery.api.records import Records, deliveries_for
from delivery.models import OPEN_SHELF, UNTIL_RELEASED, Attempt, Delivery, standing
from delivery.status.dead_letters import deliveries_of, in_group
from delivery.status.in_flight import in_flight
from delivery.statuses import UNFINISHED, DeliveryStatus
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.models import ApiKey, Subscription

LARGEST_ID: Final = 2**63 - 1


SUBSCRIPTIONS: Final = {"subscriber": "subscriber__name", "subscription": "pk"}
"""What of that narrows it to some subscriptions, and where it stands there."""


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """One request and what came back."""

    meaning = serializers.CharField(
        read_only=True,
        allow_null=True,
        help_text="What followed under the subscription's retry policy: hold, aside, apart, suspend or end. Null: under"
        " TeamForge, where the status says it.",
    )
    by_hand = serializers.BooleanField(
        source="is_by_hand", read_only=True, help_text="Whether somebody had it sent: the first after a resubmit."
    )
    answer_headers = serializers.SerializerMethodField()
    answer_excerpt = serializers.SerializerMethodField()

    class Meta:
        model = Attempt
        fields = (
            *("number", "started_at", "duration_ms", "status_code", "error", "meaning", "by_hand"),
            *("answer_headers", "answer_excerpt"),
        )

    def get_answer_headers(self, attempt: Attempt) -> str:
        """Return the status line and headers as text; what is no text is replaced."""
        return bytes(attempt.answer_headers).decode("latin-1")

    def get_answer_excerpt(self, attempt: Attempt) -> str:
        """Return the body's beginning as text; what is no UTF-8 is replaced."""
        return bytes(attempt.answer_excerpt).decode("utf-8", "replace")


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


COLUMNS: Final = {
    "subscriber": "subscription__subscriber__name",
    "subscription": "subscription_id",
    "message": "message_id",
}
"""What a list can be filtered by, and where it stands."""


class DeliveryQuery(PageQuery):
    """What deliveries can be listed by."""

    status = OneOfField(DeliveryStatus.choices, required=False)
    subscriber = TextField(required=False, help_text="A subscriber's name.")
    subscription = QueryNumberField(required=False, min_value=1, max_value=LARGEST_ID)
    message = QueryNumberField(required=False, min_value=1, max_value=LARGEST_ID)
    group = QueryNumberField(
        required=False, min_value=1, max_value=LARGEST_ID, help_text="A QUEUE group's id, without grp_."
    )


class Deliveries(Records[Delivery]):
    """What is on its way, and what became of it."""

    permission_classes = [MayReceive]
    serializer_class = DeliverySerializer
    query_class = DeliveryQuery
    order = Order("deliveries", descending=True)

    def visible_to(self, key: ApiKey) -> QuerySet[Delivery]:
        """Return management all, a subscriber its own."""
        return deliveries_for(key)

    def filtered(self, rows: QuerySet[Delivery], query: Mapping[str, Any]) -> QuerySet[Delivery]:
        """Return those the query asks for."""
        status = query.get("status")
        if status == DeliveryStatus.HELD:
            rows = rows.filter(due_at=UNTIL_RELEASED)
        if status is not None:
            rows = rows.filter(standing(status))
            # Spares looking on the shelves where there are none.
            rows = rows.filter(closed_on=OPEN_SHELF) if status in UNFINISHED else rows.filter(closed_on__lt=OPEN_SHELF)
        rows = rows.filter(**{column: query[name] for name, column in COLUMNS.items() if name in query})
        return in_group(rows, query["group"]) if "group" in query else rows

    def page(self, query: dict[str, Any]) -> Page[Delivery]:
        """Return the page that the query asks for; what somebody gets is found subscription by subscription."""
        rows, status = self.filtered(self.get_queryset(), query), query.get("status")
        if query.keys() & {"message", "group"}:
            return page_of(rows, self.order, query)
        wanted = self._subscriptions(query)
        if wanted is not None:
            find = partial(deliveries_of, [*wanted.values_list("pk", flat=True)], status)
        elif status == DeliveryStatus.IN_FLIGHT:
            find = partial(in_flight, None)
        else:
            return page_of(rows, self.order, query)
        return page_of(rows, self.order, query, lambda rows, stretch: rows.filter(pk__in=find(**asdict(stretch))))

    def _subscriptions(self, query: Mapping[str, Any]) -> QuerySet[Subscription] | None:
        """Return the subscriptions whose deliveries are asked for, None where it is all of them."""
        asked = {SUBSCRIPTIONS[name]: query[name] for name in SUBSCRIPTIONS if name in query}
        if subscriber_id := key_of(self.request).subscriber_id:
            asked["subscriber"] = subscriber_id
        return Subscription.objects.filter(**asked) if asked else None

    def get_serializer_class(self) -> type[BaseSerializer[Delivery]]:
        """Return what a list shows, or a single one."""
        return WholeDeliverySerializer if self.action == "retrieve" else DeliverySerializer
