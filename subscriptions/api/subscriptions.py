"""Subscriptions: a subscriber's key configures its own, management all (behaviour 1.4)."""

import secrets
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from subscriptions import configuring
from subscriptions.api.header_fields import HeadersField
from subscriptions.api.pagination import Order, PageQuery
from subscriptions.api.permissions import key_of
from subscriptions.api.preconditions import expected_versions
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Nothing, Resource
from subscriptions.api.scopes import subscribers_for, subscriptions_for
from subscriptions.api.strictness import NameField, OneOfField, StrictModelSerializer
from subscriptions.models import ApiKey, EventType, KeyKind, RetryPolicy, Status, Subscriber, Subscription
from subscriptions.names import is_own
from subscriptions.scripts.checking import check_script
from subscriptions.signing_secrets import NEW_KEY_BYTES, secret_of


class OwnSubscriberField(NameField[Subscriber]):
    """A subscriber that the key can see; any other does not exist for it."""

    def get_queryset(self) -> QuerySet[Subscriber]:
        """Return those the request's key can see."""
        return subscribers_for(key_of(self.context["request"]))


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
    headers = HeadersField(required=False, help_text="Override the subscriber's; lists show the names only.")
    retry_policy: serializers.SlugRelatedField[RetryPolicy] = NameField(
        queryset=RetryPolicy.objects.all(), required=False, allow_null=True, help_text="null: as TeamForge says."
    )

    class Meta:
        model = Subscription
        paused = ("paused_since", "paused_by", "paused_reason", "on_trial", "probe_due_at")
        read_only_fields: ClassVar[tuple[str, ...]] = ("id", *paused, *KEPT_BY_THE_BROKER)
        sent = ("retry_policy", "rate_limit", "output", "monitor_url")
        settable = ("endpoint", "headers", "header_filter_string", "filter", "script", *sent, "position")
        fixed = ("subscriber", "event_type", "event_pattern")
        fields: ClassVar[tuple[str, ...]] = (*fixed, *settable, "status", *read_only_fields)

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


class SubscriptionQuery(PageQuery):
    """What the list of subscriptions can be narrowed to."""

    subscriber = serializers.CharField(required=False, help_text="A subscriber's name.")
    event_type = serializers.CharField(
        required=False, help_text="An event type's name; with those whose pattern reaches it."
    )
    event_pattern = serializers.CharField(required=False, help_text="Those with exactly this pattern.")
    status = OneOfField(choices=Status.choices, required=False)


class Subscriptions(Resource[Subscription]):
    """Who wants what, and where it goes."""

    serializer_class = SubscriptionSerializer
    lookup_url_kwarg = "id"
    lookup_value_converter = "int"
    order = Order("subscriptions")
    query_class = SubscriptionQuery
    related = ("subscriber", "event_type", "retry_policy")
    writers = frozenset({KeyKind.MANAGEMENT, KeyKind.SUBSCRIBER})

    def scope(self, key: ApiKey) -> QuerySet[Subscription]:
        """Return management all, a subscriber its own."""
        return subscriptions_for(key)

    def get_serializer_class(self) -> type[serializers.BaseSerializer[Subscription]]:
        """Return what this method takes."""
        return SubscriptionChange if self.action == "partial_update" else SubscriptionSerializer

    def filtered(self, rows: QuerySet[Subscription], query: Mapping[str, Any]) -> QuerySet[Subscription]:
        """Keep those of a subscriber, an event type, a status."""
        columns = {"subscriber": "subscriber__name", "event_pattern": "event_pattern", "status": "status"}
        rows = rows.filter(**{column: query[name] for name, column in columns.items() if name in query})
        if "event_type" not in query:
            return rows
        event_type = EventType.objects.filter(name=query["event_type"]).first()
        return rows.filter(pk__in=Subscription.objects.reached_by(event_type)) if event_type else rows.none()

    @extend_schema(responses={201: NewSubscriptionSerializer})
    def create(self, request: Request) -> Response:
        """Create one; the answer shows its signing secret, once."""
        secret = secret_of(secrets.token_bytes(NEW_KEY_BYTES))
        made = configuring.create(Subscription(**self.valid(request), signing_secret=secret))
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

    @extend_schema(request=None, responses=NewSubscriptionSerializer)
    @action(detail=True, methods=["post"], url_path="rotate-secret")
    def rotate_secret(self, request: Request, **_: str) -> Response:
        """Give it a new signing secret; the answer shows it, once."""
        self.valid(request, by=Nothing)
        made = configuring.rotate_secret(
            self.which(), random_bytes=secrets.token_bytes(NEW_KEY_BYTES), expected=expected_versions(request)
        )
        return self.answer(made, signing_secret=made.signing_secret)
