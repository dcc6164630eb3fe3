"""Trying scripts on a message, given or stored: what would be sent or answered, or why nothing would."""

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

from delivery.api.given_messages import JSON, body_of, headers_of
from delivery.api.messages_to_try import AnyScriptToTry, ScriptToTry, stored, valid
from delivery.playground.trials import (
    ANYWHERE,
    ScriptFailed,
    content_of,
    content_of_stored,
    destination_with,
    try_script,
)
from delivery.sync.answer import Ended
from delivery.webhook.headers_policy import kept
from delivery.webhook.parts import Content, Destination
from delivery.webhook.request import OWN
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.visibility import subscriptions_for
from subscriptions.endpoints import is_scripted
from subscriptions.models import EventKind, Scope


@dataclass(frozen=True, slots=True)
class Tried:
    """What a script makes of a message."""

    reason: str = ""
    request: PreparedRequest | None = None
    answer: Ended | None = None

    @property
    def status_code(self) -> int | None:
        """The answer's."""
        return self.answer.status_code if self.answer else None

    @property
    def headers(self) -> dict[str, str] | None:
        """The request's, without those that each request has its own of, or those of the answer."""
        if self.request is None:
            return dict(self.answer.headers) if self.answer else None
        return {name: value for name, value in self.request.headers.items() if name.lower() not in OWN}

    @property
    def body(self) -> bytes | None:
        """The request's or the answer's, None where there is neither."""
        if self.request is None:
            return self.answer.body if self.answer else None
        body = self.request.body
        return body.encode() if isinstance(body, str) else body


class TriedSerializer(serializers.Serializer[Tried]):
    """What would be sent, or answered to a SYNC event, without the headers that each request has its own of."""

    is_sent = serializers.SerializerMethodField(help_text="Whether anything would be sent, or answered.")
    reason = serializers.CharField(help_text="Why nothing would be, with the line of the script.")
    method = serializers.CharField(
        source="request.method", default=None, allow_null=True, help_text="Null: an answer has none, nor a path."
    )
    path = serializers.CharField(source="request.path_url", default=None, allow_null=True)
    status_code = serializers.IntegerField(
        allow_null=True,
        help_text="With SYNC, the status of the answer: `$statuscode`, 200 if it is not set. "
        "Null: it is none from 200 to 599, or the subscription is for a TOPIC event.",
    )
    headers = serializers.DictField(child=serializers.CharField(), allow_null=True)
    body = serializers.SerializerMethodField(help_text="As text; null if it is not UTF-8.")
    body_base64 = serializers.SerializerMethodField()

    def get_is_sent(self, tried: Tried) -> bool:
        """Tell whether there is a request or an answer."""
        return not tried.reason

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
    needs = {"post": Scope.READ}

    @extend_schema(operation_id="test_script_of_subscription", request=ScriptToTry, responses=TriedSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Say what its script, or another, makes of a message; send nothing.

        That is what a TOPIC subscription's endpoint would be sent, or with `webr://` what a call would be answered.
        Filters are not asked, nor whether the subscription is active.
        """
        subscriptions = subscriptions_for(key_of(request)).select_related("subscriber", "event_type")
        subscription = get_object_or_404(subscriptions, pk=id)
        if subscription.kind != EventKind.TOPIC and not is_scripted(subscription.endpoint):
            raise ValidationError("TOPIC subscriptions may have a script, and SYNC ones whose endpoint is webr://.")
        values = valid(ScriptToTry, request)
        destination = destination_with(values.get("script", subscription.script), subscription)
        return _answer(_content(values, request), destination)


class AnyScript(APIView):
    """A script that no subscription has yet."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.READ}

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
        made = try_script(content, destination)
        tried = Tried(request=made.request, answer=made.answer)
    except ScriptFailed as failed:
        tried = Tried(reason=str(failed))
    return Response(TriedSerializer(tried).data)
