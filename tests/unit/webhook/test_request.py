"""The request of a delivery: headers, signature, CloudEvents (contract 2.11, 2.12, 4.10, 4.11)."""

import base64
import hmac
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st
from requests.structures import CaseInsensitiveDict
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from delivery.http.transfer import EncodedRequest
from delivery.webhook.content import Content, content_of, is_forwarded, kept, merged
from delivery.webhook.destination import Destination
from delivery.webhook.request import RequestIdentity, _lines_of_content, add_sequence, webhook_request
from subscriptions.credentials.tokens import secret_of
from subscriptions.payload_format import PayloadFormat
from tests.support.factories import signature

KEY = b"k" * 32
JSON = {"Content-Type": "application/json"}
SENT_AT = 1_700_000_000

PUBLISHED_MS = 1_790_000_000_123

TIME = {"ce-time": "2026-01-31T12:00:00Z"}  # else the library makes one up
THEIRS = {"ce-specversion": "1.0", "ce-id": "a%20b", "Ce-Source": "/shop", "ce-type": "Other", "ce-subject": "%C3%A9"}
OURS = {"specversion": "1.0", "id": "5", "source": "urn:broker:event:Order", "type": "Order"}
EITHER = [PayloadFormat.CLOUDEVENTS_BINARY, PayloadFormat.CLOUDEVENTS_STRUCTURED]


def headers_with(**forged: str) -> CaseInsensitiveDict[str]:
    """Return the headers of a request, where others have set these too."""
    made = webhook_request(
        Content(5, "Test.Event", b"{}", tuple(forged.items())),
        Destination(2, 1, "POST", "http://host/path", forged, KEY),
        RequestIdentity("dlv_7", 2),
        timestamp=SENT_AT,
    )
    add_sequence(made, 3)
    return made.headers


@pytest.mark.behaviour("4.11", "6.7")
def test_a_request_of_a_group_has_the_groups_id_no_sequence_and_the_brokers_callback_url() -> None:
    theirs = Destination(2, 1, "POST", "http://host/path", {"callbackurl": "http://somewhere/else"}, KEY)
    content = Content(5, "Test.Event", b"{}", tuple(JSON.items()))
    numbers = RequestIdentity("grp_9", callback_url="http://broker/token")
    sent = webhook_request(content, theirs, numbers, timestamp=SENT_AT)
    assert sent.headers["webhook-id"] == "grp_9"
    assert sent.headers["webhook-signature"] == signature(KEY, webhook_id="grp_9", timestamp=SENT_AT, body=b"{}")
    assert "Webhook-Sequence" not in sent.headers
    assert [value for name, value in sent.headers.items() if name.lower() == "callbackurl"] == ["http://broker/token"]


OWN = ["User-Agent", "webhook-id", "webhook-timestamp", "webhook-signature", "Webhook-Sequence", "Webhook-Attempt"]
OWN += ["Broker-Event-Type", "Broker-Message-Id"]


@pytest.mark.behaviour("2.11")
@pytest.mark.parametrize("name", OWN)
def test_the_brokers_headers_win(name: str) -> None:
    values = [value for key, value in headers_with(**{name.upper(): "forged"}).items() if key.lower() == name.lower()]
    assert values == [headers_with()[name]]


@pytest.mark.behaviour("2.11")
def test_header_layers_merge_by_name_in_any_case() -> None:
    layers = {"X-A": "publisher", "X-P": "1"}, {"x-a": "subscriber", "X-S": "2"}, {"X-a": "subscription"}
    assert merged(*layers) == {"X-a": "subscription", "X-P": "1", "X-S": "2"}


def names(text: str) -> list[str]:
    return text.split()


KEPT = ["Content-Type", "Accept", "FILTER_STRING", "X-Anything"]
NOT_KEPT = names(
    """
    Authorization COOKIE Host Content-Length Transfer-Encoding Connection Keep-Alive Proxy-Authorization TE Trailer
    Upgrade Expect
    """
)
FORWARDED = names(
    """
    Content-Type content-type ce-id Ce-Source X-Anything traceparent Traceparent X-Hosting-Plan X-Schemes
    X-Consumers X-Token X-Arrival X-Original X-Request-Id X-GitHub-Event X-Realm X-Goog-Channel-Id
    """
)
NOT_FORWARDED = names(
    """
    tracestate Accept FILTER_STRING Filter-String Idempotency-Key User-Agent X-Forwarded-For x-forwarded
    X-FORWARDED-PREFIX X-Forwarded_For X-Real-IP X-Remote-User X-Client-IP X-Original-URL X-Rewrite-URL
    X-HTTP-Method X-HTTP-Method-Override X-Method-Override X-Accel-Redirect X-Auth-Request-User X-Consumer-Username
    X-Anonymous-Consumer X-Credential-Identifier X-WebAuth-User X-Authenticated-Userid X-Token-Subject X-Userinfo
    X-Scheme X_Url_Scheme X-Url-Scheme X-ARR-LOG-ID X-Azure-ClientIP X-True-Client-IP X-Host X-Cluster-Client-IP
    X-Original-Host webhook-id cesium
    """
)


@pytest.mark.behaviour("2.11")
@pytest.mark.parametrize("name", [*KEPT, *NOT_KEPT])
def test_headers_that_are_kept(name: str) -> None:
    assert kept([(name, "v")]) == ([(name, "v")] if name in KEPT else [])


@pytest.mark.behaviour("2.11")
def test_headers_that_connection_names_are_not_kept() -> None:
    headers = [("X-Hop", "1"), ("Connection", "close, x-hop"), ("connection", "X-Other "), ("X-Other", ""), ("X-A", "")]
    assert kept(headers) == [("X-A", "")]


