"""Subscriptions: a subscriber's key configures its own, management all (contract 1.4)."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import (
    NameField,
    OneOfField,
    StrictModelSerializer,
    StrictSerializer,
    TextField,
)
from broker_project.core.api.pagination import Order, PageQuery
from broker_project.core.api.problems import ProblemType, register
from broker_project.core.api.records import expected_versions, valid
from subscriptions import edit
from subscriptions.api.permissions import OwnSubscriberField, key_of, subscriptions_for
from subscriptions.api.resources import BROKER_FIELDS, ActivatedResource, HeadersField, overlap_field
from subscriptions.credentials import signing_secrets
from subscriptions.credentials.signing_secrets import MAX_OVERLAP, OVERLAP
from subscriptions.endpoints import check_reach
from subscriptions.models import (
    DeliveryMode,
    EventKind,
    EventType,
    KeyKind,
    PausedBy,
    RetryPolicy,
    Status,
    Subscriber,
    Subscription,
)
from subscriptions.names import is_own
from subscriptions.scripting.runner import check_script

register({signing_secrets.TooManySecrets: ProblemType(409, "too_many_secrets")})


class EventTypeField(NameField[EventType]):
    """An event type; the error for a pattern says where patterns belong."""

    def to_internal_value(self, data: Any) -> EventType:
        """Return the event type with this name."""
        if isinstance(data, str) and "*" in data:
            raise serializers.ValidationError("This is not the name of an event type; give patterns as event_pattern.")
        return super().to_internal_value(data)


class SubscriptionSerializer(StrictModelSerializer[Subscription]):
    """A subscription without its signing secret."""

    example = {
        "subscriber": "warehouse",
        "event_type": "Shop.Order.Placed",
        "endpoint": "https://warehouse.example/hooks/orders",
        "filter": "$$->'Body'->'order' > '1000'",
    }
    fixed = ("subscriber", "event_type", "event_pattern", "status")
    elsewhere = {"status": ": POST …/activate or …/inactivate"}
    subscriber = OwnSubscriberField(queryset=Subscriber.objects.all())
    event_type = EventTypeField(
        queryset=EventType.objects.all(), required=False, allow_null=True, help_text="Or give `event_pattern`."
    )
    headers = HeadersField(help_text="Override the subscriber's.")
    retry_policy = NameField[RetryPolicy](
        queryset=RetryPolicy.objects.all(), required=False, allow_null=True, help_text="Null: TeamForge."
    )
    paused_by = serializers.ChoiceField(
        PausedBy.choices, allow_blank=True, read_only=True, help_text="Empty: it is not paused."
    )

    class Meta:
        model = Subscription
        read_only_fields: ClassVar[tuple[str, ...]] = (
            *("id", "paused_since", "paused_by", "paused_reason", "half_open", "probe_due_at", "overlap_ends_at"),
            *("diverted_since", "unreadable", *BROKER_FIELDS),
        )
        fields: ClassVar[tuple[str, ...]] = (
            *("subscriber", "event_type", "event_pattern", "endpoint", "headers", "header_filter_string", "filter"),
            *("script", "delivery_mode", "retry_policy", "rate_limit", "timeout_seconds", "output", "monitor_url"),
            *("position", "status"),
            *read_only_fields,
        )

    def validate_endpoint(self, endpoint: str) -> str:
        """Refuse an address that the broker may not connect to."""
        check_reach(endpoint, settings.EGRESS_POLICY, is_operator=self._is_managed())
        return endpoint

    validate_monitor_url = validate_endpoint

    def validate_script(self, source: str) -> str:
        """Refuse a script that is not JavaScript."""
        check_script(source)
        return source

    def _is_managed(self) -> bool:
        return key_of(self.context["request"]).kind == KeyKind.MANAGEMENT

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a new one without exactly one of event type and pattern, or for events that its key may not see."""
        if not self.partial and bool(attrs.get("event_type")) == bool(attrs.get("event_pattern")):
            text = "Give either an event_type or an event_pattern."
            raise serializers.ValidationError({"event_type": [text]}, code="event_type_or_pattern")
        event_type = attrs.get("event_type")
        wanted = attrs.get("event_pattern") or str(event_type)
        kind = event_type.kind if event_type else EventKind.TOPIC
        is_shared = kind != EventKind.TOPIC
        if (is_own(wanted) or is_shared) and not self._is_managed():
            why = f"of kind {kind}, so its events go to one subscription" if is_shared else "about all subscribers"
            raise PermissionDenied(f"{wanted} is {why}: subscribing to it takes a management key.")
        return attrs


