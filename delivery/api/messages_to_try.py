"""What filters and scripts are tried on over the API: a message that is stored, or one that is given."""

import base64
import binascii
from typing import Any, Final

from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from broker_project.core.api.fields import StrictSerializer, TextField, WholeNumberField
from delivery.api.given_messages import check_publishable
from delivery.models import Delivery, Message
from subscriptions.filters import validate_filter
from subscriptions.models import ApiKey, KeyKind
from subscriptions.scripting.script_check import check_text

LARGEST_ID: Final = 2**63 - 1
AS_TEXT: Final = r'Give the body as text, as in "{{\"state\": \"open\"}}": so its numbers stay as they are written.'


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
class HeaderTexts(serializers.ListField):
    """The values of a header: one text, or several."""

    child = TextField(allow_blank=True)
    default_error_messages = {"not_a_list": "Give a text or a list of texts."}

    def to_internal_value(self, data: Any) -> list[str]:
        """Return the values."""
        return super().to_internal_value([data] if isinstance(data, str) else data)


class MessageToTry(StrictSerializer):
    """A message: a stored one by its id, or one that is given here; its headers are what the publisher would send."""

    message_id = WholeNumberField(required=False, min_value=1, max_value=LARGEST_ID, help_text="A stored message.")
    headers = serializers.DictField(
        child=HeaderTexts(),
        required=False,
        help_text="Those that no message keeps, such as Authorization, are left out.",
    )
    content_type = TextField(required=False, help_text="Without it, application/json.")
    body = TextField(
        required=False, allow_blank=True, error_messages={"not_text": AS_TEXT}, help_text="As text, JSON too."
    )
    body_base64 = TextField(required=False, allow_blank=True, help_text="Instead of `body`: any bytes.")
    filter_string = TextField(required=False, help_text="The header FILTER_STRING.")

    def validate_body_base64(self, text: str) -> bytes:
        """Return the bytes."""
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise serializers.ValidationError("This is not base64.") from None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a stored message beside a given one, two bodies or none, and what a publish would refuse as JSON."""
        given = attrs.keys() & {"headers", "content_type", "body", "body_base64", "filter_string"}
        if "message_id" in attrs and given:
            raise serializers.ValidationError({"message_id": ["Give either a stored message or one of your own."]})
        if {"body", "body_base64"} <= given:
            raise serializers.ValidationError({"body_base64": ["Give one body."]})
        if not attrs.keys() & {"message_id", "body", "body_base64"}:
            raise serializers.ValidationError("Give a message: a message_id, or a body as body or body_base64.")
        if "message_id" not in attrs:
            check_publishable(attrs)
        return attrs


class FilterToTry(MessageToTry):
    """Filters that no subscription has yet, and a message."""

    filter = TextField(required=False, allow_blank=True, validators=[validate_filter])
    header_filter_string = TextField(required=False, allow_blank=True)


class ScriptToTry(MessageToTry):
    """A script, and a message."""

    script = TextField(required=False, allow_blank=True, validators=[check_text], help_text="Without it, its own.")


class AnyScriptToTry(ScriptToTry):
    """A script that no subscription has yet, and a message."""

    script = TextField(allow_blank=True, validators=[check_text])


def valid(serializer_class: type[MessageToTry], request: Request) -> dict[str, Any]:
    """Return what a request asks to try."""
    serializer = serializer_class(data=request.data)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)


def stored(values: dict[str, Any], key: ApiKey) -> Message | None:
    """Return the stored message, if one is named: to a subscriber only what was on its way to it."""
    if "message_id" not in values:
        return None
    if key.kind != KeyKind.MANAGEMENT:
        theirs = Delivery.objects.filter(message=values["message_id"], subscription__subscriber=key.subscriber_id)
        if not theirs.exists():
            raise Http404
    return get_object_or_404(Message.objects.select_related("event_type"), pk=values["message_id"])
