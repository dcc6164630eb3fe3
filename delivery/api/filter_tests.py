"""Trying filters on a message, given or stored: what they say, and why."""

import base64
import binascii
from typing import Any, Final

from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.api.explanations import VerdictSerializer
from delivery.documents import document_of
from delivery.explaining import shown_of, verdict_on
from delivery.models import Delivery, Message
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.scopes import subscriptions_for
from subscriptions.api.strictness import StrictSerializer, TextField, WholeNumberField
from subscriptions.filters import validate_filter
from subscriptions.models import ApiKey, KeyKind
from subscriptions.verdicts import Shown, judge

FILTER_STRING: Final = {"filter_string", "filter-string"}
LARGEST_ID: Final = 2**63 - 1
NO_BODY: Final = b"null"


class MessageToTry(StrictSerializer):
    """A message: a stored one by its id, or one that is given here; its headers are what the publisher would send."""

    message_id = WholeNumberField(required=False, min_value=1, max_value=LARGEST_ID, help_text="A stored message.")
    headers = serializers.DictField(child=TextField(allow_blank=True), required=False)
    content_type = TextField(required=False, help_text="Without it, application/json.")
    body = TextField(required=False, allow_blank=True, help_text="As text; with neither body, null.")
    body_base64 = TextField(required=False, allow_blank=True, help_text="Instead of `body`: any bytes.")
    filter_string = TextField(required=False, allow_blank=True, help_text="The header FILTER_STRING.")

    def validate_body_base64(self, text: str) -> bytes:
        """Return the bytes."""
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise serializers.ValidationError("This is not base64.") from None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a stored message beside a given one, and two bodies."""
        given = attrs.keys() & {"headers", "content_type", "body", "body_base64", "filter_string"}
        if "message_id" in attrs and given:
            raise serializers.ValidationError({"message_id": ["Give either a stored message or one of your own."]})
        if {"body", "body_base64"} <= given:
            raise serializers.ValidationError({"body_base64": ["Give one body."]})
        return attrs


class FilterToTry(MessageToTry):
    """Filters that no subscription has yet, and a message."""

    filter = TextField(required=False, allow_blank=True, validators=[validate_filter])
    header_filter_string = TextField(required=False, allow_blank=True)


class FiltersOfSubscription(APIView):
    """A subscription's filters."""

    permission_classes = [MayReceive]

    @extend_schema(operation_id="test_filter_of_subscription", request=MessageToTry, responses=VerdictSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Say what a subscription's filters make of a message, and why; whether it is ACTIVE does not matter here."""
        subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
        shown = _shown(_valid(MessageToTry, request), key_of(request))
        return Response(VerdictSerializer(verdict_on(shown, subscription)).data)


class AnyFilters(APIView):
    """Filters that no subscription has yet."""

    permission_classes = [MayReceive]

    @extend_schema(operation_id="test_filter", request=FilterToTry, responses=VerdictSerializer)
    def post(self, request: Request) -> Response:
        """Say what filters make of a message, and why."""
        values = _valid(FilterToTry, request)
        verdict = judge(
            _shown(values, key_of(request)),
            header_filter_string=values.get("header_filter_string", ""),
            filter_text=values.get("filter", ""),
        )
        return Response(VerdictSerializer(verdict).data)


def _valid(serializer_class: type[StrictSerializer], request: Request) -> dict[str, Any]:
    serializer = serializer_class(data=request.data)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)


def _stored(message_id: int, key: ApiKey) -> Message:
    """Return a stored message: any for management; for a subscriber, one that has been on its way to it."""
    if key.kind != KeyKind.MANAGEMENT:
        theirs = Delivery.objects.filter(message=message_id, subscription__subscriber=key.subscriber_id)
        if not theirs.exists():
            raise Http404
    return get_object_or_404(Message, pk=message_id)


def _shown(values: dict[str, Any], key: ApiKey) -> Shown:
    """Return what the stored or given message shows."""
    if "message_id" in values:
        return shown_of(_stored(values["message_id"], key))
    headers = {**values.get("headers", {})}
    in_headers = [headers.pop(name) for name in [*headers] if name.lower() in FILTER_STRING]
    filter_string = values.get("filter_string", in_headers[-1] if in_headers else None)
    body = values["body"].encode(errors="surrogatepass") if "body" in values else values.get("body_base64", NO_BODY)
    content_type = values.get("content_type", "application/json")
    return Shown(filter_string, document_of([*headers.items()], content_type, filter_string, body))
