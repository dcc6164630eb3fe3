"""API keys: issued, rotated and revoked by management; a token is shown once, when it is issued (contract 1.2).

Links to the portal are issued like keys (contract 1.10).
"""

import datetime as dt
from typing import Any, ClassVar

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import (
    MomentField,
    NameField,
    OneOfField,
    StrictModelSerializer,
    StrictSerializer,
    TextField,
    WholeNumberField,
)
from broker_project.core.api.history import Changed
from broker_project.core.api.pagination import Order, PageQuery
from broker_project.core.api.problems import ProblemType, register
from broker_project.core.api.records import CHANGED, Audited, expected_versions, operation, valid
from subscriptions.api.permissions import MayManage, key_of
from subscriptions.api.resources import BROKER_FIELDS, Resource, overlap_field
from subscriptions.credentials import keys, portal_links
from subscriptions.credentials.scopes import BeyondIssuer, Issuer, effective_limit, owner_problems
from subscriptions.credentials.tokens import SHOWN_CHARACTERS
from subscriptions.models import ApiKey, Publisher, Scope, Subscriber

register(
    {
        BeyondIssuer: ProblemType(403, "beyond_issuer", "Beyond the issuer"),
        keys.KeyEnded: ProblemType(409, "key_ended"),
    }
)


class ApiKeySerializer(StrictModelSerializer[ApiKey]):
    """An API key without its token."""

    example = {"kind": "PUBLISHER", "publisher": "shop", "scopes": ["publish", "read"], "label": "shop, production"}
    publisher = NameField[Publisher](
        required=False, allow_null=True, queryset=Publisher.objects.all(), help_text="The owner, if kind is PUBLISHER."
    )
    subscriber = NameField[Subscriber](
        required=False,
        allow_null=True,
        queryset=Subscriber.objects.all(),
        help_text="The owner, if kind is SUBSCRIBER.",
    )
    scopes = serializers.ListField(
        child=OneOfField(Scope.choices),
        required=False,
        allow_empty=False,
        help_text="Some of the scopes of its kind; without it, all of them but `keys`.",
    )
    expires_at = MomentField(required=False, allow_null=True, help_text="Within a hundred years. Null: never.")

    class Meta:
        model = ApiKey
        read_only_fields = (
            *("id", "prefix", "retires_at", "revoked_at", "last_used_at", "successor_of", "issued_by"),
            "is_portal",
            *BROKER_FIELDS,
        )
        fields: ClassVar[tuple[str, ...]] = (
            *("kind", "publisher", "subscriber", "scopes", "label", "expires_at", "requests_per_minute"),
            *read_only_fields,
        )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse an owner that does not fit the kind."""
        if wrong := owner_problems(attrs):
            raise serializers.ValidationError(wrong)
        return attrs


class NewApiKeySerializer(ApiKeySerializer):
    """An API key that was just issued, with its token."""

    token = serializers.CharField(read_only=True, help_text="Shown only once; only its hash is stored.")

    class Meta(ApiKeySerializer.Meta):
        fields = (*ApiKeySerializer.Meta.fields, "token")


class RotationSerializer(StrictSerializer):
    """How an API key is rotated."""

    example = {"overlap_seconds": 3600}
    overlap_seconds = overlap_field(
        keys.OVERLAP, keys.MAX_OVERLAP, "How long the old key stays usable; 0: it ends at once."
    )


class ApiKeyQuery(PageQuery):
    """The filters of the list of API keys."""

    prefix = TextField(
        min_length=SHOWN_CHARACTERS,
        max_length=SHOWN_CHARACTERS,
        help_text="The first twelve characters of the token.",
    )


class ApiKeys(Resource[ApiKey]):
    """API keys, for management only."""

    queryset = ApiKey.objects.all()
    permission_classes = [MayManage]
    needs = {"get": Scope.KEYS, "post": Scope.KEYS}
    http_method_names = ["get", "head", "post"]
    serializer_class = ApiKeySerializer
    order = Order("API keys")
    filters = ApiKeyQuery
    related = ("publisher", "subscriber")
    problems = {"create": ("beyond_issuer", "conflict", "length_required"), "rotate": ("beyond_issuer", "key_ended")}

    @extend_schema(responses={201: NewApiKeySerializer})
    def create(self, request: Request) -> Response:
        """Issue an API key; only this answer has its token."""
        values = self.valid(request)
        del values["kind"]  # that of its owner
        publisher, subscriber = (values.pop(name, None) for name in ("publisher", "subscriber"))
        key, token = keys.issue(publisher or subscriber, now=timezone.now(), issuer=issuer_of(request), **values)
        return self.created(key, token=token)

    @extend_schema(request=RotationSerializer, responses={201: NewApiKeySerializer})
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, **_: str) -> Response:
        """Rotate an API key: its successor has the same owner, scopes and label, and it ends after an overlap.

        Only this answer has the successor's token. The successor is issued for as long as the old key was.
        """
        asked, former = valid(RotationSerializer, request), self.get_object()
        successor, token = keys.rotate(
            self.selected(),
            now=timezone.now(),
            issuer=issuer_of(request),
            overlap=dt.timedelta(seconds=asked["overlap_seconds"]),
            expected=expected_versions(request),
        )
        changed = Changed(former, is_new=False, fields=sorted(request.data))
        request.META[CHANGED] = [changed, Changed(successor, is_new=True, fields=())]
        address = reverse("api-key-detail", args=[successor.pk])
        return self.answer(successor, status.HTTP_201_CREATED, {"Location": address}, token=token)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **_: str) -> Response:
        """Revoke an API key: it ends now."""
        return self.change_by_action(request, keys.revoke, now=timezone.now())


class NewPortalLink(StrictSerializer):
    """What a link to the portal opens, and for how long."""

    example = {"expires_in_seconds": 3600, "label": "ann@warehouse.example"}
    expires_in_seconds = WholeNumberField(
        required=False,
        default=int(portal_links.LIFETIME.total_seconds()),
        min_value=int(portal_links.MIN_LIFETIME.total_seconds()),
        max_value=int(portal_links.MAX_LIFETIME.total_seconds()),
        help_text="When the link ends, and with it the portal that it has opened.",
    )
    scopes = serializers.ListField(
        child=OneOfField([(scope.value, scope.label) for scope in portal_links.PORTAL_SCOPES]),
        required=False,
        default=[*portal_links.DEFAULT_SCOPES],
        help_text="What can be done in the portal; by default `read`, which is always included, and `operate`.",
    )
    label = TextField(  # type: ignore[assignment]  # each serializer has a label of its own, too
        required=False, default="", allow_blank=True, max_length=255, help_text="Who gets the link."
    )


class PortalLink(serializers.Serializer[Any]):
    """A link to the portal."""

    url = serializers.URLField(help_text="Opens once. Only this answer has it.")
    expires_at = serializers.DateTimeField()
    api_key = serializers.IntegerField(help_text="The id of its API key: revoke that to close the portal.")


@operation(
    "post",
    Scope.KEYS,
    MayManage,
    base=Audited,
    request=NewPortalLink,
    responses={201: PortalLink},
    problems=["beyond_issuer"],
)
def create_portal_link(request: Request, name: str) -> Response:
    """Create a link to the portal of a subscriber: it opens the subscriber's own pages, once."""
    subscriber = get_object_or_404(Subscriber, name=name)
    asked = valid(NewPortalLink, request)
    key, token = portal_links.issue_link(
        subscriber,
        now=timezone.now(),
        issuer=issuer_of(request),
        lifetime=dt.timedelta(seconds=asked["expires_in_seconds"]),
        scopes=asked["scopes"],
        label=asked["label"],
    )
    answer = {"url": portal_address(request, token), "expires_at": key.expires_at, "api_key": key.pk}
    return Response(PortalLink(answer).data, status.HTTP_201_CREATED)


def portal_address(request: HttpRequest | Request, token: str) -> str:
    """Return the address of a link to the portal."""
    path = reverse("portal:open", args=[token])
    return f"{settings.PUBLIC_URL}{path}" if settings.PUBLIC_URL else request.build_absolute_uri(path)


def issuer_of(request: Request) -> Issuer:
    """Return the limits of the key that issues others: their scopes, their end and their rate limit are within its own.

    The overlap of a rotated key does not count: its successor lives on, and issues once more if the answer was lost.
    """
    key = key_of(request)
    return Issuer(
        f"key {key.prefix}…",
        scopes=frozenset(map(Scope, key.scopes)),
        ends_at=key.expires_at,
        requests_per_minute=effective_limit(key.requests_per_minute, settings.REQUESTS_PER_MINUTE),
        requests_by_default=settings.REQUESTS_PER_MINUTE,
    )
