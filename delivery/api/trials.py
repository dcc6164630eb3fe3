"""Explain who gets a message, and try filters and scripts on a message, given or stored."""

import time
from dataclasses import asdict, replace
from typing import Any, Final

from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import IDS, Base64Field, DecodedField, StrictSerializer, TextField, WholeNumberField
from broker_project.core.api.records import operation, valid
from broker_project.core.json import is_json
from delivery.models import Delivery, Message
from delivery.playground import trials
from delivery.publish.draft import Draft, check_json, check_metadata, document_of
from delivery.publish.errors import InvalidMetadata, MalformedPayload
from delivery.status import explain_message as explanations
from delivery.webhook.content import Header, kept
from delivery.webhook.destination import Destination
from subscriptions import filters
from subscriptions.api.permissions import MayManage, MayReceive, key_of, subscriptions_for
from subscriptions.endpoints import is_scripted
from subscriptions.models import EventKind, KeyKind, Scope
from subscriptions.scripting.runner import check_text

FILTER_STRING: Final = {"filter_string", "filter-string"}
JSON: Final = "application/json"
AS_TEXT: Final = r'Give the body as text, as in "{{\"state\": \"open\"}}", so that numbers stay as they are written.'


class FoundSerializer(serializers.Serializer[filters.Found]):
    """A value that a term found in the message."""

    path = serializers.CharField()
    value = serializers.CharField(allow_null=True, help_text="Text or JSON, its first 200 characters; null: nothing.")


class TermSerializer(serializers.Serializer[filters.TermResult]):
    """One term of a filter."""

    text = serializers.CharField()
    result = serializers.ChoiceField([one.value for one in filters.Result])
    values = FoundSerializer(many=True)
    reason = serializers.CharField(help_text="Why it failed, if it did.")


class FilterResultSerializer(serializers.Serializer[filters.Explanation]):
    """A filter's result and that of each of its terms, in the order of its text."""

    result = serializers.ChoiceField([one.value for one in filters.Result])
    reason = serializers.CharField(help_text="Why it failed, if it did: then a delivery is HELD.")
    terms = TermSerializer(many=True)


class HeaderFilterSerializer(serializers.Serializer[filters.HeaderFilterResult]):
    """A header filter, compared with the message."""

    expected = serializers.CharField(source="wanted")
    actual = serializers.CharField(source="given", allow_null=True, help_text="The message's FILTER_STRING.")
    matches = serializers.BooleanField(source="holds")


class VerdictSerializer(serializers.Serializer[filters.MatchExplanation]):
    """Whether the filters let a message through, and why."""

    qualifies = serializers.BooleanField()
    why = serializers.CharField()
    header_filter = HeaderFilterSerializer(allow_null=True, help_text="Null: not set.")
    filter = FilterResultSerializer(allow_null=True, help_text="Null: not set.")


class ExplainedSerializer(VerdictSerializer):
    """Whether one subscription gets a message and why, by the present configuration."""

    subscription_id = serializers.IntegerField(source="subscription.pk")
    subscriber = serializers.CharField(source="subscription.subscriber.name")
    qualifies = serializers.BooleanField(source="verdict.qualifies")
    why = serializers.CharField(source="verdict.why")
    header_filter = HeaderFilterSerializer(source="verdict.header_filter", allow_null=True)
    filter = FilterResultSerializer(source="verdict.filter", allow_null=True)


class ExplanationSerializer(serializers.Serializer[explanations.Explanations]):
    """The result for each subscription to a message's event type."""

    subscriptions = ExplainedSerializer(source="found", many=True)
    is_truncated = serializers.BooleanField(
        source="is_cut", help_text=f"Whether there are more than these {explanations.MAX_EXPLAINED}."
    )


@operation("get", Scope.READ, MayManage, responses=ExplanationSerializer)
def explain_message(request: Request, id: int) -> Response:  # noqa: ARG001 - every operation gets it
    """Explain who gets a message, and why: all filters of the present subscriptions are evaluated again."""
    message = get_object_or_404(Message.objects.select_related("event_type"), pk=id)
    return Response(ExplanationSerializer(explanations.explain_message(message, explanations.MAX_EXPLAINED)).data)


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
class HeaderTexts(serializers.ListField):
    """The values of a header: one text, or several."""

    child = TextField(allow_blank=True)
    default_error_messages = {"not_a_list": "Give a text or a list of texts."}

    def to_internal_value(self, data: Any) -> list[str]:
        """Return the values."""
        return super().to_internal_value([data] if isinstance(data, str) else data)


