"""PostgreSQL and Redis for as long as something needs them: the user's own, else embedded ones."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from broker_project.stack.folder_lock import locked
from broker_project.stack.folders import StackFolder
from broker_project.stack.guard import Guard
from broker_project.stack.kept import Kept
from broker_project.stack.postgres import Postgres
from broker_project.stack.redis_server import RedisServer
from broker_project.stack.services import Service
from broker_project.stack.supervisor import Supervisor


def silent(_text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the stores are, and which of them have to be started."""

    environment: dict[str, str]
    embedded: tuple[Service, ...]


def servers_of(folder: StackFolder, kept: Kept, *, durable: bool, port: Callable[[str], int]) -> Servers:
    """Return the stores of a stack; `port` chooses one before a start, or looks one up in a running stack."""
    environment, embedded = {}, []
    if "DATABASE_URL" not in os.environ:
        secret = kept.secret("PostgreSQL password")
        postgres = Postgres(folder.path / "postgres", port("PostgreSQL"), secret, durable)
        environment["DATABASE_URL"] = postgres.url
        embedded.append(postgres.service())
    if "REDIS_URL" not in os.environ:
        redis = RedisServer(folder.path / "redis", port("Redis"), kept.secret("Redis password"))
        environment["REDIS_URL"] = redis.url
        embedded.append(redis.service())
    return Servers(environment, tuple(embedded))


@contextlib.contextmanager
def supervised(folder: StackFolder, say: Callable[[str], None] = silent) -> Iterator[Supervisor]:
    """Hold the folder's lock and a supervisor that stops, at the end or when killed, what it started."""
    with locked(folder.lock) as lock:
        guard = Guard.start(keep=lock.fileno())
        try:
            with Supervisor(folder, guard=guard, say=say) as supervisor:
                yield supervisor
        finally:
            guard.dismiss()


@contextlib.contextmanager
def running(path: Path, *, durable: bool = True, say: Callable[[str], None] = silent) -> Iterator[dict[str, str]]:
    """Run the stores alone, in a folder; give the variables that lead to them."""
    folder = StackFolder(path)
    with supervised(folder, say) as supervisor:
        kept = Kept(folder.settings, say)
        servers = servers_of(folder, kept, durable=durable, port=kept.port)
        supervisor.start(*servers.embedded)
        yield servers.environment
