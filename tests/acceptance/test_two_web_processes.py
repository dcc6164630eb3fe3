"""Two real web processes on one database: whatever is configured through one counts for the other's next publish."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
import requests

from tests.real_broker import TIMEOUT, Broker
from tests.web_processes import another_web

pytestmark = pytest.mark.faults

OPEN = b'{"state": "open", "team": {"name": "blue"}}'
ENDPOINT = "http://127.0.0.1:9/nobody-listens"


@dataclass(frozen=True, slots=True)
class Webs:
    """Both web processes, a publisher and an event type."""

    broker: Broker
    addresses: tuple[str, str]
    publisher: requests.Session
    event_type: str

    def configure(self, web: str, method: str, path: str, **fields: object) -> Any:
        """Do something through one of the processes, with a management key."""
        headers = {"Authorization": f"Bearer {self.broker.management.token}", "If-Match": "*"}
        answer = requests.request(method, f"{web}/api/v1/{path}", json=fields or None, headers=headers, timeout=TIMEOUT)
        answer.raise_for_status()
        return answer.json()

    def deliveries(self, web: str, **headers: str) -> int:
        """Publish through one of the processes; return how many subscriptions got the message."""
        address = f"{web}/api/v1/events/{self.event_type}"
        sent = {"Content-Type": "application/json", **headers}
        answer = self.publisher.post(address, OPEN, headers=sent, timeout=TIMEOUT)
        answer.raise_for_status()
        return int(answer.json()["deliveries"])


@pytest.fixture
def webs(broker: Broker) -> Iterator[Webs]:
    event_type = broker.event_type("Two.Webs.Event")
    with another_web(broker) as other:
        yield Webs(broker, (broker.web, other.address), broker.publisher(), event_type)
    broker.inactivate_all()


@pytest.mark.behaviour("3.7")
def test_a_change_through_one_process_counts_for_the_next_publish_through_the_other(webs: Webs) -> None:
    subscribed = webs.broker.subscribe(ENDPOINT, webs.event_type).name
    (one,) = webs.configure(webs.broker.web, "GET", f"subscriptions?subscriber={subscribed}")["items"]
    subscription, subscriber = f"subscriptions/{one['id']}", f"subscribers/{subscribed}"
    new = {"subscriber": subscribed, "endpoint": ENDPOINT}
    state, team = "$$->'Body'->>'state'", "$$->'Body'->'team'->>'name'"
    steps: list[tuple[str, str, dict[str, object], int]] = [
        ("PATCH", subscription, {"filter": f"{state} = 'shut'"}, 0),
        ("PATCH", subscription, {"filter": f"{state} = 'open'"}, 1),
        ("PATCH", subscription, {"header_filter_string": "eu"}, 0),
        ("PATCH", subscription, {"header_filter_string": ""}, 1),
        ("POST", f"{subscription}/inactivate", {}, 0),
        ("POST", f"{subscription}/activate", {}, 1),
        ("POST", "subscriptions", {**new, "event_type": webs.event_type, "filter": f"{team} = 'blue'"}, 2),
        ("POST", "subscriptions", {**new, "event_type": webs.event_type, "filter": f"{team} = 'red'"}, 2),
        ("POST", "subscriptions", {**new, "event_pattern": "Two.Webs.*", "filter": f"{state} != 'shut'"}, 3),
        ("POST", "subscriptions", {**new, "event_pattern": "Two.*", "filter": f"{state} in ('open')"}, 4),
        ("POST", f"{subscriber}/inactivate", {}, 0),
        ("POST", f"{subscriber}/activate", {}, 4),
    ]
    assert [webs.deliveries(web) for web in webs.addresses] == [1, 1]
    for through, (method, path, fields, expected) in zip(cycle((0, 1)), steps, strict=False):
        webs.configure(webs.addresses[through], method, path, **fields)
        assert webs.deliveries(webs.addresses[1 - through]) == expected, (method, path, fields)
        assert webs.deliveries(webs.addresses[through]) == expected
