"""A message that is given to the API to try something on: what it would be if it were published."""

from typing import Any, Final

from rest_framework import serializers

from broker_project.core.media_types import is_json
from delivery.publish.document import document_of
from delivery.publish.draft import Draft, check_metadata
from delivery.publish.errors import InvalidMetadata, MalformedPayload
from delivery.publish.payloads import check_json
from delivery.webhook.headers_policy import Header, kept
from subscriptions.filter_verdict import Shown

FILTER_STRING: Final = {"filter_string", "filter-string"}
JSON: Final = "application/json"


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
