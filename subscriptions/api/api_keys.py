"""API keys: issued, rotated and revoked by management; a token is shown once, when it is issued (behaviour 1.2)."""

import datetime as dt
import secrets
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import TextField
from broker_project.core.api.pagination import Order, PageQuery
from broker_project.core.api.preconditions import expected_versions
from broker_project.core.api.problems import ProblemType, register
from subscriptions.api.api_key_documents import ApiKeySerializer, NewApiKeySerializer, RotationSerializer
from subscriptions.api.permissions import MayManage, key_of
from subscriptions.api.resources import Resource, refuse_body
from subscriptions.api.visibility import api_keys_for
from subscriptions.credentials import issue
from subscriptions.credentials.scopes import BeyondIssuer, Issuer, requests_in_force
from subscriptions.credentials.tokens import SHOWN_CHARACTERS, TOKEN_BYTES
from subscriptions.models import ApiKey, Scope

register(
    {
        BeyondIssuer: ProblemType(403, "beyond_issuer", "Beyond the issuer"),
        issue.KeyEnded: ProblemType(409, "key_ended", "Key ended"),
    }
)


class ApiKeyQuery(PageQuery):
    """What the list of API keys can be narrowed to."""

    prefix = TextField(
        required=False,
        min_length=SHOWN_CHARACTERS,
        max_length=SHOWN_CHARACTERS,
        help_text="The one whose token begins with just these twelve characters.",
    )


class ApiKeys(Resource[ApiKey]):
    """Who may call the API."""

    permission_classes = [MayManage]
    needs = {"get": Scope.KEYS, "post": Scope.KEYS}
    http_method_names = ["get", "head", "post"]
    serializer_class = ApiKeySerializer
    lookup_url_kwarg = "id"
    lookup_value_converter = "int"
    order = Order("api keys")
    query_class = ApiKeyQuery
    related = ("publisher", "subscriber")

    def visible_to(self, key: ApiKey) -> QuerySet[ApiKey]:
        """Return all: nobody but management gets here."""
        return api_keys_for(key)

    def filtered(self, rows: QuerySet[ApiKey], query: Mapping[str, Any]) -> QuerySet[ApiKey]:
        """Return those whose token begins so."""
        return rows.filter(prefix=query["prefix"]) if "prefix" in query else rows

    @extend_schema(responses={201: NewApiKeySerializer})
    def create(self, request: Request) -> Response:
        """Issue one; the answer is the only one with its token."""
        values = self.valid(request)
        owner = values.get("publisher") or values.get("subscriber")
        key, token = issue.issue(
            owner,
            random_bytes=secrets.token_bytes(TOKEN_BYTES),
            now=timezone.now(),
            issuer=issuer_of(request),
            label=values.get("label", ""),
            scopes=values.get("scopes"),
            expires_at=values.get("expires_at"),
            requests_per_minute=values.get("requests_per_minute"),
        )
        return self.created(key, token=token)

    @extend_schema(request=RotationSerializer, responses={201: NewApiKeySerializer})
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, **_: str) -> Response:
        """Issue a successor, with the same owner, scopes and label; the former ends after an overlap.

        The answer is the only one with the successor's token. It lives as long as the former was issued for.
        """
        asked = self.valid(request, by=RotationSerializer)
        successor, token = issue.rotate(
            self.which(),
            random_bytes=secrets.token_bytes(TOKEN_BYTES),
            now=timezone.now(),
            issuer=issuer_of(request),
            overlap=dt.timedelta(seconds=asked["overlap_seconds"]),
            expected=expected_versions(request),
        )
        address = reverse("api-key-detail", args=[successor.pk])
        return self.answer(successor, status.HTTP_201_CREATED, {"Location": address}, token=token)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **_: str) -> Response:
        """Make it useless from now on."""
        refuse_body(request)
        return self.answer(issue.revoke(self.which(), now=timezone.now(), expected=expected_versions(request)))


def issuer_of(request: Request) -> Issuer:
    """Return whose key issues others: it passes on no scope that it has not, nothing that outlives it or sends more.

    The overlap of a rotated one does not count: its successor lives on, and issues it once more if the answer was lost.
    """
    key = key_of(request)
    return Issuer(
        f"key {key.prefix}…",
        scopes=frozenset(map(Scope, key.scopes)),
        ends_at=key.expires_at,
        requests_per_minute=requests_in_force(key.requests_per_minute, settings.REQUESTS_PER_MINUTE),
        requests_by_default=settings.REQUESTS_PER_MINUTE,
    )
