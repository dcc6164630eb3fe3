"""Opening CloudEvents: attributes, forms, payloads, and what none is (contract 2.12; CloudEvents 1.0.2)."""

import json
from typing import Any

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from delivery.publish.cloud_events import attribute_value, header_value, read_batch, read_event
from delivery.publish.draft import Draft
from delivery.publish.errors import InvalidCloudEvent, Refusal, UnsuitableContentType

STRUCTURED = "application/cloudevents+json"
EVENT: dict[str, Any] = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "Order"}
HEADERS = [("ce-specversion", "1.0"), ("ce-id", "7"), ("CE-Source", "/shop"), ("ce-type", "Order")]

WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Co")), min_size=1, max_size=40)
EXTENSIONS = st.dictionaries(st.from_regex("x[a-z0-9]{1,10}", fullmatch=True), WORDS, max_size=4)


def structured(text: str, event_type: str = "Order", headers: Any = (), **fields: Any) -> Draft:
    return read_event(Draft(event_type, text.encode(), STRUCTURED, headers, **fields))


def event(**members: Any) -> str:
    return json.dumps(EVENT | members)


def values_of(draft: Draft | Refusal) -> dict[str, str]:
    assert isinstance(draft, Draft)
    return {name.lower(): value for name, value in draft.headers}


@pytest.mark.behaviour("2.12")
@given(id_=WORDS, source=WORDS, extensions=EXTENSIONS, data=st.dictionaries(st.text(), st.integers()))
def test_both_modes_open_to_the_same(id_: str, source: str, extensions: dict[str, str], data: dict[str, int]) -> None:
    attributes = {"id": id_, "source": source, "type": "Order", "datacontenttype": "application/json", **extensions}
    made = [make(CloudEvent(attributes, data)) for make in (http.to_binary_event, http.to_structured_event)]

    binary, structured = [
        read_event(Draft("", one.body, one.headers["content-type"], [*one.headers.items()])) for one in made
    ]

    assert (binary.event_type, binary.content_type) == ("Order", "application/json")
    assert json.loads(binary.body) == json.loads(structured.body) == data
    assert values_of(binary) == values_of(structured)
    assert binary.idempotency_key == structured.idempotency_key
    assert (structured.event_type, structured.content_type) == ("Order", "application/json")


@pytest.mark.behaviour("2.12")
@given(WORDS)
def test_attribute_values_survive_header_encoding(value: str) -> None:
    assert attribute_value(header_value(value)) == value
    assert header_value(value).isascii()


def test_a_quoted_header_is_unquoted() -> None:
    assert attribute_value(r'"a\"b%20c"') == 'a"b c'


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize("header", ["ce-id", "Ce-Source", "ce-extension"])
@pytest.mark.parametrize("value", ["a%FF", "%ED%A0%80", '"a%C3"'])
def test_an_attribute_that_is_no_utf_8_is_refused(header: str, value: str) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/", "ce-type": "Order"}
    sent = {name: text for name, text in headers.items() if name != header.lower()} | {header: value}
    with pytest.raises(InvalidCloudEvent, match=f"'{header}' is not percent-encoded UTF-8"):
        read_event(Draft("", b"{}", "application/json", [*sent.items()]))


def test_a_header_that_is_no_attribute_may_be_anything() -> None:
    draft = Draft("Order", b"{}", "application/json", [("ce-id", "a%FF")])
    assert read_event(draft) is draft


PAYLOADS = [
    ('"data": {"b":1, "a" :2.50}', "application/json", b'{"b":1, "a" :2.50}'),
    ('"data": null', "application/json", b"null"),
    ('"datacontenttype": "application/vnd.x+json", "data": "<"', "application/vnd.x+json", b'"<"'),
    ('"datacontenttype": "text/plain", "data": "\\u00e9"', "text/plain", "\u00e9".encode()),
    ('"datacontenttype": "image/png", "data_base64": "AAH/"', "image/png", b"\x00\x01\xff"),
    ('"data_base64": "AAH/"', None, b"\x00\x01\xff"),
    ('"datacontenttype": "text/plain"', "text/plain", b""),
    ('"subject": null', None, b""),
]


