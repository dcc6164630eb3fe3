"""CloudEvents in and out, made and read by the library that others use (contract 2.12)."""

import datetime as dt
import json
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from django.test import Client

from broker_project.stack.load.receiver import Received, Receiver, answer
from delivery.models import Message
from subscriptions.models import EventKind, EventType
from subscriptions.payload_format import PayloadFormat
from tests.support import factories
from tests.support.api import EVENT, JSON, Answer, problem_of, stored_bodies
from tests.support.broker import Worker, wait_until_done

pytestmark = pytest.mark.behaviour("2.12")

EVENTS = "/api/v1/events"
BATCH = "application/cloudevents-batch+json"
OF_TYPE = f"{EVENTS}/{EVENT}"


def event(number: int = 1, event_type: str = EVENT, **attributes: Any) -> CloudEvent:
    known = {"id": str(number), "source": "/shop", "type": event_type, "datacontenttype": JSON, "subject": "\u00e9 1"}
    return CloudEvent({**known, **attributes}, {"order": number})


def post(client: Client, message: http.HTTPMessage, url: str = EVENTS, **headers: str) -> Answer:
    sent = {name: value for name, value in message.headers.items() if name.lower() != "content-type"}
    content_type = message.headers["content-type"]
    return client.post(url, message.body, content_type=content_type, headers={**sent, **headers})


def post_batch(client: Client, *events: CloudEvent, more: bytes = b"", headers: Any = None) -> Answer:
    documents = [http.to_structured_event(one).body for one in events]
    body = b", ".join([*documents, more] if more else documents)
    return client.post(EVENTS, b"[%s]" % body, content_type=BATCH, headers=headers)


def read(received: Received) -> BaseCloudEvent:
    return http.from_http(http.HTTPMessage(dict(received.headers), received.body), JSONFormat())


MODES = [http.to_binary_event, http.to_structured_event]


@pytest.mark.parametrize("url", [EVENTS, OF_TYPE])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("output", [*PayloadFormat])
def test_cloud_event_roundtrip(
    client: Client,
    receiver: Receiver,
    worker: Worker,
    event_type: EventType,
    mode: Any,
    output: PayloadFormat,
    url: str,
) -> None:
    sent = event(time=dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC), tenant="a b")
    wanted = factories.subscription(event_type=event_type, endpoint=receiver.url("/a"), output=output)
    type(wanted).objects.filter(pk=wanted.pk).update(filter="$$->'Header'->'Ce-tenant'->>0 = 'a%20b'")

    answered = post(client, mode(sent), url)
    wait_until_done()

    assert (answered.status_code, answered.json()["outcome"]) == (202, "ROUTED")
    (received,) = receiver.of("/a")
    arrived = read(received)
    assert arrived.get_data() == {"order": 1}
    assert {name: str(value) for name, value in arrived.get_attributes().items()} == {
        name: str(value) for name, value in sent.get_attributes().items()
    }
    assert (received.headers["content-type"] == "application/cloudevents+json") == (
        output == PayloadFormat.CLOUDEVENTS_STRUCTURED
    )


@pytest.mark.behaviour("2.7")
def test_a_batch_is_stored_in_its_order_each_event_with_its_own_type(client: Client, event_type: EventType) -> None:
    factories.event_type("Other")
    answered = post_batch(client, event(1), event(2, "Other"), event(3), headers={"X-Run": "7"})
    assert (answered.status_code, len(answered.json()["results"])) == (202, 3)
    assert [json.loads(body)["order"] for body in stored_bodies()] == [1, 2, 3]
    stored = Message.objects.order_by("id").select_related("event_type")
    assert [message.event_type and message.event_type.name for message in stored] == [EVENT, "Other", EVENT]
    assert all(["X-Run", "7"] in message.headers for message in stored)
    assert post_batch(client).json() == {"results": []}


@pytest.mark.behaviour("2.7")
@pytest.mark.parametrize(("events", "status"), [(1000, 202), (1001, 400)])
def test_a_batch_has_up_to_1000_events(client: Client, event_type: EventType, events: int, status: int) -> None:
    assert post_batch(client, *map(event, range(events))).status_code == status
    assert len(stored_bodies()) == (events if status == 202 else 0)


