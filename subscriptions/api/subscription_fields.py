"""What a subscription looks like over the API: read, new and changed (behaviour 1.4)."""

from typing import Any, ClassVar

from django.conf import settings
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied

from broker_project.core.api.fields import NameField, StrictModelSerializer, StrictSerializer, WholeNumberField
from broker_project.core.api.header_fields import HeadersField
from subscriptions.api.own_fields import OwnSubscriberField
from subscriptions.api.permissions import key_of
from subscriptions.api.resources import KEPT_BY_THE_BROKER
from subscriptions.credentials.rotate_secrets import LONGEST_OVERLAP, OVERLAP
from subscriptions.endpoints import check_reach
from subscriptions.models import EventType, KeyKind, PausedBy, RetryPolicy, Subscriber, Subscription
from subscriptions.names import is_own
from subscriptions.scripting.script_check import check_script


class EventTypeField(NameField[EventType]):
    """An event type; who gives a pattern in its place is told where patterns belong."""

    def to_internal_value(self, data: Any) -> EventType:
        """Return the event type of that name."""
        if isinstance(data, str) and "*" in data:
            raise serializers.ValidationError("This is no event type's name; give a pattern as event_pattern.")
        return super().to_internal_value(data)


class SubscriptionSerializer(StrictModelSerializer[Subscription]):
    """A subscription as the API shows it and takes a new one."""

    subscriber: serializers.SlugRelatedField[Subscriber] = OwnSubscriberField(queryset=Subscriber.objects.all())
    event_type: serializers.SlugRelatedField[EventType] = EventTypeField(
        queryset=EventType.objects.all(), required=False, allow_null=True, help_text="Or give `event_pattern`."
    )
    headers = HeadersField(help_text="Override the subscriber's.")
    retry_policy: serializers.SlugRelatedField[RetryPolicy] = NameField(
        queryset=RetryPolicy.objects.all(), required=False, allow_null=True, help_text="null: as TeamForge says."
    )

    paused_by = serializers.ChoiceField(
        PausedBy.choices, allow_blank=True, read_only=True, help_text="Empty: it is not paused."
    )

    class Meta:
        model = Subscription
        paused = ("paused_since", "paused_by", "paused_reason", "half_open", "probe_due_at")
        read_only_fields: ClassVar[tuple[str, ...]] = (
            "id",
            *paused,
            "overlap_ends_at",
            "unreadable",
            *KEPT_BY_THE_BROKER,
        )
        sent = ("delivery_mode", "retry_policy", "rate_limit", "output", "monitor_url")
        settable = ("endpoint", "headers", "header_filter_string", "filter", "script", *sent, "position")
        fixed = ("subscriber", "event_type", "event_pattern")
        fields: ClassVar[tuple[str, ...]] = (*fixed, *settable, "status", *read_only_fields)

    def validate_endpoint(self, endpoint: str) -> str:
        """Refuse an address to which nothing is sent."""
        check_reach(endpoint, settings.REACH)
        return endpoint

    def validate_monitor_url(self, url: str) -> str:
        """Refuse an address to which nothing is sent."""
        check_reach(url, settings.REACH)
        return url

    def validate_script(self, source: str) -> str:
        """Refuse what is no JavaScript."""
        check_script(source)
        return source

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a new one that is for both an event type and a pattern, or for neither, or for what it may not see."""
        if not self.partial and bool(attrs.get("event_type")) == bool(attrs.get("event_pattern")):
            text = "Give either an event_type or an event_pattern: a subscription is for one of them."
            raise serializers.ValidationError({"event_type": [text]}, code="event_type_or_pattern")
        wanted = attrs.get("event_pattern") or str(attrs.get("event_type"))
        if is_own(wanted) and key_of(self.context["request"]).kind != KeyKind.MANAGEMENT:
            raise PermissionDenied(f"{wanted} tells of all subscribers: subscribing to it takes a management key.")
        return attrs


class NewSubscriptionSerializer(SubscriptionSerializer):
    """A subscription with its signing secret, which is shown once."""

    signing_secret = serializers.CharField(read_only=True, help_text="Shown this once; the receiver verifies with it.")

    class Meta(SubscriptionSerializer.Meta):
        fields = (*SubscriptionSerializer.Meta.fields, "signing_secret")


class SubscriptionChange(SubscriptionSerializer):
    """What may change of a subscription here: both its ends are fixed, its status has actions."""

    elsewhere = {"status": ": POST …/activate or …/inactivate"}
    subscriber = serializers.SlugRelatedField(slug_field="name", read_only=True)
    event_type = serializers.SlugRelatedField(slug_field="name", read_only=True)

    class Meta(SubscriptionSerializer.Meta):
        read_only_fields = ("event_pattern", "status", *SubscriptionSerializer.Meta.read_only_fields)


class SecretRotation(StrictSerializer):
    """How a signing secret is rotated."""

    overlap_seconds = WholeNumberField(
        required=False,
        default=int(OVERLAP.total_seconds()),
        min_value=0,
        max_value=int(LONGEST_OVERLAP.total_seconds()),
        help_text="For how long the former secret signs too; 0: from the next request on only the new one does.",
    )