@pytest.mark.behaviour("2.11")
@pytest.mark.parametrize("name", [*FORWARDED, *NOT_FORWARDED])
def test_headers_that_are_forwarded(name: str) -> None:
    assert is_forwarded(name) == (name in FORWARDED)


@pytest.mark.parametrize(("length", "is_kept"), [(100, True), (5_000, False)])
def test_long_headers_do_not_stay_in_memory(length: int, *, is_kept: bool) -> None:
    stored = json.dumps([["X-Long", "x" * length]])
    first, second = (content_of(number, "E", b"{}", "text/plain", stored, 0) for number in (1, 2))
    assert (first.headers is second.headers) == is_kept
    before = _lines_of_content.cache_info().currsize
    webhook_request(first, Destination(2, 1, "POST", "http://host/path", {}), RequestIdentity("id"), timestamp=1)
    assert (_lines_of_content.cache_info().currsize > before) == is_kept


def verify(key: bytes, body: bytes, headers: dict[str, str]) -> None:
    """Verify as a receiver does; the library decodes what it has verified as JSON, which is not its business here."""
    try:
        Webhook(secret_of(key)).verify(body, headers)
    except ValueError as not_json:
        assert not isinstance(not_json, WebhookVerificationError)  # noqa: PT017 - a body is any bytes


@given(key=st.binary(min_size=24, max_size=70), number=st.integers(1, 2**62), body=st.text().map(str.encode))
def test_a_receiver_can_verify_every_signature(key: bytes, number: int, body: bytes) -> None:
    now = int(datetime.now(UTC).timestamp())  # here: the library refuses what is older than five minutes
    destination = Destination(2, 1, "POST", "http://host/path", {}, key)
    sent = webhook_request(Content(5, "E", body, ()), destination, RequestIdentity(f"dlv_{number}"), timestamp=now)
    headers = dict(sent.headers)
    verify(key, body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_of(key)).verify(body + b" ", headers)


@pytest.mark.parametrize(("timestamp", "keys"), [(SENT_AT - 1, 3), (SENT_AT, 2), (SENT_AT + 9, 2), (SENT_AT + 10, 1)])
def test_former_keys_sign_requests_until_their_end(timestamp: int, keys: int) -> None:
    all_keys = [KEY, b"f" * 32, b"g" * 32]
    destination = Destination(
        *(2, 1, "POST", "http://host/path", {}, KEY), former_keys=((all_keys[1], SENT_AT + 10), (all_keys[2], SENT_AT))
    )
    content, numbers = Content(5, "Test.Event", b"{}", ()), RequestIdentity("dlv_7", 2)
    sent = webhook_request(content, destination, numbers, timestamp=timestamp)
    signed = [signature(key, webhook_id="dlv_7", timestamp=timestamp, body=b"{}") for key in all_keys[:keys]]
    assert sent.headers["webhook-signature"] == " ".join(signed)


def sent(
    output: str, headers: dict[str, str], body: bytes = b'{"a":1}', configured: dict[str, str] | None = None
) -> EncodedRequest:
    """Return the request of message 5, an `Order`."""
    return webhook_request(
        Content(5, "Order", body, tuple(headers.items()), published_ms=PUBLISHED_MS),
        Destination(2, 1, "POST", "http://host/path", configured or {}, KEY, output=output),
        RequestIdentity("dlv_7"),
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
def test_a_plain_message_gets_the_brokers_attributes(output: str) -> None:
    event = read(sent(output, {**JSON, "ce-id": "plain", "ce-tenant": "t", "ce-no-name": "x", "X-A": "1"}))
    published = {"time": "2026-09-21T14:13:20.123000+00:00", "datacontenttype": "application/json"}
    assert attributes_of(event) == {**OURS, **published, "tenant": "t"}
    assert event.get_data() == {"a": 1}


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize("output", EITHER)
def test_a_published_cloud_event_keeps_its_attributes(output: str) -> None:
    event = read(sent(output, {**JSON, **THEIRS, **TIME, "ce-datacontenttype": "text/plain"}))
    theirs = {"time": "2026-01-31T12:00:00+00:00", "specversion": "1.0", "id": "a b", "source": "/shop"}
    theirs |= {"type": "Other", "subject": "\u00e9"}
    assert attributes_of(event) == {**theirs, "datacontenttype": "application/json"}


@pytest.mark.behaviour("2.12", "2.11")
@pytest.mark.parametrize("output", EITHER)
def test_a_subscriptions_headers_win_but_not_over_the_format(output: str) -> None:
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
def test_a_structured_event_has_json_or_base64_payloads(content_type: str, body: bytes, member: bytes) -> None:
    request = sent(PayloadFormat.CLOUDEVENTS_STRUCTURED, {"Content-Type": content_type}, body)
    assert isinstance(request.body, bytes)
    assert request.body.endswith(member)
    json.loads(request.body)


@pytest.mark.behaviour("2.12")
@given(output=st.sampled_from(EITHER), body=st.binary(min_size=1), subject=st.text(min_size=1))
def test_any_payload_of_a_cloud_event_arrives_and_is_signed(output: str, body: bytes, subject: str) -> None:
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
def test_the_format_as_published_changes_nothing(headers: dict[str, str]) -> None:
    request = sent(PayloadFormat.AS_PUBLISHED, headers, b"{ }")
    assert request.body == b"{ }"
    assert {name: value for name, value in request.headers.items() if name in headers} == headers
    assert ("ce-id" in request.headers) == ("ce-id" in headers)
