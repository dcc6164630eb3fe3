"""JSON that is nested deep and batches that are long, over real HTTP: refused, never a failure, nothing half stored."""

import json
from typing import Any

import pytest
import requests

from tests.real_broker import TIMEOUT, Broker

pytestmark = pytest.mark.faults

JSON = "application/json"
DEPTHS = [1_100, 2_000, 50_000]

CONFIGURED = [
    *("event-types", "publishers", "subscribers", "subscriptions", "retry-policies", "api-keys"),
    *("filters/test", "scripts/test", "replays"),
]


def deep(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + "1" * (opening != "[") + closing * depth


@pytest.fixture(params=["array", "object"])
def nested(request: pytest.FixtureRequest) -> Any:
    """How something is made that is so many levels deep."""
    return {"array": deep, "object": lambda depth: deep(depth, '{"a":', "}")}[request.param]


def problem(answer: requests.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def post(session: requests.Session, address: str, body: str, content_type: str = JSON) -> requests.Response:
    return session.post(address, body.encode(), headers={"Content-Type": content_type}, timeout=TIMEOUT)


@pytest.mark.parametrize("depth", DEPTHS)
def test_what_is_published_as_json_is_so_deep_at_most(broker: Broker, nested: Any, depth: int) -> None:
    publisher, event_type = broker.publisher(), broker.event_type()
    events = f"{broker.web}/api/v1/events"
    attributes = f'"specversion": "1.0", "type": "{event_type}", "source": "/s", "id": "1"'
    structured = f'{{{attributes}, "data": {nested(depth)}}}'
    refused = [
        post(publisher, f"{events}/{event_type}", nested(depth)),
        post(publisher, events, f'{{"events": [{{"event": "{event_type}", "body": {nested(depth)}}}]}}'),
        post(publisher, events, nested(depth)),
        post(publisher, events, structured, "application/cloudevents+json"),
        post(publisher, events, f"[{structured}]", "application/cloudevents-batch+json"),
        post(publisher, f"{events}/{event_type}", nested(depth), "application/cloudevents+json"),
    ]
    assert {problem(answer)[0] for answer in refused} <= {400, 422}
    assert broker.get("messages", event_type=event_type)["items"] == []


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("path", CONFIGURED)
def test_what_configures_is_so_deep_at_most(broker: Broker, nested: Any, depth: int, path: str) -> None:
    management = requests.Session()
    management.headers["Authorization"] = f"Bearer {broker.management.token}"
    for body in (nested(depth), f'{{"name": {nested(depth)}, "schema": {nested(depth)}}}'):
        assert problem(post(management, f"{broker.web}/api/v1/{path}", body)) == (400, "malformed_body")


def test_bytes_that_are_no_json_to_the_broker_may_look_as_they_like(broker: Broker, nested: Any) -> None:
    publisher, event_type = broker.publisher(), broker.event_type(content_type="text/plain")
    answer = post(publisher, f"{broker.web}/api/v1/events/{event_type}", nested(100_000), "text/plain")
    assert answer.status_code == 202


@pytest.mark.behaviour("2.7")
@pytest.mark.parametrize(
    ("cloud_events", "size", "status"),
    [
        *((False, 0, 400), (False, 1, 202), (False, 1_000, 202), (False, 1_001, 400)),
        *((True, 0, 202), (True, 1, 202), (True, 1_000, 202), (True, 1_001, 400)),  # their format has empty batches
    ],
)
def test_a_batch_has_up_to_a_thousand_events(broker: Broker, *, cloud_events: bool, size: int, status: int) -> None:
    publisher, event_type = broker.publisher(), broker.event_type()
    own: Any = {"events": [{"event": event_type, "body": number} for number in range(size)]}
    theirs = [
        {"specversion": "1.0", "type": event_type, "source": "/s", "id": str(number), "data": 1}
        for number in range(size)
    ]
    content_type = "application/cloudevents-batch+json" if cloud_events else JSON
    body = json.dumps(theirs if cloud_events else own)
    answer = post(publisher, f"{broker.web}/api/v1/events", body, content_type)
    assert answer.status_code == status, answer.text[:500]
    stored = broker.ask(
        "SELECT count(*) FROM delivery_message m JOIN subscriptions_eventtype e ON e.id = m.event_type_id"
        " WHERE e.name = %(name)s",
        name=event_type,
    )
    assert stored == [(size if status == 202 else 0,)]
