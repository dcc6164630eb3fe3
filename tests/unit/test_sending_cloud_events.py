"""Messages sent as CloudEvents, read by the library that others read them with (behaviour 2.12)."""

import base64
import hmac
import json
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from delivery.http.headers import EncodedRequest
from delivery.webhook.parts import Content, Destination, Numbers
from delivery.webhook.request import webhook_request
from subscriptions.payload_format import PayloadFormat

KEY = b"k" * 32
SENT_AT = 1_700_000_000
PUBLISHED_MS = 1_790_000_000_123
JSON = {"Content-Type": "application/json"}
TIME = {"ce-time": "2026-01-31T12:00:00Z"}  # else the library makes one up
THEIRS = {"ce-specversion": "1.0", "ce-id": "a%20b", "Ce-Source": "/shop", "ce-type": "Other", "ce-subject": "%C3%A9"}
OURS = {"specversion": "1.0", "id": "5", "source": "urn:broker:event:Order", "type": "Order"}
EITHER = [PayloadFormat.CLOUDEVENTS_BINARY, PayloadFormat.CLOUDEVENTS_STRUCTURED]


def sent(
    output: str, headers: dict[str, str], body: bytes = b'{"a":1}', configured: dict[str, str] | None = None
) -> EncodedRequest:
    """Return the request of message 5, an `Order`."""
    return webhook_request(
        Content(5, "Order", body, tuple(headers.items()), published_ms=PUBLISHED_MS),
        Destination(2, 1, "POST", "http://host/path", configured or {}, KEY, output=output),
        Numbers(7, 3, 1, possible_duplicate=False),
        timestamp=SENT_AT,
    )


def read(request: EncodedRequest) -> BaseCloudEvent:
    assert isinstance(request.body, bytes)
    return http.from_http(http.HTTPMessage(dict(request.headers), request.body), JSONFormat())


def attributes_of(event: BaseCloudEvent) -> dict[str, Any]:
    """Return the attributes as texts; the library reads a time as a moment."""
    attributes = {name: value for name, value in event.get_attributes().items() if value is not None}
    return attributes | ({"time": attributes["time"].isoformat()} if "time" in attributes else {})


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize("output", EITHER)
def test_what_was_published_plainly_gets_attributes_of_the_brokers(output: str) -> None:
    event = read(sent(output, {**JSON, "ce-id": "plain", "ce-tenant": "t", "ce-no-name": "x", "X-A": "1"}))
    published = {"time": "2026-09-21T14:13:20.123000+00:00", "datacontenttype": "application/json"}
    assert attributes_of(event) == {**OURS, **published, "tenant": "t"}
    assert event.get_data() == {"a": 1}


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize("output", EITHER)
def test_what_was_published_as_a_cloud_event_stays_the_one_it_was(output: str) -> None:
    event = read(sent(output, {**JSON, **THEIRS, **TIME, "ce-datacontenttype": "text/plain"}))
    theirs = {
        "time": "2026-01-31T12:00:00+00:00",
        "specversion": "1.0",
        "id": "a b",
        "source": "/shop",
        "type": "Other",
        "subject": "\u00e9",
    }
    assert attributes_of(event) == {**theirs, "datacontenttype": "application/json"}


@pytest.mark.behaviour("2.12", "2.11")
@pytest.mark.parametrize("output", EITHER)
def test_a_subscriptions_own_headers_win_but_not_over_the_form(output: str) -> None:
    configured = {"ce-tenant": "own", "content-type": "application/vnd.own+json", "X-A": "own"}
    request = sent(output, {**JSON, **THEIRS, "ce-tenant": "theirs", "X-A": "theirs"}, configured=configured)
    event = attributes_of(read(request))
    assert (event["tenant"], event["datacontenttype"]) == ("own", "application/vnd.own+json")
    assert request.headers["X-A"] == "own"
    form = {PayloadFormat.CLOUDEVENTS_STRUCTURED: "application/cloudevents+json"}.get(
        PayloadFormat(output), "application/vnd.own+json"
    )
    assert request.headers["Content-Type"] == form


@pytest.mark.behaviour("2.12")
def test_a_structured_event_has_its_attributes_in_the_body_alone() -> None:
    request = sent(PayloadFormat.CLOUDEVENTS_STRUCTURED, {**JSON, **THEIRS, "traceparent": "t"})
    assert not [name for name in request.headers if name.lower().startswith("ce-")]
    assert request.headers["traceparent"] == "t"


@pytest.mark.behaviour("2.12", "2.5")
@pytest.mark.parametrize(
    ("content_type", "body", "member"),
    [
        ("application/json", b'{"b":1, "a" :2.50}', b'"data":{"b":1, "a" :2.50}}'),
        ("application/vnd.x+json", b'"text"', b'"data":"text"}'),
        ("application/json", b"not json", b'"data_base64":"bm90IGpzb24="}'),
        ("application/json", b'"\\ud800"', b'"data_base64":"Ilx1ZDgwMCI="}'),
        ("application/json", b'"\xff"', b'"data_base64":"Iv8i"}'),
        ("text/plain", b"text", b'"data_base64":"dGV4dA=="}'),
        ("text/plain", b"", b'"datacontenttype":"text/plain"}'),
    ],
)
def test_json_stands_in_a_structured_event_to_the_letter_all_else_as_base64(
    content_type: str, body: bytes, member: bytes
) -> None:
    request = sent(PayloadFormat.CLOUDEVENTS_STRUCTURED, {"Content-Type": content_type}, body)
    assert isinstance(request.body, bytes)
    assert request.body.endswith(member)
    json.loads(request.body)


@pytest.mark.behaviour("2.12")
@given(output=st.sampled_from(EITHER), body=st.binary(min_size=1), subject=st.text(min_size=1))
def test_any_bytes_arrive_and_are_signed_as_they_are_sent(output: str, body: bytes, subject: str) -> None:
    encoded = base64.b16encode(subject.encode("utf-8", "replace")).decode()
    request = sent(output, {"Content-Type": "application/octet-stream", **THEIRS, "ce-subject": encoded}, body)
    event, raw = read(request), request.body
    assert isinstance(raw, bytes)
    data = event.get_data()
    assert (data.encode() if isinstance(data, str) else data) == body
    assert event.get_subject() == encoded
    signed = hmac.digest(KEY, b"dlv_7.%d." % SENT_AT + raw, "sha256")
    assert request.headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize("headers", [JSON, {**JSON, **THEIRS}])
def test_as_published_nothing_is_made_of_it(headers: dict[str, str]) -> None:
    request = sent(PayloadFormat.AS_PUBLISHED, headers, b"{ }")
    assert request.body == b"{ }"
    assert {name: value for name, value in request.headers.items() if name in headers} == headers
    assert ("ce-id" in request.headers) == ("ce-id" in headers)