@pytest.mark.behaviour("2.12", "2.5")
@pytest.mark.parametrize(("member", "content_type", "body"), PAYLOADS)
def test_a_payload_is_read_as_bytes(member: str, content_type: str | None, body: bytes) -> None:
    draft = structured(f"{event()[:-1]}, {member}}}", headers=[("Content-Type", STRUCTURED), ("X-A", "1")])
    assert (draft.body, draft.content_type, values_of(draft).get("content-type")) == (body, content_type, content_type)
    assert values_of(draft)["x-a"] == "1"


def test_attributes_of_every_type_become_headers() -> None:
    draft = structured(event(ok=True, n=-7, subject="a b%\u00e9"), headers=[("ce-id", "of the envelope")])
    own = dict(draft.headers)
    assert len(own) == len(draft.headers)
    ours = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/shop", "ce-type": "Order"}
    assert own == ours | {"ce-ok": "true", "ce-n": "-7", "ce-subject": "a%20b%25%C3%A9"}


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize(
    "time", ["2026-01-31t12:00:00.123456789z", "2016-12-31T23:59:60Z", "2017-01-01T00:59:60.5+01:00"]
)
def test_a_time_is_as_in_rfc_3339(time: str) -> None:
    assert values_of(structured(event(time=time)))["ce-time"] == time


NONE: list[dict[str, Any]] = [
    *({name: value} for name in EVENT for value in ("", None, 5.5)),
    {"specversion": "0.3"},
    {"Upper": "x"},
    {"with-hyphen": "x"},
    {"n": 2**31},
    {"n": 1.0},
    {"x": {}},
    {"x": "a\nb"},
    {"x": "\ud800"},
    {"subject": ""},
    {"time": "yesterday"},
    {"time": "2026-02-30T00:00:00Z"},
    {"time": "2016-12-31T23:59:61Z"},
    {"type": "Another"},
    {"data": 1, "data_base64": "AA=="},
    {"data_base64": "no base64"},
    {"data_base64": 5},
    {"datacontenttype": "text/plain", "data": 5},
    {"datacontenttype": "text/plain", "data": "\ud800"},
]


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize("members", NONE)
def test_an_invalid_cloud_event_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(InvalidCloudEvent):
        structured(event(**members))


@pytest.mark.parametrize("text", ["", "[]", "5", "{", '{"id": 1, "id": 2}', f"{event()} 5", "\udcff"])
def test_a_body_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidCloudEvent):
        read_event(Draft("", text.encode(errors="surrogateescape"), STRUCTURED))


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize("missing", range(1, 4))
def test_a_binary_event_without_a_required_attribute_is_refused(missing: int) -> None:
    with pytest.raises(InvalidCloudEvent):
        read_event(Draft("Order", b"", "text/plain", [one for n, one in enumerate(HEADERS) if n != missing]))


def test_headers_without_a_version_are_no_attributes() -> None:
    draft = Draft("Order", b"", "text/plain", HEADERS[1:])
    assert read_event(draft) is draft


@pytest.mark.parametrize("content_type", ["application/cloudevents+avro", "application/cloudevents-batch+json"])
def test_a_form_that_is_not_taken_is_refused(content_type: str) -> None:
    with pytest.raises(UnsuitableContentType):
        read_event(Draft("Order", b"[]", content_type))


@pytest.mark.behaviour("2.6", "2.12")
def test_source_and_id_are_the_default_idempotency_key() -> None:
    keys = [structured(event(**members)).idempotency_key for members in ({}, {"x": "1"}, {"id": "8"}, {"source": "/"})]
    assert keys[0] == keys[1] == read_event(Draft("Order", b"", None, HEADERS)).idempotency_key
    assert len({*keys}) == 3
    assert structured(event(), idempotency_key="k").idempotency_key == "k"


@pytest.mark.behaviour("2.7", "2.12")
def test_a_batch_is_opened_item_by_item() -> None:
    body = f"[{event()}, {event(id='')}, {event(type='Other', data=1)}]".encode()
    first, second, third = read_batch(Draft("", body, headers=[("X-A", "1")]), max_items=3)
    assert isinstance(second, InvalidCloudEvent)
    assert [values_of(one)["ce-type"] for one in (first, third)] == ["Order", "Other"]
    assert [values_of(one)["x-a"] for one in (first, third)] == ["1", "1"]
    assert read_batch(Draft("", b"[]"), max_items=3) == []
    for wrong in (b"{}", b"[1]", b"[", body.replace(b"]", b", {}]")):
        with pytest.raises(InvalidCloudEvent):
            read_batch(Draft("", wrong), max_items=3)
