"""What a scenario works with: a running stack, its management API, and how long to measure."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from benchmarks.command_process import command_process
from benchmarks.processes import Receiving
from broker_project.stack.application import worker_count
from broker_project.stack.load.management_client import Management
from broker_project.stack.running_stack import Stack
from broker_project.stack.supervisor import Child

UNFINISHED_SECONDS: Final = 90.0
"""How long deliveries may take to arrive after the last publish."""
LOOK_SECONDS: Final = 0.02

SERVICES: Final = ("web", "analytics", "beat", "flower", "redis", "postgres")

_numbers: Final[Iterator[int]] = itertools.count(1)
"""Make the names of objects unique, because several measurements may use one stack."""

OPEN: Final = """
    SELECT count(*) FROM delivery_open
    JOIN subscriptions_subscription subscription ON subscription.id = subscription_id
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscription.subscriber_id
    JOIN delivery_line line ON line.id = line_id
    WHERE subscriber.name LIKE 'bench-%' AND line.lane <> 'retry' AND subscription.diverted_since IS NULL
"""
"""Deliveries that may still be sent, except those in retry lanes and behind them, which no scenario waits for."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    seconds: float = 10.0
    """How long to measure, after the warm-up."""
    minutes: float = 0.0
    """How long the soak takes, or a snapshot is held; 0: half an hour, and what half an hour leaves."""
    rate: float = 0.0
    """Deliveries a second of the soak, 0: half of what the broker can do; of horizon, 0: 800 and 2,000."""
    attempts: int = 1_000_000
    """Attempts in the history that is summarized; a tenth of them is summarized too."""
    warm_seconds: float = 4.0
    bare_seconds: float = 2.0
    """How long to measure a bare client."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of one scenario."""

    stack: Stack
    api: Management
    options: Options
    say: Callable[[str], None]

    def roots(self) -> dict[str, int]:
        """Return the process id of every service, by name."""
        return {name: child.pid for name, child in self._services() if child.pid is not None}

    def ended(self) -> list[str]:
        """Return which services ended unexpectedly; some may not be back yet."""
        children = [child for _, child in self._services()]
        return [f"{child.service.name} ended, see {child.log}" for child in children if child.restarts or not child.pid]

    def ask(self, query: str, *arguments: object, **named: object) -> list[tuple[object, ...]]:
        """Return the rows of a query to the broker's database."""
        with psycopg.connect(self.stack.environment["DATABASE_URL"], autocommit=True) as connection:
            return connection.execute(query.encode(), arguments or named or None).fetchall()

    def unfinished(self, receiving: Receiving, deliveries: int, *, seconds: float = UNFINISHED_SECONDS) -> list[str]:
        """Wait until `deliveries` have arrived and none is open; return what is still open after `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and (receiving.delivered < deliveries or self.ask(OPEN) != [(0,)]):
            time.sleep(LOOK_SECONDS)
        ((still_open,),) = self.ask(OPEN)
        return [f"{still_open} deliveries were still open after {seconds:g} s"] if still_open else []

    def create_event_type(self) -> str:
        """Create an event type of kind TOPIC; return its name."""
        return str(self.api.create("event-types", name=f"Bench-{next(_numbers)}", kind="TOPIC")["name"])

    def subscribe(
        self,
        endpoints: Sequence[str],
        event_types: int,
        *,
        prefix: str = "bench",
        kind: str = "TOPIC",
        script: str = "",
    ) -> tuple[list[str], list[str]]:
        """Store a subscriber for each endpoint, and event types, which they have in turn; return the names of both.

        Through the API, thousands would take minutes. Scenarios wait in the end only for deliveries to subscribers with
        the prefix `bench`.
        """
        run, numbers = next(_numbers), range(len(endpoints))
        names, types = ([f"{first}-{run}.{number}" for number in numbers] for first in (prefix, "Bench"))
        each = [types[number % event_types] for number in numbers]
        with command_process(self.stack.environment, "benchmarks.databases.Configuration") as (there, _):
            there("subscribe", names=names, event_types=each, endpoints=endpoints, kind=kind, script=script)
        return types[:event_types], names

    def subscribe_keyed(self, endpoint: str) -> tuple[list[str], list[str]]:
        """Create an event type and a KEYED subscriber for it, as wide as one may be; return both names."""
        event_type, name = self.create_event_type(), f"bench-{next(_numbers)}"
        keyed = {"processing": "KEYED", "concurrency": 1_000, "ordering_key": "$$->'Body'->>'key'"}
        self.api.create("subscribers", name=name, max_queued_to_send=10_000, **keyed)
        self.api.create("subscriptions", subscriber=name, event_type=event_type, endpoint=endpoint)
        return [event_type], [name]

    def create_mailbox(self) -> tuple[str, str, str]:
        """Create an event type and a subscriber with a mailbox for it; return their names and an API key."""
        event_type, name = self.create_event_type(), f"bench-{next(_numbers)}"
        self.api.create("subscribers", name=name)
        self.api.create("subscriptions", subscriber=name, event_type=event_type, delivery_mode="PULL")
        return event_type, name, self.api.key("SUBSCRIBER", name)

    def publisher_key(self) -> str:
        """Create a publisher; return its API key."""
        name = f"bench-{next(_numbers)}"
        self.api.create("publishers", name=name)
        return self.api.key("PUBLISHER", name)

    def _services(self) -> Iterator[tuple[str, Child]]:
        workers = (f"worker{number + 1}" for number in range(worker_count()))
        return ((name, self.stack.supervisor[name]) for name in (*SERVICES, *workers))
