"""Messages, to be read: a publisher's own, or all (contract 2.4, 2.14)."""

import base64
from collections.abc import Mapping
from typing import Any, Final

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.serializers import BaseSerializer

from broker_project.core.api.fields import OneOfField, TextField
from broker_project.core.api.pagination import Order, PageQuery
from delivery.api.callbacks import CallbackSerializer, shown
from delivery.api.deliveries import StatusField
from delivery.api.queues import GroupSerializer
from delivery.api.records import Records
from delivery.models import Callback, Delivery, Message, MessageOutcome
from delivery.reasons import redact_reason
from delivery.status.queue_status import groups_of
from subscriptions.api.permissions import MayPublish, key_of
from subscriptions.models import ApiKey, EventType, KeyKind

CALLBACKS_SHOWN: Final = 100


class MessageQuery(PageQuery):
    """What messages can be listed by."""

    event_type = TextField(required=False, help_text="An event type's name.")
    outcome = OneOfField(MessageOutcome.choices, required=False)


class MessageSerializer(serializers.ModelSerializer[Message]):
    """A message without its body."""

    event_type = serializers.CharField(source="event_type.name", default=None, read_only=True, allow_null=True)
    publisher = serializers.CharField(
        source="publisher.name",
        default=None,
        read_only=True,
        allow_null=True,
        help_text="Null: published with a management key.",
    )
    deliveries = serializers.IntegerField(
        source="deliveries_count",
        read_only=True,
        help_text="TOPIC: how many subscriptions get it. QUEUE: how many may be asked, one of each group takes it.",
    )
    copy_of = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="The message that somebody resubmitted as this one."
    )
    answers = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Of a reply to a callback: the message that it answers."
    )

    class Meta:
        model = Message
        fields = (
            "id",
            "event_type",
            "publisher",
            "published_at",
            "content_type",
            "size",
            "filter_string",
            "destination",
            "expires_at",
            "not_before",
            "outcome",
            "deliveries",
            "copy_of",
            "answers",
        )


class DeliveryOfMessage(serializers.ModelSerializer[Delivery]):
    """Where one of a message's deliveries stands."""

    status = StatusField()
    reason = serializers.SerializerMethodField(
        help_text="A publisher is told the kind of failure; the subscriber's keys and management read its whole text."
    )
    subscriber = serializers.CharField(
        source="subscription.subscriber.name", default=None, read_only=True, allow_null=True
    )

    class Meta:
        model = Delivery
        fields = ("id", "subscription_id", "subscriber", "group_id", "status", "attempts", "reason", "finished_at")

    def get_reason(self, delivery: Delivery) -> str:
        """Return why it has not succeeded, in words that whoever asks may read."""
        return delivery.reason if self.context["reads_reasons"] else redact_reason(delivery.reason)


class WholeMessageSerializer(MessageSerializer):
    """A message with its headers, its body and what became of it."""

    body = serializers.SerializerMethodField(help_text="The body as text; null if it is not UTF-8.")
    body_base64 = serializers.SerializerMethodField()
    deliveries = serializers.SerializerMethodField()  # type: ignore[assignment]
    groups = serializers.SerializerMethodField(help_text="Of a QUEUE message: which endpoint took it, if one did.")
    callbacks = serializers.SerializerMethodField(help_text="Where its result may be posted, and what became of that.")

    class Meta(MessageSerializer.Meta):
        fields = (  # type: ignore[assignment]
            *MessageSerializer.Meta.fields,
            *("headers", "body", "body_base64", "groups", "callbacks"),
        )

    def get_body(self, message: Message) -> str | None:
        """Return the body's text."""
        try:
            return bytes(message.body).decode()
        except UnicodeDecodeError:
            return None

    def get_body_base64(self, message: Message) -> str:
        """Return the body's bytes."""
        return base64.b64encode(message.body).decode()

    @extend_schema_field(DeliveryOfMessage(many=True))
    def get_deliveries(self, message: Message) -> Any:
        """Return where its deliveries stand."""
        # A reply goes to an address of the publisher's own.
        reads = key_of(self.context["request"]).kind == KeyKind.MANAGEMENT or message.answers is not None
        return DeliveryOfMessage(_deliveries_of(message), many=True, context={"reads_reasons": reads}).data

    @extend_schema_field(GroupSerializer(many=True))
    def get_groups(self, message: Message) -> Any:
        """Return how its groups stand."""
        return GroupSerializer(groups_of(_deliveries_of(message)), many=True).data

    @extend_schema_field(CallbackSerializer(many=True))
    def get_callbacks(self, message: Message) -> Any:
        """Return its callbacks, the first ones first."""
        return shown([*Callback.objects.filter(message=message).order_by("id")[:CALLBACKS_SHOWN]])


def _deliveries_of(message: Message) -> "QuerySet[Delivery]":
    return Delivery.objects.filter(message=message).select_related("subscription__subscriber").order_by("id")[:1000]


class Messages(Records[Message]):
    """What was published."""

    permission_classes = [MayPublish]
    serializer_class = MessageSerializer
    query_class = MessageQuery
    order = Order("messages", descending=True)

    def visible_to(self, key: ApiKey) -> QuerySet[Message]:
        """Return management all, a publisher its own."""
        messages = Message.objects.select_related("event_type", "publisher")
        if self.action == "list":
            messages = messages.defer("body", "headers")
        return messages if key.kind == KeyKind.MANAGEMENT else messages.filter(publisher=key.publisher_id)

    def filtered(self, rows: QuerySet[Message], query: Mapping[str, Any]) -> QuerySet[Message]:
        """Return those of an event type, or with an outcome; replies are found by their callbacks."""
        rows = rows.filter(answers=None)
        if "event_type" in query:
            # Looked up first: only then is it known to the planner which part of the index it takes.
            event_type = EventType.objects.filter(name=query["event_type"]).values_list("pk", flat=True)
            rows = rows.filter(event_type__in=[*event_type])
        return rows.filter(outcome=query["outcome"]) if "outcome" in query else rows

    def get_serializer_class(self) -> type[BaseSerializer[Message]]:
        """Return what a list shows, or a single one."""
        return WholeMessageSerializer if self.action == "retrieve" else MessageSerializer
