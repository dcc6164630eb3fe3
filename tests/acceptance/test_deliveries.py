"""Filters, scripts and CloudEvents, from a real publish to a real endpoint."""

import json
from collections.abc import Iterator

import pytest
from cloudevents.v1.conversion import to_binary, to_json, to_structured
from cloudevents.v1.http import CloudEvent, from_http
from standardwebhooks import Webhook

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from subscriptions.payload_format import PayloadFormat
from tests.support.real_broker import Broker, Subscribed

pytestmark = pytest.mark.faults

BATCHED = {"Content-Type": "application/cloudevents-batch+json"}
SUBJECT = "of-2026"
"""Needs no encoding, because this library does not decode headers."""
FORMS = {output: f"/{output.lower()}" for output in PayloadFormat}


SCRIPT = """
const project = $inmessage.original.project;
$outmessage = {fields: {status: $inmessage.updated.status, at: Date.now()}};
$outheader = {'X-Project': project.id};
$param = `/${project.id}/issues/${$inmessage.updated.id}`;
"""


@pytest.mark.behaviour("8.1", "8.3", "1.5")
def test_a_script_makes_requests_and_its_failure_waits_for_a_release(broker: Broker, receiver: Receiver) -> None:
    update = broker.event_type("TeamForge.Artifact.Update")
    team = broker.subscribe("PATCH:" + receiver.url("/api"), update, script=SCRIPT)
    for number, original in enumerate([{"project": {"id": "proj1008"}}, {}, {"project": {"id": "proj1010"}}]):
        artifact = {"original": original, "updated": {"id": f"artf{number}", "status": "open"}}
        broker.publish(update, json.dumps(artifact).encode()).raise_for_status()
    wait_until(lambda: len(receiver.log) == 2)
    first, second = receiver.log
    assert (first.method, first.path) == ("PATCH", "/api/proj1008/issues/artf0")
    assert (second.path, second.headers["x-project"], second.sequence) == ("/api/proj1010/issues/artf2", "proj1010", 2)
    assert json.loads(second.body)["fields"]["status"] == "open"
    (held,) = broker.get("deliveries", subscriber=team.name, status="HELD")["items"]
    assert held["reason"].startswith("script failed: TypeError: cannot read property 'id' of undefined")
    subscription = broker.subscription(team.name)
    corrected = SCRIPT.replace(".project;", ".project ?? {id: 'none'};")
    broker.change(f"subscriptions/{subscription['id']}", script=corrected)
    broker.management.create(f"deliveries/{held['id']}/release")
    wait_until(lambda: len(receiver.log) == 3)
    assert (receiver.log[-1].path, receiver.log[-1].sequence) == ("/api/none/issues/artf1", 3)
    wait_until(lambda: broker.has_finished([team]))


def order_event(event_type: str, number: int) -> CloudEvent:
    attributes = {"type": event_type, "source": "https://shop.example/orders", "id": f"order-{number}"}
    known = {"subject": SUBJECT, "datacontenttype": "application/json", "tenant": "north"}
    return CloudEvent(attributes | known, {"order": number})


@pytest.fixture
def event_type(broker: Broker) -> str:
    return broker.event_type("Test.CloudEvent")


@pytest.fixture
def subscribers(broker: Broker, receiver: Receiver, event_type: str) -> Iterator[dict[PayloadFormat, Subscribed]]:
    """Yield a subscriber for each payload format."""
    yield {form: broker.subscribe(receiver.url(path), event_type, output=form.value) for form, path in FORMS.items()}
    broker.inactivate_all()


@pytest.mark.behaviour("2.12", "2.6")
def test_events_of_every_mode_arrive_once_and_signed_in_every_format(
    broker: Broker, receiver: Receiver, event_type: str, subscribers: dict[PayloadFormat, Subscribed]
) -> None:
    first, second, *batch = sent = [order_event(event_type, number) for number in range(5)]
    documents = b"[%s]" % b", ".join(map(to_json, batch))
    posts = [(event_type, *to_binary(first)), ("", *to_structured(second)), ("", BATCHED, documents)]

    answers = [broker.publish(path, body, headers) for path, headers, body in [*posts, *posts]]
    assert {answer.status_code for answer in answers} == {202}
    wait_until(lambda: broker.has_finished(subscribers.values()), saying=lambda: receiver.log[-5:])

    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [*[None] * 3, *["true"] * 2, None]
    assert all(result["replayed"] for result in answers[-1].json()["results"])
    for output, subscriber in subscribers.items():
        arrived = receiver.of(FORMS[output])
        assert [from_http(dict(one.headers), one.body) for one in arrived] == sent
        for one in arrived:
            Webhook(subscriber.secrets[event_type]).verify(one.body, dict(one.headers))
