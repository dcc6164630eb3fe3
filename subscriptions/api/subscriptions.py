"""Subscriptions: a subscriber's key configures its own, management all (behaviour 1.4)."""

import secrets
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from subscriptions import configuring
from subscriptions.api.header_fields import HeadersField
from subscriptions.api.pagination import Order, PageQuery
from subscriptions.api.permissions import key_of
from subscriptions.api.preconditions import expected_versions
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Nothing, Resource
from subscriptions.api.scopes import subscribers_for, subscriptions_for
from subscriptions.api.strictness import NameField, StrictModelSerializer
from subscriptions.models import ApiKey, EventType, KeyKind, Status, Subscriber, Subscription
from subscriptions.signing_secrets import NEW_KEY_BYTES, secret_of


class OwnSubscriberField(NameField[Subscriber]):
    """A subscriber that the key can see; any other does not exist for it."""

    def get_queryset(self) -> QuerySet[Subscriber]:
        """Return those the request's key can see."""
        return subscribers_for(key_of(self.context["request"]))


class SubscriptionSerializer(StrictModelSerializer[Subscription]):
    """A subscription as the API shows it and takes a new one."""

    subscriber: serializers.SlugRelatedField[Subscriber] = OwnSubscriberField(queryset=Subscriber.objects.all())
    event_type: serializers.SlugRelatedField[EventType] = NameField[EventType](queryset=EventType.objects.all())
    headers = HeadersField(required=False, help_text="Override the subscriber's; lists show the names only.")

    class Meta:
        model = Subscription
        read_only_fields: ClassVar[tuple[str, ...]] = ("id", *KEPT_BY_THE_BROKER)
        settable = ("endpoint", "headers", "header_filter_string", "position")
        fields: ClassVar[tuple[str, ...]] = ("subscriber", "event_type", *settable, "status", *read_only_fields)


class NewSubscriptionSerializer(SubscriptionSerializer):
    """A subscription with its signing secret, which is shown once."""

    signing_secret = serializers.CharField(read_only=True, help_text="Shown this once; the receiver verifies with it.")

    class Meta(SubscriptionSerializer.Meta):
        fields = (*SubscriptionSerializer.Meta.fields, "signing_secret")


class SubscriptionChange(SubscriptionSerializer):
    """What may change of a subscription here: both its ends are fixed, its status has actions (behaviour 1.4)."""

    subscriber = serializers.SlugRelatedField(slug_field="name", read_only=True)
    event_type = serializers.SlugRelatedField(slug_field="name", read_only=True)

    class Meta(SubscriptionSerializer.Meta):
        read_only_fields = ("status", *SubscriptionSerializer.Meta.read_only_fields)


class SubscriptionQuery(PageQuery):
    """What the list of subscriptions can be narrowed to."""

    subscriber = serializers.CharField(required=False, help_text="A subscriber's name.")
    event_type = serializers.CharField(required=False, help_text="An event type's name.")
    status = serializers.ChoiceField(choices=Status.choices, required=False)


class Subscriptions(Resource[Subscription]):
    """Who wants what, and where it goes."""

    serializer_class = SubscriptionSerializer
    lookup_url_kwarg = "id"
    lookup_value_converter = "int"
    order = Order("subscriptions")
    query_class = SubscriptionQuery
    related = ("subscriber", "event_type")
    writers = frozenset({KeyKind.MANAGEMENT, KeyKind.SUBSCRIBER})

    def scope(self, key: ApiKey) -> QuerySet[Subscription]:
        """Return management all, a subscriber its own."""
        return subscriptions_for(key)

    def get_serializer_class(self) -> type[serializers.BaseSerializer[Subscription]]:
        """Return what this method takes."""
        return SubscriptionChange if self.action == "partial_update" else SubscriptionSerializer

    def filtered(self, rows: QuerySet[Subscription], query: Mapping[str, Any]) -> QuerySet[Subscription]:
        """Keep those of a subscriber, an event type, a status."""
        columns = {"subscriber": "subscriber__name", "event_type": "event_type__name", "status": "status"}
        return rows.filter(**{column: query[name] for name, column in columns.items() if name in query})

    @extend_schema(responses={201: NewSubscriptionSerializer})
    def create(self, request: Request) -> Response:
        """Create one; the answer shows its signing secret, once."""
        secret = secret_of(secrets.token_bytes(NEW_KEY_BYTES))
        made = configuring.create(Subscription(**self.valid(request), signing_secret=secret))
        return self.created(made, signing_secret=secret)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def activate(self, request: Request, **_: str) -> Response:
        """Let it qualify for new messages and send what is pending (behaviour 1.7)."""
        return self.change_by_action(request, {"status": Status.ACTIVE})

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def inactivate(self, request: Request, **_: str) -> Response:
        """Stop sending; what is pending is kept, what is published meanwhile is not (behaviour 1.7)."""
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
