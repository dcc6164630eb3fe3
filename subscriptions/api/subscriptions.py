"""Subscriptions: a subscriber's key configures its own, management all (behaviour 1.4)."""

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import OneOfField, TextField
from broker_project.core.api.pagination import Order, PageQuery
from broker_project.core.api.preconditions import expected_versions
from broker_project.core.api.problems import ProblemType, register
from subscriptions import edit
from subscriptions.api.resources import Resource, refuse_body
from subscriptions.api.subscription_fields import (
    NewSubscriptionSerializer,
    SecretRotation,
    SubscriptionChange,
    SubscriptionSerializer,
)
from subscriptions.api.visibility import subscriptions_for
from subscriptions.credentials import rotate_secrets
from subscriptions.credentials.signing_secrets import NEW_KEY_BYTES, secret_of
from subscriptions.models import ApiKey, DeliveryMode, EventType, KeyKind, Status, Subscription

register({rotate_secrets.TooManySecrets: ProblemType(409, "too_many_secrets", "Too many secrets")})


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
        made = rotate_secrets.rotate_secret(
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
        return self.answer(rotate_secrets.end_overlap(self.which(), expected=expected_versions(request)))
