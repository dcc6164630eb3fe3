"""API keys: issued and revoked by management; a token is shown once, when it is issued (behaviour 1.2)."""

import secrets
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from subscriptions import key_issuing
from subscriptions.api.pagination import Order
from subscriptions.api.preconditions import expected_versions
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Resource, refuse_body
from subscriptions.api.scopes import api_keys_for
from subscriptions.api.strictness import NameField, StrictModelSerializer
from subscriptions.key_tokens import TOKEN_BYTES
from subscriptions.models import ApiKey, KeyKind, Publisher, Subscriber


class ApiKeySerializer(StrictModelSerializer[ApiKey]):
    """An API key as the API shows it, never with its token, and takes a new one."""

    publisher = NameField[Publisher](
        required=False, allow_null=True, queryset=Publisher.objects.all(), help_text="Whose, if kind is PUBLISHER."
    )
    subscriber = NameField[Subscriber](
        required=False, allow_null=True, queryset=Subscriber.objects.all(), help_text="Whose, if kind is SUBSCRIBER."
    )

    class Meta:
        model = ApiKey
        read_only_fields = ("id", "prefix", "revoked_at", "last_used_at", *KEPT_BY_THE_BROKER)
        fields: ClassVar[tuple[str, ...]] = (
            "kind",
            "publisher",
            "subscriber",
            "label",
            "expires_at",
            "requests_per_minute",
            *read_only_fields,
        )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse an owner that does not fit the kind."""
        for kind, name in ((KeyKind.PUBLISHER, "publisher"), (KeyKind.SUBSCRIBER, "subscriber")):
            if (attrs["kind"] == kind) != bool(attrs.get(name)):
                raise serializers.ValidationError({name: f"Give a {name} if and only if kind is {kind}."})
        return attrs


class NewApiKeySerializer(ApiKeySerializer):
    """An API key just issued, with its token."""

    token = serializers.CharField(read_only=True, help_text="Shown this once; only its hash is stored.")

    class Meta(ApiKeySerializer.Meta):
        fields = (*ApiKeySerializer.Meta.fields, "token")


class ApiKeys(Resource[ApiKey]):
    """Who may call the API."""

    http_method_names = ["get", "head", "post"]
    serializer_class = ApiKeySerializer
    lookup_url_kwarg = "id"
    lookup_value_converter = "int"
    order = Order("api keys")
    related = ("publisher", "subscriber")

    def scope(self, key: ApiKey) -> QuerySet[ApiKey]:
        """Return management all, others none."""
        return api_keys_for(key)

    @extend_schema(responses={201: NewApiKeySerializer})
    def create(self, request: Request) -> Response:
        """Issue one; the answer is the only one with its token."""
        values = self.valid(request)
        owner = values.get("publisher") or values.get("subscriber")
        key, token = key_issuing.issue(
            owner,
            random_bytes=secrets.token_bytes(TOKEN_BYTES),
            now=timezone.now(),
            label=values.get("label", ""),
            expires_at=values.get("expires_at"),
            requests_per_minute=values.get("requests_per_minute"),
        )
        return self.created(key, token=token)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **_: str) -> Response:
        """Make it useless from now on."""
        refuse_body(request)
        return self.answer(key_issuing.revoke(self.which(), now=timezone.now(), expected=expected_versions(request)))
