"""Publishers, subscribers and retry policies over the API."""

from typing import Any

from broker_project.core.api.fields import NameField, NamesField, StrictModelSerializer
from broker_project.core.api.pagination import Order
from subscriptions.api.permissions import publishers_for, subscribers_for
from subscriptions.api.resources import BROKER_FIELDS, ActivatedResource, HeadersField, Resource
from subscriptions.models import EventType, Processing, Publisher, RetryPolicy, Subscriber
from subscriptions.retry_policies import TERMS


class PublisherSerializer(StrictModelSerializer[Publisher]):
    """A publisher."""

    event_types = NamesField(
        child_relation=NameField[EventType](queryset=EventType.objects.all()),
        required=False,
        help_text="The event types that it may publish; empty: all.",
    )

    class Meta:
        model = Publisher
        fields = ("name", "description", "event_types", "max_open_messages", *BROKER_FIELDS)
        read_only_fields = BROKER_FIELDS


class Publishers(Resource[Publisher]):
    """Publishers: management sees all, a publisher itself."""

    serializer_class = PublisherSerializer
    lookup_field = "name"
    lookup_value_converter = "name"
    order = Order("publishers", "name")
    visible_to = staticmethod(publishers_for)
    links = related = ("event_types",)


class SubscriberSerializer(StrictModelSerializer[Subscriber]):
    """A subscriber."""

    fixed = ("status",)
    elsewhere = {"status": ": POST …/activate or …/inactivate"}
    headers = HeadersField(help_text="Sent with every delivery.")

    class Meta:
        model = Subscriber
        read_only_fields = ("unreadable", *BROKER_FIELDS)
        fields = (
            *("name", "description", "status", "headers", "max_queued_to_send", "processing", "concurrency"),
            *("mailbox_ordered", "ack_seconds", "max_redeliveries", *read_only_fields),
        )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the values; SERIAL implies a concurrency of 1."""
        return {"concurrency": 1, **attrs} if attrs.get("processing") == Processing.SERIAL else attrs


class Subscribers(ActivatedResource[Subscriber]):
    """Subscribers: management sees all, a subscriber itself."""

    serializer_class = SubscriberSerializer
    lookup_field = "name"
    lookup_value_converter = "name"
    order = Order("subscribers", "name")
    visible_to = staticmethod(subscribers_for)


class RetryPolicySerializer(StrictModelSerializer[RetryPolicy]):
    """A retry policy; fields that are left out are as in TeamForge."""

    class Meta:
        model = RetryPolicy
        read_only_fields = ("is_preset", *BROKER_FIELDS)
        fields = ("name", "description", *TERMS, *read_only_fields)


class RetryPolicies(Resource[RetryPolicy]):
    """Retry policies, which every key sees."""

    queryset = RetryPolicy.objects.all()
    serializer_class = RetryPolicySerializer
    lookup_field = "name"
    lookup_value_converter = "name"
    order = Order("retry policies", "name")