class BodySerializer(StrictSerializer):
    """A body: as text or, any bytes, as base64."""

    body = TextField(
        required=False, allow_blank=True, error_messages={"not_text": AS_TEXT}, help_text="As text, JSON too."
    )
    body_base64 = Base64Field(required=False, help_text="Instead of `body`: any bytes.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse two bodies."""
        if "body" in attrs and "body_base64" in attrs:
            raise serializers.ValidationError({"body_base64": ["Give one body."]})
        return attrs


def body_in(values: dict[str, Any]) -> bytes:
    """Return the bytes of the body that is given."""
    body: bytes = values["body"].encode() if "body" in values else values["body_base64"]
    return body


class MessageToTry(BodySerializer):
    """A message: a stored one by its id, or a new one; its headers are those that the publisher would send."""

    example = {"body": '{"order": 4711, "state": "open"}'}
    message_id = WholeNumberField(required=False, **IDS, help_text="A stored message.")
    headers = serializers.DictField(
        child=HeaderTexts(),
        required=False,
        help_text="Those that are dropped on publish, such as Authorization, are dropped here.",
    )
    content_type = TextField(required=False, help_text="Without it, application/json.")
    filter_string = TextField(required=False, help_text="The header FILTER_STRING.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a stored message beside a given one, two bodies or none, and a message that cannot be published."""
        given = attrs.keys() & {"headers", "content_type", "body", "body_base64", "filter_string"}
        if "message_id" in attrs and given:
            raise serializers.ValidationError({"message_id": ["Give either a stored message or one of your own."]})
        super().validate(attrs)
        if not attrs.keys() & {"message_id", "body", "body_base64"}:
            raise serializers.ValidationError("Give a message: a message_id, or a body as body or body_base64.")
        if "message_id" not in attrs:
            _check_publishable(attrs)
        return attrs


def _check_publishable(values: dict[str, Any]) -> None:
    try:
        check_metadata(
            Draft("", b"", values.get("content_type"), _headers(values), filter_string=values.get("filter_string"))
        )
    except InvalidMetadata as refused:
        raise serializers.ValidationError(str(refused)) from None
    try:
        if is_json(values.get("content_type", JSON)):
            check_json(body_in(values))
    except MalformedPayload as refused:
        field = "body" if "body" in values else "body_base64"
        text = f"{refused} With another content_type it need not be JSON."
        raise serializers.ValidationError({field: [text]}) from None


def _headers(values: dict[str, Any]) -> list[Header]:
    """Return the given headers, each value by itself."""
    return [(name, value) for name, texts in values.get("headers", {}).items() for value in texts]


class FilterToTry(MessageToTry):
    """New filters, and a message."""

    example = {"filter": "$$->'Body'->>'state' = 'open'", **MessageToTry.example}
    filter = TextField(required=False, allow_blank=True, validators=[filters.validate_filter])
    header_filter_string = TextField(required=False, allow_blank=True)


class ScriptToTry(MessageToTry):
    """A script, and a message."""

    script = TextField(
        required=False, allow_blank=True, validators=[check_text], help_text="Without it, the subscription's."
    )


class AnyScriptToTry(ScriptToTry):
    """A new script, and a message."""

    example = {"script": "$outmessage = {key: $inmessage.order}", **MessageToTry.example}
    script = TextField(allow_blank=True, validators=[check_text])


class TestedSerializer(VerdictSerializer):
    """Whether filters let a given message through, and which of its headers would be dropped."""

    dropped_headers = serializers.SerializerMethodField(help_text="Headers that are dropped on publish.")

    def get_dropped_headers(self, _: filters.MatchExplanation) -> list[str]:
        """Return their names."""
        headers: list[Header] = self.context["headers"]
        kept_names = {name for name, _ in kept(headers)}
        return [name for name in dict.fromkeys(name for name, _ in headers) if name not in kept_names]


def _stored(values: dict[str, Any], request: Request) -> Message | None:
    """Return the stored message, if one is named; a subscriber sees those with a delivery to it."""
    if "message_id" not in values:
        return None
    key = key_of(request)
    if key.kind != KeyKind.MANAGEMENT:
        own = Delivery.objects.filter(message=values["message_id"], subscription__subscriber=key.subscriber_id)
        if not own.exists():
            raise Http404
    return get_object_or_404(Message.objects.select_related("event_type"), pk=values["message_id"])


def _given(values: dict[str, Any]) -> filters.FilterInput:
    """Return what filters would see of the given message if it were published."""
    headers = kept(_headers(values))
    in_headers = [value for name, value in headers if name.lower() in FILTER_STRING]
    filter_string = values.get("filter_string", in_headers[-1] if in_headers else None)
    others = [(name, value) for name, value in headers if name.lower() not in FILTER_STRING]
    return filters.FilterInput(
        filter_string, document_of(others, values.get("content_type", JSON), filter_string, body_in(values))
    )


@operation("post", Scope.READ, MayReceive, request=MessageToTry, responses=TestedSerializer)
def test_filter_of_subscription(request: Request, id: int) -> Response:
    """Test the filter of a subscription on a message; `filter` has its result in any case.

    A stored message qualifies only if it is of the subscription's event type and not older than it. None qualifies
    while the subscription or its subscriber is INACTIVE.
    """
    subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
    values = valid(MessageToTry, request)
    message = _stored(values, request)
    shown = explanations.filter_input_of(message) if message else _given(values)
    older = explanations.backfilled(message, [subscription]) if message else ()
    verdict = explanations.verdict_on(shown, subscription, message, older)
    return Response(TestedSerializer(verdict, context={"headers": _headers(values)}).data)


@operation("post", Scope.READ, MayReceive, request=FilterToTry, responses=TestedSerializer)
def test_filter(request: Request) -> Response:
    """Test a new filter on a message."""
    values = valid(FilterToTry, request)
    message = _stored(values, request)
    verdict = filters.judge(
        explanations.filter_input_of(message) if message else _given(values),
        header_filter_string=values.get("header_filter_string", ""),
        filter_text=values.get("filter", ""),
    )
    return Response(TestedSerializer(verdict, context={"headers": _headers(values)}).data)


class TriedSerializer(serializers.Serializer[Any]):
    """The request that would be sent, or the answer to a SYNC event; without headers that differ for each request."""

    is_sent = serializers.BooleanField(help_text="Whether anything would be sent, or answered.")
    reason = serializers.CharField(help_text="Why nothing would be, with the line of the script.")
    method = serializers.CharField(allow_null=True, help_text="Null: an answer has no method and no path.")
    path = serializers.CharField(allow_null=True)
    status_code = serializers.IntegerField(
        allow_null=True,
        help_text="With SYNC, the status of the answer: `$statuscode`, 200 if it is not set. "
        "Null: it is not between 200 and 599, or the subscription is for a TOPIC event.",
    )
    headers = serializers.DictField(child=serializers.CharField(), allow_null=True)
    body = DecodedField(allow_null=True, help_text="As text; null if it is not UTF-8.")
    body_base64 = Base64Field(source="body", allow_null=True)


def _script_answer(values: dict[str, Any], request: Request, destination: Destination) -> Response:
    if message := _stored(values, request):
        headers = [(name, value) for name, value in message.headers]
        content_type, body = message.content_type, bytes(message.body)
        now_ms = int(message.published_at.timestamp() * 1000)
    else:
        headers = kept(_headers(values))
        if "filter_string" in values:
            headers.append(("Filter-String", values["filter_string"]))
        content_type, body = values.get("content_type", JSON), body_in(values)
        now_ms = int(time.time() * 1000)
    content = trials.tried_content(headers, content_type, body, now_ms=now_ms)
    try:
        outcome, reason = trials.try_script(content, destination), ""
    except trials.ScriptTrialFailed as failed:
        outcome, reason = trials.Outcome(), str(failed)
    return Response(TriedSerializer({"is_sent": not reason, "reason": reason, **asdict(outcome)}).data)


@operation("post", Scope.READ, MayReceive, request=ScriptToTry, responses=TriedSerializer, problems=["scripts_busy"])
def test_script_of_subscription(request: Request, id: int) -> Response:
    """Test the script of a subscription, or another, on a message: run it and return the result; nothing is sent.

    The result is the request that a TOPIC subscription's endpoint would get, or with `webr://` the answer to a call.
    Filters and the subscription's status do not matter.
    """
    subscriptions = subscriptions_for(key_of(request)).select_related("subscriber", "event_type")
    subscription = get_object_or_404(subscriptions, pk=id)
    if subscription.kind != EventKind.TOPIC and not is_scripted(subscription.endpoint):
        raise ValidationError("TOPIC subscriptions may have a script, and SYNC ones whose endpoint is webr://.")
    values = valid(ScriptToTry, request)
    return _script_answer(
        values, request, trials.destination_with(values.get("script", subscription.script), subscription)
    )


@operation("post", Scope.READ, MayReceive, request=AnyScriptToTry, responses=TriedSerializer, problems=["scripts_busy"])
def test_script(request: Request) -> Response:
    """Test a new script on a message: run it and return the result; nothing is sent."""
    values = valid(AnyScriptToTry, request)
    return _script_answer(values, request, replace(trials.ANYWHERE, script=values["script"]))
