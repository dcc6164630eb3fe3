"""The processes of the broker: web, workers, beat and Flower, and how to tell that each is ready."""

import base64
import signal
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError

from broker_project.core.cores import usable_cores
from broker_project.environment import number
from broker_project.stack.ports import LOOPBACK
from broker_project.stack.supervisor import Service

PROJECT = "broker_project"

ANALYTICS = "analytics"
"""The queue of tasks that take minutes, and its worker, which runs them one after the other."""
NICE = ("nice", "-n", "8")
"""With few cores, publishers come first: publishing takes a quarter less time, and a worker that continues a little
later settles more deliveries at once. The web server starts a second earlier, too."""
WORKER_STOP_SECONDS = 70.0
"""It waits for its requests in flight, which may take a minute."""
HEARTBEAT_SECONDS = "10"
"""Between two messages to Flower that a worker is alive: every one wakes worker, Redis and Flower."""


def worker_count() -> int:
    """Return how many workers a stack starts. The more they are, the fewer lines each has, and settles together."""
    return number("BROKER_WORKERS", minimum=1, default=usable_cores(), maximum=1000)


def answers(url: str, login: str = "") -> bool:
    """Tell whether the URL is answered 2xx, with this login (`name:password`)."""
    credentials = base64.b64encode(login.encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {credentials}"} if login else {})  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=2):  # noqa: S310 - our own address # nosec B310
            return True
    except OSError:
        return False


def is_listening(redis_url: str, worker: str) -> bool:
    """Tell whether a worker answers a ping through Redis.

    This uses its own connection. Pooled connections are kept by address, and may lead to the Redis of an earlier stack
    on the same port.
    """
    with Celery(broker=redis_url, set_as_current=False) as client:
        connection = client.connection_for_write()
        try:
            with connection:
                return bool(client.control.ping(destination=[worker], timeout=1.0, connection=connection))
        except (OSError, OperationalError, RedisError):
            return False


@dataclass(frozen=True, slots=True)
class Application:
    """One broker: its ports, and the environment that leads to its stores."""

    environment: Mapping[str, str]
    web_port: int
    flower_port: int
    flower_login: str
    installation: str
    """Distinguishes the workers of several machines on one database."""

    def services(self) -> tuple[Service, ...]:
        """Return all services except the stores."""
        workers = (self.worker(index + 1) for index in range(worker_count()))
        spark = self._worker(ANALYTICS, "-Q", ANALYTICS, "-c", "1")
        return (self.web(), *workers, spark, self.beat(), self.flower())

    def web(self) -> Service:
        """Return the web server, which starts its processes itself."""
        return Service(
            name="web",
            command=python(f"{PROJECT}.server", "--host", LOOPBACK, "--port", str(self.web_port)),
            environment=self.environment,
            is_ready=partial(answers, f"http://{LOOPBACK}:{self.web_port}/livez"),
        )

    def worker(self, number: int) -> Service:
        """Return a worker for lines. Its name stays the same over restarts."""
        return self._worker(f"worker{number}", "-X", ANALYTICS)

    def _worker(self, name: str, *queues: str) -> Service:
        identity = f"{name}.{self.installation}"
        quiet = ("--without-mingle", "--without-gossip", "--heartbeat-interval", HEARTBEAT_SECONDS)
        options = (*quiet, "--loglevel", "INFO", "-n", identity)
        return Service(
            name=name,
            command=(*NICE, *celery("worker", *queues, *options)),
            environment={**self.environment, "BROKER_WORKER_NAME": identity},
            is_ready=partial(is_listening, self.environment["REDIS_URL"], f"celery@{identity}"),
            stop_seconds=WORKER_STOP_SECONDS,
        )

    def beat(self) -> Service:
        """Return the scheduler."""
        return Service(
            name="beat",
            command=(*NICE, *celery("beat", "--pidfile", "", "--loglevel", "INFO")),
            environment=self.environment,
        )

    def flower(self) -> Service:
        """Return the read-only view of queues and tasks, behind a login."""
        return Service(
            name="flower",
            command=celery("flower", f"--port={self.flower_port}"),
            environment={**self.environment, "FLOWER_BASIC_AUTH": self.flower_login},
            is_ready=partial(answers, f"http://{LOOPBACK}:{self.flower_port}/healthcheck", self.flower_login),
            stop_signal=signal.SIGINT,
            stop_seconds=5.0,
        )


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """Return a command that runs a module of the environment."""
    return (sys.executable, "-m", module, *arguments)


def celery(*arguments: str) -> tuple[str, ...]:
    """Return a command of the project's Celery application."""
    return python("celery", "-A", PROJECT, *arguments)
