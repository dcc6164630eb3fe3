"""Trying scripts on a message, given or stored: what would be sent, or why nothing would."""

import base64
import time
from dataclasses import dataclass, replace
from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from requests import PreparedRequest
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.api.messages_to_try import JSON, AnyScriptToTry, ScriptToTry, body_of, headers_of, stored, valid
from delivery.forwarded_headers import kept
from delivery.trying import ANYWHERE, ScriptFailed, content_of, content_of_stored, destination_with, try_script
from delivery.webhooks import OWN, Content, Destination
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.scopes import subscriptions_for
from subscriptions.models import EventKind


@dataclass(frozen=True, slots=True)
class Tried:
    """What a script makes of a message."""

    reason: str = ""
    request: PreparedRequest | None = None

    @property
    def body(self) -> bytes | None:
        """The request's, None where there is none."""
        body = self.request.body if self.request else None
        return body.encode() if isinstance(body, str) else body


class TriedSerializer(serializers.Serializer[Tried]):
    """What would be sent, without the headers whose values each request has its own of."""

    is_sent = serializers.SerializerMethodField(help_text="Whether anything would be.")
    reason = serializers.CharField(help_text="Why nothing would be, with the line of the script.")
    method = serializers.CharField(source="request.method", default=None, allow_null=True)
    path = serializers.CharField(source="request.path_url", default=None, allow_null=True)
    headers = serializers.SerializerMethodField()
    body = serializers.SerializerMethodField(help_text="As text; null if it is not UTF-8.")
    body_base64 = serializers.SerializerMethodField()

    def get_is_sent(self, tried: Tried) -> bool:
        """Tell whether there is a request."""
        return tried.request is not None

    def get_headers(self, tried: Tried) -> dict[str, str] | None:
        """Return the request's headers."""
        if tried.request is None:
            return None
        return {name: value for name, value in tried.request.headers.items() if name.lower() not in OWN}

    def get_body(self, tried: Tried) -> str | None:
        """Return the body's text."""
        try:
            return tried.body.decode() if tried.body is not None else None
        except UnicodeDecodeError:
            return None

    def get_body_base64(self, tried: Tried) -> str | None:
        """Return the body's bytes."""
        return base64.b64encode(tried.body).decode() if tried.body is not None else None


class ScriptOfSubscription(APIView):
    """A subscription's script."""

    permission_classes = [MayReceive]

    @extend_schema(operation_id="test_script_of_subscription", request=ScriptToTry, responses=TriedSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Say what a TOPIC subscription's endpoint would be sent of a message, by its script or another; send nothing.

        Filters are not asked, nor whether the subscription is active.
        """
        subscriptions = subscriptions_for(key_of(request)).select_related("subscriber", "event_type")
        subscription = get_object_or_404(subscriptions, pk=id)
        if subscription.kind != EventKind.TOPIC:
            raise ValidationError("Only the script of a TOPIC subscription makes what is sent.")
        values = valid(ScriptToTry, request)
        destination = destination_with(values.get("script", subscription.script), subscription)
        return _answer(_content(values, request), destination)


class AnyScript(APIView):
    """A script that no subscription has yet."""

    permission_classes = [MayReceive]

    @extend_schema(operation_id="test_script", request=AnyScriptToTry, responses=TriedSerializer)
    def post(self, request: Request) -> Response:
        """Say what a script makes of a message; send nothing."""
        values = valid(AnyScriptToTry, request)
        return _answer(_content(values, request), replace(ANYWHERE, script=values["script"]))


def _content(values: dict[str, Any], request: Request) -> Content:
    if message := stored(values, key_of(request)):
        return content_of_stored(message)
    headers = kept(headers_of(values))
    if "filter_string" in values:
        headers.append(("Filter-String", values["filter_string"]))
    return content_of(headers, values.get("content_type", JSON), body_of(values), now_ms=int(time.time() * 1000))


def _answer(content: Content, destination: Destination) -> Response:
    try:
        tried = Tried(request=try_script(content, destination))
    except ScriptFailed as failed:
        tried = Tried(reason=str(failed))
    return Response(TriedSerializer(tried).data)
