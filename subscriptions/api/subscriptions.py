"""Subscriptions: a subscriber's key configures its own, management all (contract 1.4)."""

import secrets
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
    WholeNumberField,
)
from broker_project.core.api.pagination import Order, PageQuery
from broker_project.core.api.problems import ProblemType, register
from subscriptions import edit
from subscriptions.api.header_fields import HeadersField
from subscriptions.api.permissions import key_of
from subscriptions.api.preconditions import expected_versions
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Resource, refuse_body
from subscriptions.api.visibility import OwnSubscriberField, subscriptions_for
from subscriptions.credentials import rotation
from subscriptions.credentials.rotation import MAX_OVERLAP, OVERLAP
from subscriptions.credentials.tokens import NEW_KEY_BYTES, secret_of
from subscriptions.endpoints import check_reach
from subscriptions.models import (
    ApiKey,
    DeliveryMode,
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
        check_reach(endpoint, settings.EGRESS_POLICY)
        return endpoint

    def validate_monitor_url(self, url: str) -> str:
        """Refuse an address to which nothing is sent."""
        check_reach(url, settings.EGRESS_POLICY)
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
        max_value=int(MAX_OVERLAP.total_seconds()),
        help_text="For how long the former secret signs too; 0: from the next request on only the new one does.",
    )


register({rotation.TooManySecrets: ProblemType(409, "too_many_secrets", "Too many secrets")})


class SubscriptionQuery(PageQuery):
    """What the list of subscriptions can be narrowed to."""

    subscriber = TextField(required=False, help_text="A subscriber's name.")
    event_type = TextField(required=False, help_text="An event type's name; with those whose pattern reaches it.")
    event_pattern = TextField(required=False, help_text="Those with exactly this pattern.")
    status = OneOfField(choices=Status.choices, required=False)
    delivery_mode = OneOfField(choices=DeliveryMode.choices, required=False)


class Subscriptions(Resource[Subscription]):
    """Who wants what, and where it goes."""

    serializer_class = SubscriptionSerializer
    lookup_url_kwarg = "id"
    lookup_value_converter = "int"
    order = Order("subscriptions")
    query_class = SubscriptionQuery
    related = ("subscriber", "event_type", "retry_policy")
    writers = frozenset({KeyKind.MANAGEMENT, KeyKind.SUBSCRIBER})

    def visible_to(self, key: ApiKey) -> QuerySet[Subscription]:
        """Return management all, a subscriber its own."""
        return subscriptions_for(key)

    def get_serializer_class(self) -> type[serializers.BaseSerializer[Subscription]]:
        """Return what this method takes."""
        return SubscriptionChange if self.action == "partial_update" else SubscriptionSerializer

    def filtered(self, rows: QuerySet[Subscription], query: Mapping[str, Any]) -> QuerySet[Subscription]:
        """Keep those of a subscriber, an event type, a status, a mode."""
        same = ("event_pattern", "status", "delivery_mode")
        columns = {"subscriber": "subscriber__name", **dict(zip(same, same, strict=True))}
        rows = rows.filter(**{column: query[name] for name, column in columns.items() if name in query})
        if "event_type" not in query:
            return rows
        event_type = EventType.objects.filter(name=query["event_type"]).first()
        return rows.filter(pk__in=Subscription.objects.reached_by(event_type)) if event_type else rows.none()

    @extend_schema(responses={201: NewSubscriptionSerializer})
    def create(self, request: Request) -> Response:
        """Create one; the answer shows its signing secret, once."""
        secret = secret_of(secrets.token_bytes(NEW_KEY_BYTES))
        made = edit.create(Subscription(**self.valid(request), signing_secret=secret))
        return self.created(made, signing_secret=secret)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def activate(self, request: Request, **_: str) -> Response:
        """Let it qualify for new messages and send what is pending."""
        return self.change_by_action(request, {"status": Status.ACTIVE})

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def inactivate(self, request: Request, **_: str) -> Response:
        """Stop sending; what is pending is kept, what is published meanwhile is not."""
        return self.change_by_action(request, {"status": Status.INACTIVE})

    @extend_schema(request=SecretRotation, responses=NewSubscriptionSerializer)
    @action(detail=True, methods=["post"], url_path="rotate-secret")
    def rotate_secret(self, request: Request, **_: str) -> Response:
        """Give it a new signing secret, beside which the former signs for a while; the answer shows it, once."""
        asked = self.valid(request, by=SecretRotation)
        made = rotation.rotate_secret(
            self.which(),
            random_bytes=secrets.token_bytes(NEW_KEY_BYTES),
            overlap=timedelta(seconds=asked["overlap_seconds"]),
            expected=expected_versions(request),
        )
        return self.answer(made, signing_secret=made.signing_secret)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"], url_path="end-overlap")
    def end_overlap(self, request: Request, **_: str) -> Response:
        """Let former signing secrets not sign any more, though their time is not over."""
        refuse_body(request)
        return self.answer(rotation.end_overlap(self.which(), expected=expected_versions(request)))
