"""What a scenario works with: a running stack, its management API, and how long to measure."""

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.children import Receiving, RunningSink
from benchmarks.connection import Connection
from broker_project.stack import stacks
from broker_project.stack.folders import ROOT
from broker_project.stack.services import python
from broker_project.stack.supervisor import Child

THROUGH_SECONDS: Final = 90.0
"""How long what is under way may take to arrive once nobody publishes any more."""
LOOK_SECONDS: Final = 0.02


SERVICES: Final = ("web", "analytics", "beat", "flower", "redis", "postgres")

_numbers: Final[Iterator[int]] = itertools.count(1)
"""Keep apart the names of several scenarios on one stack."""

OPEN: Final = """
    SELECT count(*) FROM delivery_open
    JOIN subscriptions_subscription subscription ON subscription.id = subscription_id
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscription.subscriber_id
    JOIN delivery_line line ON line.id = line_id
    WHERE subscriber.name LIKE 'bench-%' AND line.lane <> 'retry'
"""
"""What may still be sent, or sent again; not what is tried again apart, for which nobody waits."""


@dataclass(frozen=True, slots=True)
class Options:
    """What can be chosen on the command line."""

    seconds: float = 10.0
    """How long to measure, once everything is at work."""
    warm_seconds: float = 4.0
    bare_seconds: float = 2.0
    """How long to measure a bare client."""
    minutes: float = 30.0
    """How long the soak takes."""
    rate: float = 0.0
    """Deliveries a second of the soak; 0: half of what the broker can do."""
    attempts: int = 1_000_000
    """How many the summaries are made of; a tenth of them is summarized too."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of one scenario."""

    stack: stacks.Stack
    api: Connection
    """With a management key."""
    token: str
    """That key."""
    options: Options
    say: Callable[[str], None]

    def roots(self) -> dict[str, int]:
        """Return the process id of every service, by name."""
        return {name: child.pid for name, child in self._services() if child.pid is not None}

    def ended(self) -> list[str]:
        """Say which services ended meanwhile, though nobody had asked them to; some may not be back yet."""
        children = [child for _, child in self._services()]
        return [f"{child.service.name} ended, see {child.log}" for child in children if child.restarts or not child.pid]

    def ask(self, query: str, *arguments: object) -> list[tuple[object, ...]]:
        """Ask the database something."""
        with psycopg.connect(self.stack.environment["DATABASE_URL"], autocommit=True) as connection:
            return connection.execute(query.encode(), arguments or None).fetchall()

    def unfinished(self, receiving: Receiving, deliveries: int, *, seconds: float = THROUGH_SECONDS) -> list[str]:
        """Wait until so many deliveries have arrived and nothing is open any more; say what still is after a time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and (receiving.delivered < deliveries or self._open()):
            time.sleep(LOOK_SECONDS)
        still_open = self._open()
        return [f"{still_open} deliveries were still open after {seconds:g} s"] if still_open else []

    def _open(self) -> int:
        ((count,),) = self.ask(OPEN)
        return int(str(count))

    def _services(self) -> Iterator[tuple[str, Child]]:
        workers = (f"worker{number + 1}" for number in range(os.cpu_count() or 1))
        return ((name, self.stack.supervisor[name]) for name in (*SERVICES, *workers))


@contextlib.contextmanager
def running(folder: Path, options: Options, say: Callable[[str], None]) -> Iterator[Bench]:
    """Run a fresh stack, durable as a real one, for one scenario."""
    with stacks.running(folder, fresh=True, say=say) as stack, on(stack, options, say) as bench:
        yield bench


@contextlib.contextmanager
def on(stack: stacks.Stack, options: Options, say: Callable[[str], None]) -> Iterator[Bench]:
    """Measure on a stack that is running."""
    token = _management_key(stack)
    api = Connection(stack.web, token)
    try:
        yield Bench(stack, api, token, options, say)
    finally:
        api.close()


def _management_key(stack: stacks.Stack) -> str:
    return subprocess.run(  # noqa: S603 - our own command
        python("django", "create_api_key", "--scope", "all", "--label", "bench"),
        cwd=ROOT,
        env={**os.environ, **stack.environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()


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
