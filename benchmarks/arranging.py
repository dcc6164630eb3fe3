"""What a scenario needs configured: event types, subscribers with one subscription each, a publisher with a key."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.children import RunningSink
from benchmarks.connection import Connection

_numbers: Final[Iterator[int]] = itertools.count(1)
"""Keep apart the names of several scenarios on one stack."""


def event_types(api: Connection, count: int, *, kind: str = "TOPIC") -> list[str]:
    """Create event types; return their names."""
    run = next(_numbers)
    names = [f"Bench-{run}.{number}" for number in range(count)]
    return [str(api.create("event-types", name=name, kind=kind)["name"]) for name in names]


def subscribe(
    api: Connection, sink: RunningSink, wanted: Sequence[str], *, called: str = "bench", script: str = ""
) -> list[str]:
    """Create a subscriber for each entry, with a subscription to that event type; return their names.

    What waits for those that are `called` otherwise is not waited for in the end.
    """
    run = next(_numbers)
    names = [f"{called}-{run}.{number}" for number in range(len(wanted))]
    for number, (name, event_type) in enumerate(zip(names, wanted, strict=True)):
        api.create("subscribers", name=name)
        endpoint = sink.endpoint(number)
        api.create("subscriptions", subscriber=name, event_type=event_type, endpoint=endpoint, script=script)
    return names


def mailbox(api: Connection, event_type: str) -> tuple[str, str]:
    """Create a subscriber that fetches this event type; return its name and its key."""
    name = f"bench-{next(_numbers)}"
    api.create("subscribers", name=name)
    api.create("subscriptions", subscriber=name, event_type=event_type, delivery_mode="PULL")
    return name, str(api.create("api-keys", kind="SUBSCRIBER", subscriber=name, label="bench")["token"])


def retry_policy(api: Connection, **terms: object) -> str:
    """Create a retry policy; return its name."""
    return str(api.create("retry-policies", name=f"bench-{next(_numbers)}", **terms)["name"])


def publisher_key(api: Connection) -> str:
    """Create a publisher; return its key."""
    name = f"bench-{next(_numbers)}"
    api.create("publishers", name=name)
    return str(api.create("api-keys", kind="PUBLISHER", publisher=name, label="bench")["token"])
