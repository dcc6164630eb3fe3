"""Create what the demo needs through the management API: event types, publishers with keys, subscriptions."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import requests

from broker_project.stack.demo.events import (
    ACK_SECONDS,
    ARCHIVE,
    KINDS,
    OFFICE,
    PRICE,
    PUBLISHERS,
    RECEIVERS,
    REPORT,
    Sample,
    event,
)
from broker_project.stack.ports import LOOPBACK

TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Management:
    """The management API of a running broker."""

    web: str
    token: str
    suffix: str
    """Behind every name, to keep runs on one database apart."""

    def create(self, collection: str, /, **fields: object) -> dict[str, Any]:
        """Create one object and return it."""
        answer = requests.post(f"{self.web}/api/v1/{collection}", json=fields, headers=self._headers, timeout=TIMEOUT)
        if not answer.ok:
            raise NotArranged(f"POST {collection} answered {answer.status_code}: {answer.text}")
        made: dict[str, Any] = answer.json()
        return made

    def inactivate_all(self) -> None:
        """Stop sending to receivers that are going away."""
        for sample in (*RECEIVERS, ARCHIVE):
            address = f"{self.web}/api/v1/subscribers/{sample.name}{self.suffix}/inactivate"
            requests.post(address, headers=self._headers | {"If-Match": "*"}, timeout=TIMEOUT)

    def every(self, collection: str, /, **query: str) -> Iterator[dict[str, Any]]:
        """Read a list to its end."""
        page = f"{self.web}/api/v1/{collection}?{urlencode(query | {'limit': '200'})}"
        while page:
            answer = requests.get(page, headers=self._headers, timeout=TIMEOUT)
            answer.raise_for_status()
            yield from answer.json()["items"]
            page = answer.json()["next"]

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


class NotArranged(Exception):
    """The broker did not take one of the demo's objects; the message has its answer."""


def arrange(api: Management, ports: Mapping[str, int], secrets: Path) -> dict[str, str]:
    """Create everything; write the receivers' signing secrets to a file and return the publishers' tokens."""
    for event_type, kind in KINDS.items():
        sample = json.dumps(event(0, event_type).body, indent=1, ensure_ascii=False)
        api.create("event-types", name=event_type + api.suffix, kind=kind, sample=sample)
    publishers = {**PUBLISHERS, OFFICE: (REPORT, PRICE)}
    tokens = {name: _publisher(api, name, types) for name, types in publishers.items()}
    known: dict[str, str] = {}
    for subscriber in RECEIVERS:
        known |= _subscriber(api, subscriber, ports[subscriber.name])
    _keep(secrets, known)
    return tokens


def mailbox(api: Management, key: Path) -> None:
    """Create the subscriber that fetches; write the token of its key to a file."""
    name = ARCHIVE.name + api.suffix
    about = f"Sample of a mailbox: {ARCHIVE.behaviour}."
    api.create("subscribers", name=name, description=about, ack_seconds=ACK_SECONDS)
    for position, event_type in enumerate(ARCHIVE.event_types):
        names = {"subscriber": name, "event_type": event_type + api.suffix}
        api.create("subscriptions", **names, delivery_mode="PULL", position=position)
    _keep(key, api.create("api-keys", kind="SUBSCRIBER", subscriber=name, label="demo")["token"])


def _publisher(api: Management, name: str, event_types: tuple[str, ...]) -> str:
    full_name = name + api.suffix
    api.create("publishers", name=full_name, event_types=[event_type + api.suffix for event_type in event_types])
    token: str = api.create("api-keys", kind="PUBLISHER", publisher=full_name, label="demo")["token"]
    return token


def _subscriber(api: Management, sample: Sample, port: int) -> dict[str, str]:
    """Create a subscriber with its subscriptions; return their signing secrets by name and path."""
    name = sample.name + api.suffix
    api.create("subscribers", name=name, description=f"Sample receiver: {sample.behaviour}.")
    secrets = {}
    for position, event_type in enumerate(sample.event_types):
        made = api.create(
            "subscriptions",
            subscriber=name,
            event_type=event_type + api.suffix,
            endpoint=f"http://{LOOPBACK}:{port}/{event_type}",
            header_filter_string=sample.region,
            position=position,
        )
        secrets[f"{sample.name}/{event_type}"] = made["signing_secret"]
    return secrets


def _keep(path: Path, secret: object) -> None:
    """Write down what nobody else may read."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(secret))
