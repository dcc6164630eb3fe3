"""Admins who edit the subscribers of a load all the time; nothing that decides who gets what."""

from typing import Any

import requests

from tests.faults.everything.scenes import Scene
from tests.real_broker import TIMEOUT

EDIT_EVERY = 0.5
MANY = 5_000
"""More a second than anybody publishes here."""


def edit(scene: Scene, seconds: float) -> None:
    """Change one thing or another of some subscriber twice a second."""
    scene.again_and_again(seconds, EDIT_EVERY, lambda: edit_something(scene))


def edit_something(scene: Scene) -> None:
    """Change headers, rate, signing secret, page size or description; something else may be broken meanwhile."""
    subscribed = scene.random.choice([*scene.load.endpoints])
    event_type = scene.random.choice(scene.load.event_types)
    number = scene.random.randrange(1, MANY)
    subscriber = f"subscribers/{subscribed.name}"
    try:
        (found,) = scene.broker.get("subscriptions", subscriber=subscribed.name, event_type=event_type)["items"]
        subscription = f"subscriptions/{found['id']}"
        edits: list[tuple[str, str, dict[str, Any]]] = [
            ("PATCH", subscription, {"headers": {"X-Edition": str(number)}}),
            ("PATCH", subscription, {"rate_limit": MANY + number}),
            ("POST", f"{subscription}/rotate-secret", {"overlap_seconds": 1}),  # more than a few may not sign
            ("PATCH", subscriber, {"max_queued_to_send": number}),
            ("PATCH", subscriber, {"description": f"Edition {number}."}),
        ]
        _send(scene, *scene.random.choice(edits))
    except requests.RequestException:
        return


def _send(scene: Scene, method: str, path: str, fields: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {scene.broker.management.token}", "If-Match": "*"}
    address = f"{scene.broker.web}/api/v1/{path}"
    answer = requests.request(method, address, json=fields or None, headers=headers, timeout=TIMEOUT)
    assert answer.ok or answer.status_code == requests.codes.service_unavailable, answer.text