@pytest.mark.behaviour("2.7")
def test_a_batch_with_an_invalid_event_is_not_stored(client: Client, event_type: EventType) -> None:
    answered = post_batch(client, event(1), event(2, "Unknown"), more=b"{}")
    assert problem_of(answered) == (422, "invalid_items")
    codes = [result.get("code") for result in answered.json()["results"]]
    assert codes == [None, "unknown_event_type", "invalid_cloud_event"]
    assert stored_bodies() == []


@pytest.mark.behaviour("2.6")
def test_a_repeated_event_is_accepted_once_in_any_format(client: Client, event_type: EventType) -> None:
    first, *again = [post(client, mode(event())) for mode in [*MODES, *MODES]]
    (in_batch,) = post_batch(client, event()).json()["results"]
    other = post(client, http.to_structured_event(event(data := 1, subject="of another time")))

    assert "Idempotency-Replayed" not in first
    assert [answer.json() for answer in (*again, other)] == [{**first.json(), "replayed": True}] * 4
    assert in_batch == {**first.json(), "replayed": True}
    assert data == Message.objects.count()


@pytest.mark.behaviour("2.6")
def test_another_payload_under_the_same_source_and_id_is_refused(client: Client, event_type: EventType) -> None:
    post(client, http.to_structured_event(event()))
    other = http.to_structured_event(CloudEvent(event().get_attributes(), {"order": 2}))
    assert problem_of(post(client, other)) == (422, "idempotency_key_reused")
    assert post(client, other, **{"Idempotency-Key": "own"}).status_code == 202
    assert Message.objects.count() == 2


@pytest.mark.parametrize(
    ("message", "url", "refused"),
    [
        (http.to_binary_event(event(event_type="Other")), OF_TYPE, (400, "invalid_cloud_event")),
        (http.to_structured_event(event(event_type="Other")), OF_TYPE, (400, "invalid_cloud_event")),
        (http.to_structured_event(event(event_type="Other")), EVENTS, (404, "unknown_event_type")),
        (http.HTTPMessage({"content-type": BATCH}, b"[]"), OF_TYPE, (415, "unsuitable_content_type")),
        (http.HTTPMessage({"content-type": BATCH}, b"{}"), EVENTS, (400, "invalid_cloud_event")),
        (
            http.HTTPMessage({"content-type": JSON, "ce-specversion": "1.0"}, b"1"),
            OF_TYPE,
            (400, "invalid_cloud_event"),
        ),
        (http.to_structured_event(event(datacontenttype="text/plain")), EVENTS, (415, "unsuitable_content_type")),
    ],
)
def test_a_refused_cloud_event_says_why(
    client: Client, event_type: EventType, message: http.HTTPMessage, url: str, refused: tuple[int, str]
) -> None:
    assert problem_of(post(client, message, url)) == refused
    assert stored_bodies() == []


@pytest.mark.behaviour("2.6")
def test_a_batch_takes_no_key_for_all(client: Client, event_type: EventType) -> None:
    assert problem_of(post_batch(client, event(), headers={"Idempotency-Key": "k"})) == (400, "invalid_metadata")


@pytest.mark.behaviour("7.1")
@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("mode", MODES)
def test_a_call_may_be_a_cloud_event_and_is_made_each_time(client: Client, receiver: Receiver, mode: Any) -> None:
    called = factories.event_type("Called", EventKind.SYNC)
    receiver.on("/a", answer(200, b"yes"))
    structured = PayloadFormat.CLOUDEVENTS_STRUCTURED
    factories.subscription(event_type=called, endpoint=receiver.url("/a"), output=structured)

    answered = [post(client, mode(event(event_type="Called"))).content for _ in range(2)]

    assert answered == [b"yes", b"yes"]
    assert [read(received).get_subject() for received in receiver.of("/a")] == ["\u00e9 1"] * 2
