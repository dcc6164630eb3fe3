"""The story of a script: it makes what a subscriber wants, fails, is mended, and what was held goes out."""

import json
from typing import Any

import pytest
import requests

from tests.real_broker import TIMEOUT, Broker
from tests.receiver import Receiver, wait_until

pytestmark = pytest.mark.faults

SCRIPT = """
const project = $inmessage.original.project;
$outmessage = {fields: {status: $inmessage.updated.status, at: Date.now()}};
$outheader = {'X-Project': project.id};
$param = `/${project.id}/issues/${$inmessage.updated.id}`;
"""


def event(number: int, **original: object) -> dict[str, Any]:
    return {"original": original, "updated": {"id": f"artf{number}", "status": "open"}}


def held_of(broker: Broker, name: str) -> list[dict[str, Any]]:
    return list(broker.get("deliveries", subscriber=name, status="HELD")["items"])


@pytest.mark.behaviour("8.1", "8.3", "1.5")
def test_a_script_makes_what_is_sent_and_what_it_fails_on_waits_for_a_better_one(
    broker: Broker, receiver: Receiver
) -> None:
    update = broker.event_type("TeamForge.Artifact.Update")
    team = broker.subscribe("PATCH:" + receiver.url("/api"), update, script=SCRIPT)
    with broker.publisher() as publisher:
        for number, original in enumerate([{"project": {"id": "proj1008"}}, {}, {"project": {"id": "proj1010"}}]):
            address = f"{broker.web}/api/v1/events/{update}"
            publisher.post(address, json=event(number, **original), timeout=TIMEOUT).raise_for_status()
    wait_until(lambda: len(receiver.log) == 2)
    first, second = receiver.log
    assert (first.method, first.path) == ("PATCH", "/api/proj1008/issues/artf0")
    assert (second.path, second.headers["x-project"], second.sequence) == (
        "/api/proj1010/issues/artf2",
        "proj1010",
        2,
    )
    assert json.loads(second.body)["fields"]["status"] == "open"
    (held,) = held_of(broker, team.name)
    assert held["reason"].startswith("script failed: TypeError: cannot read property 'id' of undefined")
    mend(broker, team.name, SCRIPT.replace(".project;", ".project ?? {id: 'none'};"))
    change(broker, f"deliveries/{held['id']}/release")
    wait_until(lambda: len(receiver.log) == 3)
    assert (receiver.log[-1].path, receiver.log[-1].sequence) == ("/api/none/issues/artf1", 3)
    wait_until(lambda: broker.has_finished([team]))


def mend(broker: Broker, subscriber: str, script: str) -> None:
    (subscription,) = broker.get("subscriptions", subscriber=subscriber)["items"]
    address = f"{broker.web}/api/v1/subscriptions/{subscription['id']}"
    requests.patch(address, json={"script": script}, headers=key_of(broker), timeout=TIMEOUT).raise_for_status()


def change(broker: Broker, path: str) -> None:
    requests.post(f"{broker.web}/api/v1/{path}", headers=key_of(broker), timeout=TIMEOUT).raise_for_status()


def key_of(broker: Broker) -> dict[str, str]:
    return {"Authorization": f"Bearer {broker.management.token}"}
