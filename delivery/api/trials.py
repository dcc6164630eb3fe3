"""Try filters and scripts on a message, given or stored."""

import base64
import binascii
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema, extend_schema_field
from requests import PreparedRequest
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from broker_project.core.api.fields import StrictSerializer, TextField, WholeNumberField
from broker_project.core.json import is_json
from delivery.api.explanations import VerdictSerializer
from delivery.models import Delivery, Message
from delivery.playground.trials import (
    ANYWHERE,
    ScriptTrialFailed,
    destination_with,
    stored_content,
    try_script,
    unstored_content,
)
from delivery.publish.draft import Draft, check_json, check_metadata, document_of
from delivery.publish.errors import InvalidMetadata, MalformedPayload
from delivery.status.explain_message import shown_of, verdict_on
from delivery.sync.answer import Ended
from delivery.webhook.headers_policy import Header, kept
from delivery.webhook.parts import Content, Destination
from delivery.webhook.request import OWN
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.visibility import subscriptions_for
from subscriptions.endpoints import is_scripted
from subscriptions.filters import Shown, Verdict, judge, validate_filter
from subscriptions.models import ApiKey, EventKind, KeyKind, Scope
from subscriptions.scripting.runner import check_text

FILTER_STRING: Final = {"filter_string", "filter-string"}
JSON: Final = "application/json"

LARGEST_ID: Final = 2**63 - 1
AS_TEXT: Final = r'Give the body as text, as in "{{\"state\": \"open\"}}": so its numbers stay as they are written.'


def given(values: dict[str, Any]) -> Shown:
    """Return what the given message would show if it were published."""
    headers = kept(headers_of(values))
    in_headers = [value for name, value in headers if name.lower() in FILTER_STRING]
    filter_string = values.get("filter_string", in_headers[-1] if in_headers else None)
    others = [(name, value) for name, value in headers if name.lower() not in FILTER_STRING]
    return Shown(
        filter_string,
        document_of(others, values.get("content_type", JSON), filter_string, body_of(values)),
    )


def headers_of(values: dict[str, Any]) -> list[Header]:
    """Return the given headers, each value by itself."""
    return [(name, value) for name, texts in values.get("headers", {}).items() for value in texts]


def body_of(values: dict[str, Any]) -> bytes:
    """Return the given body."""
    body: bytes = values["body"].encode(errors="surrogatepass") if "body" in values else values["body_base64"]
    return body


def check_publishable(values: dict[str, Any]) -> None:
    """Refuse what nobody could publish: a verdict on it would be of no use."""
    try:
        check_metadata(
            Draft("", b"", values.get("content_type"), headers_of(values), filter_string=values.get("filter_string"))
        )
    except InvalidMetadata as refused:
        raise serializers.ValidationError(str(refused)) from None
    if is_json(values.get("content_type", JSON)):
        _check_json(values)


def _check_json(values: dict[str, Any]) -> None:
    try:
        check_json(body_of(values))
    except MalformedPayload as refused:
        field = "body" if "body" in values else "body_base64"
        text = f"{refused} With another content_type it need not be JSON."
        raise serializers.ValidationError({field: [text]}) from None


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


class TestedSerializer(VerdictSerializer):
    """A verdict on a message that was given, and what of it no message keeps."""

    headers_left_out = serializers.SerializerMethodField(help_text="Headers that are dropped on publish.")

    def get_headers_left_out(self, _: Verdict) -> list[str]:
        """Return their names."""
        names: list[str] = self.context["left_out"]
        return names


class FiltersOfSubscription(APIView):
    """A subscription's filters."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.READ}

    @extend_schema(operation_id="test_filter_of_subscription", request=MessageToTry, responses=TestedSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Say whether a subscription would get a message, and why; `filter` says what its filter makes of it anyhow.

        A stored message qualifies only if it is of the subscription's event type and not older than it; none does
        while the subscription or its subscriber is INACTIVE.
        """
        subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
        values = valid(MessageToTry, request)
        message = stored(values, key_of(request))
        verdict = verdict_on(shown_of(message) if message else given(values), subscription, message)
        return _answer(verdict, values)


class AnyFilters(APIView):
    """Filters that no subscription has yet."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.READ}

    @extend_schema(operation_id="test_filter", request=FilterToTry, responses=TestedSerializer)
    def post(self, request: Request) -> Response:
        """Say what filters make of a message, and why."""
        values = valid(FilterToTry, request)
        message = stored(values, key_of(request))
        verdict = judge(
            shown_of(message) if message else given(values),
            header_filter_string=values.get("header_filter_string", ""),
            filter_text=values.get("filter", ""),
        )
        return _answer(verdict, values)


def _answer(verdict: Verdict, values: dict[str, Any]) -> Response:
    names = [name for name, _ in headers_of(values)]
    stay = {name for name, _ in kept(headers_of(values))}
    left_out = [name for name in dict.fromkeys(names) if name not in stay]
    return Response(TestedSerializer(verdict, context={"left_out": left_out}).data)


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
        return _script_answer(_content(values, request), destination)


class AnyScript(APIView):
    """A script that no subscription has yet."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.READ}

    @extend_schema(operation_id="test_script", request=AnyScriptToTry, responses=TriedSerializer)
    def post(self, request: Request) -> Response:
        """Say what a script makes of a message; send nothing."""
        values = valid(AnyScriptToTry, request)
        return _script_answer(_content(values, request), replace(ANYWHERE, script=values["script"]))


def _content(values: dict[str, Any], request: Request) -> Content:
    if message := stored(values, key_of(request)):
        return stored_content(message)
    headers = kept(headers_of(values))
    if "filter_string" in values:
        headers.append(("Filter-String", values["filter_string"]))
    return unstored_content(headers, values.get("content_type", JSON), body_of(values), now_ms=int(time.time() * 1000))


def _script_answer(content: Content, destination: Destination) -> Response:
    try:
        made = try_script(content, destination)
        tried = Tried(request=made.request, answer=made.answer)
    except ScriptTrialFailed as failed:
        tried = Tried(reason=str(failed))
    return Response(TriedSerializer(tried).data)
