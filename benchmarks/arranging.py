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
) -> None:
    """Create a subscriber for each entry, with a subscription to that event type.

    What waits for those that are `called` otherwise is not waited for in the end.
    """
    run = next(_numbers)
    for number, event_type in enumerate(wanted):
        name = f"{called}-{run}.{number}"
        api.create("subscribers", name=name)
        endpoint = sink.endpoint(number)
        api.create("subscriptions", subscriber=name, event_type=event_type, endpoint=endpoint, script=script)


def publisher_key(api: Connection) -> str:
    """Create a publisher; return its key."""
    name = f"bench-{next(_numbers)}"
    api.create("publishers", name=name)
    return str(api.create("api-keys", kind="PUBLISHER", publisher=name, label="bench")["token"])
