"""CloudEvents over the real web server: made, read and verified by libraries that know nothing of the broker."""

from collections.abc import Iterator

import pytest
import requests
from cloudevents.v1.conversion import to_binary, to_json, to_structured
from cloudevents.v1.http import CloudEvent, from_http
from standardwebhooks import Webhook

from subscriptions.payload_format import PayloadFormat
from tests.real_broker import TIMEOUT, Broker, Subscribed
from tests.receiver import Receiver, wait_until

pytestmark = pytest.mark.faults

BATCHED = {"Content-Type": "application/cloudevents-batch+json"}
SUBJECT = "of-2026"
"""This library takes headers as they are: what would be encoded, it does not read."""
FORMS = {output: f"/{output.lower()}" for output in PayloadFormat}


def event(event_type: str, number: int) -> CloudEvent:
    attributes = {"type": event_type, "source": "https://shop.example/orders", "id": f"order-{number}"}
    known = {"subject": SUBJECT, "datacontenttype": "application/json", "tenant": "north"}
    return CloudEvent(attributes | known, {"order": number})


@pytest.fixture
def event_type(broker: Broker) -> str:
    return broker.event_type("Test.CloudEvent")


@pytest.fixture
def subscribers(broker: Broker, receiver: Receiver, event_type: str) -> Iterator[dict[PayloadFormat, Subscribed]]:
    """One for each form in which events are sent."""
    yield {
        output: broker.subscribe(receiver.url(path), event_type, output=output.value) for output, path in FORMS.items()
    }
    broker.inactivate_all()


@pytest.mark.behaviour("2.12", "2.6")
def test_events_sent_in_every_mode_arrive_in_every_form_once_and_signed(
    broker: Broker, receiver: Receiver, event_type: str, subscribers: dict[PayloadFormat, Subscribed]
) -> None:
    first, second, *batch = sent = [event(event_type, number) for number in range(5)]
    documents = b"[%s]" % b", ".join(map(to_json, batch))
    posts = [(f"/{event_type}", *to_binary(first)), ("", *to_structured(second)), ("", BATCHED, documents)]

    with broker.publisher() as publisher:
        answers = [published(publisher, broker, *post) for post in [*posts, *posts]]
    wait_until(lambda: broker.has_finished(subscribers.values()), saying=lambda: receiver.log[-5:])

    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [
        None,
        None,
        None,
        "true",
        "true",
        None,
    ]
    assert all(result["replayed"] for result in answers[-1].json()["results"])
    for output, subscriber in subscribers.items():
        arrived = receiver.of(FORMS[output])
        assert [from_http(dict(one.headers), one.body) for one in arrived] == sent
        for one in arrived:
            Webhook(subscriber.secrets[event_type]).verify(one.body, dict(one.headers))


def published(
    publisher: requests.Session, broker: Broker, path: str, headers: dict[str, str], body: bytes
) -> requests.Response:
    answer = publisher.post(f"{broker.web}/api/v1/events{path}", body, headers=headers, timeout=TIMEOUT)
    answer.raise_for_status()
    return answer
