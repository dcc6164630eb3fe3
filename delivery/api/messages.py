"""Messages, and who gets them: a publisher's own, or all (contract 2.4, 2.14)."""

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from broker_project.core.api.fields import Base64Field, DecodedField, MultipleValuesField, NullableText, TextField
from broker_project.core.api.pagination import Order, Page
from broker_project.core.api.records import Records
from delivery.api.callbacks import CallbackSerializer
from delivery.api.deliveries import StatusField
from delivery.api.lines import GroupSerializer
from delivery.api.searches import SearchQuery, along_one_index, searched_messages
from delivery.models import Callback, Delivery, Message, MessageOutcome
from delivery.outcomes import redact_reason
from delivery.status.callback_status import callbacks_now
from delivery.status.queue_status import first_of, groups_of
from delivery.statuses import DeliveryStatus
from subscriptions.api.permissions import MayPublish, key_of, records_of
from subscriptions.models import KeyKind, Scope

CALLBACKS_SHOWN: Final = 100
DELIVERIES_SHOWN: Final = 1_000


class MessageQuery(SearchQuery):
    """The filters of the list of messages."""

    outcome = MultipleValuesField(MessageOutcome.choices, source="outcome__in")
    subscriber = TextField(help_text="Only those with a delivery to this subscriber.")
    status = MultipleValuesField(
        DeliveryStatus.choices,
        help_text="Only those with a delivery, to the subscriber if one is given, in this status.",
    )


class MessageSerializer(serializers.ModelSerializer[Message]):
    """A message without its body."""

    event_type = NullableText(source="event_type.name")
    publisher = NullableText(
        source="publisher.name", help_text="Null: published with a management key, or by a publisher that was deleted."
    )
    deliveries = serializers.IntegerField(
        source="deliveries_count",
        help_text="TOPIC: how many subscriptions get it. QUEUE: how many qualify; one of each group gets it.",
    )
    copy_of = serializers.IntegerField(allow_null=True, help_text="The message that was resubmitted as this one.")
    reply_to = serializers.IntegerField(
        source="answers", allow_null=True, help_text="If it is a callback's reply: the message."
    )

    class Meta:
        model = Message
        fields = (
            *("id", "event_type", "publisher", "published_at", "content_type", "size", "filter_string"),
            *("destination", "expires_at", "not_before", "outcome", "deliveries", "copy_of", "reply_to"),
        )


class DeliveryOfMessage(serializers.ModelSerializer[Delivery]):
    """The status of one of a message's deliveries."""

    status = StatusField()
    reason = serializers.SerializerMethodField(
        help_text="Publishers see the kind of failure; the subscriber's keys and management see the whole text."
    )
    subscriber = NullableText(source="subscription.subscriber.name")

    class Meta:
        model = Delivery
        fields = ("id", "subscription_id", "subscriber", "group_id", "status", "attempts", "reason", "finished_at")

    def get_reason(self, delivery: Delivery) -> str:
        """Return why it has not succeeded, in the words that the caller may see."""
        return delivery.reason if self.context["may_read_reasons"] else redact_reason(delivery.reason)


class WholeMessageSerializer(MessageSerializer):
    """A message with its headers, its body, its deliveries and callbacks."""

    body = DecodedField(allow_null=True, help_text="The body as text; null if it is not UTF-8.")
    body_base64 = Base64Field(source="body", read_only=True)
    deliveries = serializers.SerializerMethodField()  # type: ignore[assignment]
    groups = serializers.SerializerMethodField(help_text="Of a QUEUE message: which endpoint accepted it, if any.")
    callbacks = serializers.SerializerMethodField(help_text="Where its result may be posted, and their state.")

    class Meta(MessageSerializer.Meta):
        fields = (  # type: ignore[assignment]
            *MessageSerializer.Meta.fields,
            *("headers", "body", "body_base64", "groups", "callbacks"),
        )

    @extend_schema_field(DeliveryOfMessage(many=True))
    def get_deliveries(self, message: Message) -> Any:
        """Return the status of its deliveries."""
        # A reply goes to an address of the publisher's own.
        is_allowed = key_of(self.context["request"]).kind == KeyKind.MANAGEMENT or message.answers is not None
        return DeliveryOfMessage(_deliveries_of(message), many=True, context={"may_read_reasons": is_allowed}).data

    @extend_schema_field(GroupSerializer(many=True))
    def get_groups(self, message: Message) -> Any:
        """Return the state of its groups."""
        return GroupSerializer(groups_of(_deliveries_of(message)), many=True).data

    @extend_schema_field(CallbackSerializer(many=True))
    def get_callbacks(self, message: Message) -> Any:
        """Return its callbacks, the oldest first."""
        callbacks = Callback.objects.filter(message=message).order_by("id")[:CALLBACKS_SHOWN]
        return CallbackSerializer(callbacks_now([*callbacks], now=timezone.now()), many=True).data


def _deliveries_of(message: Message) -> list[Delivery]:
    return first_of(message.delivery_set.select_related("subscription__subscriber"), DELIVERIES_SHOWN)


messages_for = records_of(Message.objects.select_related("event_type", "publisher"), "publisher", "publisher_id")


class Messages(Records[Message]):
    """Messages: management sees all, a publisher its own."""

    permission_classes = [MayPublish]
    needs = {"get": Scope.READ}
    serializer_class = MessageSerializer
    serializer_classes = {"retrieve": WholeMessageSerializer}
    filters = MessageQuery
    order = Order("messages", descending=True)
    visible_to = staticmethod(messages_for)

    def page(self, query: dict[str, Any]) -> Page[Message]:
        """Return the page that the query asks for; what no index finds alone is searched for."""
        is_of_publisher = key_of(self.request).publisher_id is not None
        if query.keys() <= {"cursor", "limit", *(() if is_of_publisher else ("event_type",))}:
            return super().page(query)
        rows = self.get_queryset().filter(answers=None).defer("body", "headers")
        along = rows if is_of_publisher else along_one_index(rows, query)
        return searched_messages(along, rows, self.order, query)

    def filtered(self, rows: QuerySet[Message], query: Mapping[str, Any]) -> QuerySet[Message]:
        """Return the rows with the filters' values, without bodies; replies are found by their callbacks."""
        rows = along_one_index(rows.filter(answers=None).defer("body", "headers"), query)
        return super().filtered(rows, {name: value for name, value in query.items() if name != "event_type"})
