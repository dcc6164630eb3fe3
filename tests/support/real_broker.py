"""A broker of real processes in a folder of its own, further web servers, and what tests ask of them over HTTP."""

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import requests

from broker_project.stack import postgres
from broker_project.stack.application import Application
from broker_project.stack.folders import ROOT
from broker_project.stack.load.management_client import Management, session_of
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from broker_project.stack.ports import LOOPBACK, any_free
from broker_project.stack.running_stack import Stack, running_stack
from broker_project.stack.supervisor import Child

TIMEOUT_SECONDS = PATIENCE_SECONDS
"""Of a request to a broker, and of what else it does sooner or later."""
WORKERS = 2
"""Of a broker, besides the one for summaries."""
_numbers = itertools.count(1)

LONG_POLL_QUERIES = """
    SELECT FROM pg_stat_activity WHERE query LIKE '%%AS w (subscriber_id, waiting)%%' AND pid <> pg_backend_pid()
       AND state_change > %(since)s
"""
"""Backends that have looked for messages of waiting polls since then."""


@dataclass(frozen=True, slots=True, eq=False)
class Subscribed:
    """A subscriber that was made for a test, with the signing secret of each of its subscriptions, by event type."""

    name: str
    secrets: dict[str, str]


@dataclass(slots=True)
class Broker:
    """A running stack, and a management key of it."""

    stack: Stack
    management: Management
    _subscribers: list[str] = field(default_factory=list)

    @property
    def web(self) -> str:
        return self.stack.web

    # --- arranging -----------------------------------------------------------

    def event_type(self, name: str = "Test.Event", kind: str = "TOPIC", **fields: object) -> str:
        """Create an event type with a name that begins so; return its name."""
        made = self.management.create("event-types", name=f"{name}-{next(_numbers)}", kind=kind, **fields)
        return str(made["name"])

    def subscribe(
        self, endpoint: str, *event_types: str, concurrency: int = 1, ordering_key: str = "", **fields: object
    ) -> Subscribed:
        """Create a subscriber with a subscription to each of the event types, all with this endpoint."""
        name = f"subscriber-{next(_numbers)}"
        processing = "KEYED" if ordering_key else "SERIAL" if concurrency == 1 else "CONCURRENT"
        how = {"processing": processing, "concurrency": concurrency, "ordering_key": ordering_key}
        self.management.create("subscribers", name=name, **how)
        self._subscribers.append(name)
        secrets = {}
        for event_type in event_types:
            names = {"subscriber": name, "event_type": event_type}
            made = self.management.create("subscriptions", endpoint=endpoint, **names, **fields)
            secrets[event_type] = made["signing_secret"]
        return Subscribed(name, secrets)

    def change(self, path: str, **fields: object) -> None:
        """Change what the management API has under this path."""
        self.management.change(path, **fields)

    def retry_policy(self, **terms: object) -> str:
        """Create a retry policy; return its name."""
        return str(self.management.create("retry-policies", name=f"policy-{next(_numbers)}", **terms)["name"])

    def publisher(self) -> requests.Session:
        """Create a publisher; return a session with its key."""
        name = f"publisher-{next(_numbers)}"
        self.management.create("publishers", name=name)
        return session_of(self.management.key("PUBLISHER", name))

    def publish(
        self,
        event_type: str,
        body: bytes | Iterator[bytes] = b"{}",
        headers: Mapping[str, str] | None = None,
        *,
        web: str = "",
        seconds: float = TIMEOUT_SECONDS,
    ) -> requests.Response:
        """Publish with the management key, as JSON unless the headers say otherwise; "" takes batches."""
        sent = {"Authorization": f"Bearer {self.management.token}", "Content-Type": "application/json"}
        address = f"{web or self.web}/api/v1/events/{event_type}".removesuffix("/")
        return requests.post(address, body, headers=sent | dict(headers or {}), timeout=seconds, allow_redirects=False)

    def inactivate_all(self) -> None:
        """Inactivate all subscribers of this test."""
        while self._subscribers:
            self.management.send("POST", f"subscribers/{self._subscribers.pop()}/inactivate")

    # --- state, to know when to act; verdicts do not use it ----------------------

    def get(self, path: str, **query: str) -> Any:
        """Return what the management API has under this path."""
        return self.management.get(path, **query)

    def subscription(self, subscriber: str, **query: str) -> dict[str, Any]:
        """Return the only subscription of a subscriber, or the only one that the query finds."""
        (found,) = self.get("subscriptions", subscriber=subscriber, **query)["items"]
        return dict(found)

    def has_finished(self, subscribers: Collection[Subscribed]) -> bool:
        """Return whether these subscribers have no open deliveries."""
        try:
            return not self.unfinished(subscribers)
        except requests.RequestException:
            return False

    def unfinished(self, subscribers: Collection[Subscribed]) -> int:
        """Return how many deliveries to these subscribers are open, including those in retry lanes."""
        lines = [self.get(f"subscribers/{one.name}/line") for one in subscribers]
        return sum(int(line["waiting"]) + int(line["retry"]["waiting"]) for line in lines)

    def driver_of(self, subscriber: Subscribed) -> str:
        """Return the name of the worker that holds this subscriber's line; "" if none does."""
        return str(self.get(f"subscribers/{subscriber.name}/line")["worker"])

    def worker_driving(self, subscriber: Subscribed) -> Child | None:
        """Return the worker that holds this subscriber's line; None if none does."""
        names = {child.service.environment.get("BROKER_WORKER_NAME"): child for child in self.stack.supervisor}
        driver = self.driver_of(subscriber)
        return names[driver] if driver else None

    def wait_for_driver_of(self, subscriber: Subscribed) -> Child:
        """Return the worker that holds this subscriber's line, once there is one."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while not (driver := self.worker_driving(subscriber)):
            assert time.monotonic() < until, f"no worker holds the line of {subscriber.name}"
        return driver

    def workers(self) -> list[Child]:
        """Return all workers."""
        return [self.stack.supervisor[f"worker{number + 1}"] for number in range(WORKERS)]

    def ask(self, query: str, **arguments: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query to the broker's database."""
        with psycopg.connect(self.stack.environment["DATABASE_URL"], autocommit=True) as connection:
            return connection.execute(query.encode(), arguments).fetchall()

    @contextlib.contextmanager
    def redis(self) -> Iterator["redis.Redis"]:
        with redis.Redis.from_url(self.stack.environment["REDIS_URL"]) as client:
            yield client


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """Run a whole broker with stores of its own, as durable as a real one."""
    with contextlib.ExitStack() as until_the_end:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("DATABASE_URL", "REDIS_URL"):
                patch.delenv(name, raising=False)
            patch.setenv("BROKER_WEB_PROCESSES", "1")  # on any machine: cases count the limits of one process
            patch.setenv("BROKER_WORKERS", str(WORKERS))  # on any machine: cases kill one, and others take over
            for name, value in {"wal_level": "replica", "max_wal_senders": "4"}.items():
                patch.setitem(postgres.SETTINGS, name, value)  # as a server with a standby has them
            stack = until_the_end.enter_context(running_stack(folder))
        yield Broker(stack, Management.of(stack))


@dataclass(frozen=True, slots=True)
class WebProcess:
    """A web server that serves requests, with one process unless said otherwise."""

    address: str
    process: "subprocess.Popen[bytes]"

    def children(self) -> list[int]:
        """Return the ids of the processes that answer requests."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]


@contextlib.contextmanager
def another_web_process(broker: Broker, **environment: str) -> Iterator[WebProcess]:
    """Run one more web server on the broker's stores, or on those that `environment` names."""
    port = any_free()
    variables = {**broker.stack.environment, "BROKER_WEB_PROCESSES": "1", **environment}
    service = Application(variables, port, 0, "", "").web()
    process = subprocess.Popen(
        service.command, cwd=ROOT, env={**os.environ, **service.environment}, start_new_session=True
    )
    try:
        wait_until(service.is_ready)
        yield WebProcess(f"http://{LOOPBACK}:{port}", process)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def database_now(broker: Broker) -> Any:
    """Return the database's time."""
    ((now,),) = broker.ask("SELECT clock_timestamp()")
    return now


def wait_until_polling(broker: Broker, since: Any) -> None:
    """Wait until a poll that came after `since` waits, where none did before."""
    wait_until(lambda: broker.ask(LONG_POLL_QUERIES, since=since))
