"""The documented examples of filters, from a real publish to a real endpoint."""

import json
from dataclasses import dataclass

import pytest

from tests.real_broker import TIMEOUT, Broker
from tests.receiver import Receiver, wait_until

pytestmark = pytest.mark.faults

PROJECT = {"original": {"project": {"id": "proj1008"}}}
EFFORT = {"original": {"fields": {"actualEffort": 3}}, "updated": {"fields": {"actualEffort": 3}}}


@dataclass(frozen=True, slots=True)
class Example:
    """A filter, a body that gets through and one that does not."""

    text: str
    qualifying: object
    other: object
    filter_strings: tuple[str, str] = ("", "")


EXAMPLES = {
    "equal": Example("$$->'Body'->'original'->'project'->>'id' = 'proj1008'", PROJECT, {"original": {}}),
    "one-of": Example(
        "$$->'Body'->'original'->'project'->>'id' in ('proj1008','proj1010')",
        PROJECT,
        {"original": {"project": {"id": "proj1009"}}},
    ),
    "two-fields": Example(
        "$$->'Body'->'original'->'fields'->'actualEffort' != $$->'Body'->'updated'->'fields'->'actualEffort'",
        {**EFFORT, "updated": {"fields": {"actualEffort": 5}}},
        {**EFFORT, "updated": {"fields": {"actualEffort": 3.0}}},
    ),
    "true": Example("$$->'Body'->>'paged' = 'true'", {"paged": True}, {"paged": False}),
    "present": Example(
        "$$->'Body'->'issue'->'fields'->>'customfield_10210' is not null",
        {"issue": {"fields": {"customfield_10210": 0}}},
        {"issue": {"fields": {"customfield_10210": None}}},
    ),
    "header": Example("$$->'Header'->'Filter_string'->>0 = 'proj1010'", {}, {}, ("proj1010", "proj1011")),
}


@pytest.mark.behaviour("3.4")
@pytest.mark.parametrize("name", EXAMPLES)
def test_only_what_a_documented_example_is_true_for_is_delivered(name: str, broker: Broker, receiver: Receiver) -> None:
    example = EXAMPLES[name]
    event_type = broker.event_type()
    subscribed = broker.subscribe(receiver.url(f"/{name}"), event_type, filter=example.text)
    publisher = broker.publisher()
    counts = []
    for body, filter_string in zip((example.other, example.qualifying), reversed(example.filter_strings), strict=True):
        headers = {"Content-Type": "application/json", **({"FILTER_STRING": filter_string} if filter_string else {})}
        address = f"{broker.web}/api/v1/events/{event_type}"
        answer = publisher.post(address, json.dumps(body), headers=headers, timeout=TIMEOUT)
        counts.append(answer.json()["deliveries"])
    wait_until(lambda: broker.has_finished([subscribed]))
    broker.inactivate_all()
    assert counts == [0, 1]
    assert [json.loads(request.body) for request in receiver.of(f"/{name}")] == [example.qualifying]
