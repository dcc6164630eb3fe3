"""API keys as the API shows and takes them."""

from typing import Any, ClassVar, Final

from rest_framework import serializers

from broker_project.core.api.fields import (
    NameField,
    OneOfField,
    StrictModelSerializer,
    StrictSerializer,
    WholeNumberField,
)
from broker_project.core.api.moment_fields import MomentField
from subscriptions.api.resources import KEPT_BY_THE_BROKER
from subscriptions.credentials import issue
from subscriptions.credentials.scopes import OPENED
from subscriptions.models import ApiKey, KeyKind, Publisher, Scope, Subscriber

OVERLAP_SECONDS: Final = int(issue.OVERLAP.total_seconds())
LONGEST_OVERLAP_SECONDS: Final = int(issue.LONGEST_OVERLAP.total_seconds())


class ApiKeySerializer(StrictModelSerializer[ApiKey]):
    """An API key as the API shows it, never with its token, and takes a new one."""

    publisher = NameField[Publisher](
        required=False, allow_null=True, queryset=Publisher.objects.all(), help_text="Whose, if kind is PUBLISHER."
    )
    subscriber = NameField[Subscriber](
        required=False, allow_null=True, queryset=Subscriber.objects.all(), help_text="Whose, if kind is SUBSCRIBER."
    )
    scopes = serializers.ListField(
        child=OneOfField(Scope.choices),
        required=False,
        allow_empty=False,
        help_text="What it opens of what its kind may; without it all of that but `keys`.",
    )
    expires_at = MomentField(required=False, allow_null=True, help_text="Within a hundred years. Null: never.")

    class Meta:
        model = ApiKey
        read_only_fields = (
            *("id", "prefix", "retires_at", "revoked_at", "last_used_at", "successor_of", "issued_by"),
            *KEPT_BY_THE_BROKER,
        )
        fields: ClassVar[tuple[str, ...]] = (
            "kind",
            "publisher",
            "subscriber",
            "scopes",
            "label",
            "expires_at",
            "requests_per_minute",
            *read_only_fields,
        )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse an owner or scopes that do not fit the kind."""
        for kind, name in ((KeyKind.PUBLISHER, "publisher"), (KeyKind.SUBSCRIBER, "subscriber")):
            if (attrs["kind"] == kind) != bool(attrs.get(name)):
                raise serializers.ValidationError({name: f"Give a {name} if and only if kind is {kind}."})
        if not set(attrs.get("scopes", ())) <= {*OPENED[attrs["kind"]]}:
            there = ", ".join(OPENED[attrs["kind"]])
            raise serializers.ValidationError({"scopes": f"The scopes of a {attrs['kind']} key are {there}."})
        return attrs


class NewApiKeySerializer(ApiKeySerializer):
    """An API key just issued, with its token."""

    token = serializers.CharField(read_only=True, help_text="Shown this once; only its hash is stored.")

    class Meta(ApiKeySerializer.Meta):
        fields = (*ApiKeySerializer.Meta.fields, "token")


class RotationSerializer(StrictSerializer):
    """How a key is rotated."""

    overlap_seconds = WholeNumberField(
        required=False,
        default=OVERLAP_SECONDS,
        min_value=0,
        max_value=LONGEST_OVERLAP_SECONDS,
        help_text="For how long the former goes on beside its successor; 0: it ends at once.",
    )
