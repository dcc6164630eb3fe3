"""What clients read of a message that they have fetched (contract 9.1)."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.api.bodies import JsonRenderer
from delivery.mailbox.fetch_messages import message_document
from delivery.mailbox.receipts import FetchedMessage
from delivery.webhook.cloud_event_output import in_payload_format
from delivery.webhook.content import Content
from subscriptions.payload_format import PayloadFormat

CONTENT = Content(
    message_id=45,
    event_type="Shop.Order.Paid",
    body=b'{"a": 1}',
    headers=(("X-Trace", "1"), ("Content-Type", "application/json")),
    content_type="application/json",
    published_ms=1_795_000_000_123,
)
FETCHED = FetchedMessage(
    delivery_id=123,
    fetch_id=1,
    redeliveries=0,
    subscription_id=7,
    until=datetime(2026, 11, 22, 12, 0, 30, tzinfo=UTC),
    seconds=29.75,
    content=CONTENT,
    is_uncertain=False,
)


def read(fetched: FetchedMessage) -> Any:
    return json.loads(JsonRenderer().render(message_document(fetched, receipt="r")))


def body_of(document: Any) -> bytes:
    """Return the body as a client finds it: in one of the two fields, never in both."""
    (body,) = [document["body"].encode()] if "body" in document else [base64.b64decode(document["body_base64"])]
    assert ("body" in document) != ("body_base64" in document)
    return body


def test_times_of_a_message_are_in_utc_and_its_time_in_flight_is_in_seconds() -> None:
    document = read(FETCHED)
    assert (document["published_at"], document["in_flight_until"], document["in_flight_seconds"]) == (
        "2026-11-18T11:06:40.123000Z",
        "2026-11-22T12:00:30Z",
        29.75,
    )


@pytest.mark.behaviour("9.2")
@pytest.mark.parametrize(
    ("redeliveries", "is_uncertain", "possible_duplicate"),
    [(0, False, False), (1, False, True), (4, False, True), (0, True, True), (1, True, True)],
)
def test_duplicates_are_flagged(redeliveries: int, is_uncertain: bool, possible_duplicate: bool) -> None:
    document = read(replace(FETCHED, redeliveries=redeliveries, is_uncertain=is_uncertain))
    assert (document["redeliveries"], document["possible_duplicate"]) == (redeliveries, possible_duplicate)


@pytest.mark.behaviour("2.5")
@pytest.mark.parametrize(
    ("body", "is_text"),
    [
        (b"", True),
        (b"\x00\x1f\x7f", True),
        (b"\xef\xbb\xbf{}", True),
        ("ä\u2028\U0001f600".encode(), True),
        (b'{"n": ' + b"9" * 5000 + b"}", True),
        (b"[" * 2000 + b"]" * 2000, True),
        (b"\xff", False),
        (b"\xed\xa0\x80", False),
        (b"\x1f\x8b\x08\x00", False),
    ],
)
def test_the_body_is_the_bytes_that_were_published(body: bytes, is_text: bool) -> None:
    document = read(replace(FETCHED, content=replace(CONTENT, body=body)))
    assert (body_of(document), "body" in document) == (body, is_text)


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_any_bytes_come_back(body: bytes) -> None:
    assert body_of(read(replace(FETCHED, content=replace(CONTENT, body=body)))) == body


@pytest.mark.behaviour("2.12")
def test_a_message_that_is_wanted_as_a_cloud_event_has_its_content_type() -> None:
    document = read(replace(FETCHED, content=in_payload_format(CONTENT, PayloadFormat.CLOUDEVENTS_STRUCTURED, {})))
    assert document["content_type"].startswith("application/cloudevents+json")
    assert document["headers"] == {"X-Trace": "1"}
    assert (json.loads(document["body"])["id"], json.loads(document["body"])["data"]) == ("45", {"a": 1})