class NewSubscriptionSerializer(SubscriptionSerializer):
    """A subscription with its new signing secret."""

    signing_secret = serializers.CharField(read_only=True, help_text="Shown only once; the receiver verifies with it.")

    class Meta(SubscriptionSerializer.Meta):
        fields = (*SubscriptionSerializer.Meta.fields, "signing_secret")


class SecretRotation(StrictSerializer):
    """How a signing secret is rotated."""

    example = {"overlap_seconds": 86_400}
    overlap_seconds = overlap_field(
        OVERLAP,
        MAX_OVERLAP,
        "For how long the former secret signs too; 0: from the next request on only the new one does.",
    )


class SubscriptionQuery(PageQuery):
    """The filters of the list of subscriptions."""

    subscriber = TextField(source="subscriber__name", help_text="A subscriber's name.")
    event_type = TextField(help_text="An event type's name; also finds patterns that match it.")
    event_pattern = TextField(help_text="Exactly this pattern.")
    status = OneOfField(choices=Status.choices)
    delivery_mode = OneOfField(choices=DeliveryMode.choices)


class Subscriptions(ActivatedResource[Subscription]):
    """Subscriptions: management sees all, a subscriber its own."""

    serializer_class = SubscriptionSerializer
    order = Order("subscriptions")
    filters = SubscriptionQuery
    visible_to = staticmethod(subscriptions_for)
    related = ("subscriber", "event_type", "retry_policy")
    writers = frozenset({KeyKind.MANAGEMENT, KeyKind.SUBSCRIBER})
    problems = {**ActivatedResource.problems, "rotate_secret": ("too_many_secrets",)}

    def filtered(self, rows: QuerySet[Subscription], query: Mapping[str, Any]) -> QuerySet[Subscription]:
        """Return the rows with the filters' values; those of an event type include patterns that match it."""
        columns = {**query}
        if "event_type" in columns:
            event_type = EventType.objects.filter(name=columns.pop("event_type")).first()
            reached = Subscription.objects.reached_by(event_type) if event_type else Subscription.objects.none()
            rows = rows.filter(pk__in=reached)
        return super().filtered(rows, columns)

    @extend_schema(responses={201: NewSubscriptionSerializer})
    def create(self, request: Request) -> Response:
        """Create a subscription; only this answer has its signing secret."""
        created = edit.create(Subscription(**self.valid(request)))
        return self.created(created, signing_secret=created.signing_secret)

    @extend_schema(request=SecretRotation, responses=NewSubscriptionSerializer)
    @action(detail=True, methods=["post"], url_path="rotate-secret")
    def rotate_secret(self, request: Request, **_: str) -> Response:
        """Rotate the signing secret of a subscription; the old one also signs for a while.

        Only this answer has the new secret.
        """
        asked = valid(SecretRotation, request)
        rotated = signing_secrets.rotate_secret(
            self.selected(),
            overlap=timedelta(seconds=asked["overlap_seconds"]),
            expected=expected_versions(request),
        )
        return self.answer(rotated, signing_secret=rotated.signing_secret)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"], url_path="end-overlap")
    def end_overlap(self, request: Request, **_: str) -> Response:
        """End the overlap of signing secrets: old ones do not sign from now on."""
        return self.change_by_action(request, signing_secrets.end_overlap)
