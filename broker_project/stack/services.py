"""The broker as supervised services: web, workers, beat, Flower, and how each tells that it is ready."""

import base64
import os
import signal
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError

from broker_project.stack.ports import LOOPBACK

PROJECT = "broker_project"
WEB_THREADS = "128"
"""Of which most only wait: for a mailbox poll or the answer of a synchronous call."""

WEB_CONNECTIONS = "2048"
"""Connections that are kept, idle ones among them; the others wait in the listening socket until one is closed."""
HEAD_MILLISECONDS = "30000"
"""A connection on which no whole head has come for so long is closed, whether it is idle or drips."""
HEAD_BUFFER_BYTES = "65536"
"""What the server reads of a head at a time; over a few of them it answers 431 itself."""

WORKER_THREADS = "8"
ANALYTICS = "analytics"
"""The queue of what takes minutes, and the worker that serves it alone, one after the other."""
WORKER_NICENESS = "8"
"""Where cores are scarce publishers come first: whatever the deliveries do, publishing then takes a quarter less time,
and a worker that goes on a little later settles more at once."""
FLOWER_TASKS = 1_000
"""Turns that Flower remembers: minutes of a busy broker, and no more memory after them."""
FLOWER_CONFIG = Path(__file__).parents[1] / "flowerconfig.py"

REQUEST_SECONDS = 20.0
"""A worker that stops lets the request under way end first."""


def always() -> bool:
    """Be ready as soon as the process runs, or need nothing before it starts."""
    return True


@dataclass(frozen=True, slots=True)
class Service:
    """One process of the stack, as a description that can be started any number of times."""

    name: str
    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set on top of the environment of the supervisor."""

    prepare: Callable[[], object] = always
    """Called before every start."""

    is_ready: Callable[[], bool] = always
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 20.0
    """How long it may take to finish what is under way; then it is killed."""

    death_signal: signal.Signals = signal.SIGKILL
    """Sent by the kernel and by the guard when the supervisor is gone."""

    is_store: bool = False
    """Stores start before the application and stop after it."""


def answers(url: str) -> bool:
    """Say whether something answers there, with whatever status below 500."""
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - our own address # nosec B310
            return True
    except urllib.error.HTTPError as answer:
        return answer.code < 500  # noqa: PLR2004 - the class of server errors
    except OSError:
        return False


def lets_in(url: str, login: str) -> bool:
    """Say whether what answers there lets in who has this login, `name:password`: another stack's does not."""
    credentials = base64.b64encode(login.encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {credentials}"})  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=2):  # noqa: S310 - our own address # nosec B310
            return True
    except OSError:
        return False


def is_listening(redis_url: str, worker: str) -> bool:
    """Say whether a worker answers a ping through Redis.

    Over a connection of its own: those of the pool, which a process keeps by address, may still lead to the Redis of
    an earlier stack at the same port.
    """
    with Celery(broker=redis_url, set_as_current=False) as asking:
        connection = asking.connection_for_write()
        try:
            with connection:
                return bool(asking.control.ping(destination=[worker], timeout=1.0, connection=connection))
        except (OSError, OperationalError, RedisError):
            return False


@dataclass(frozen=True, slots=True)
class Application:
    """One broker: where its ports are, and how it finds its stores."""

    environment: Mapping[str, str]
    web_port: int
    flower_port: int
    flower_login: str
    installation: str
    """Tells apart the workers of several machines on one database."""

    def services(self) -> tuple[Service, ...]:
        """Return everything that runs beside the stores, in the order in which people name it."""
        workers = (self.worker(number + 1) for number in range(os.cpu_count() or 1))
        return (self.web(), *workers, self.analytics(), self.beat(), self.flower())

    def web(self) -> Service:
        """One granian process: its threads share the connection pool."""
        address = ("--host", LOOPBACK, "--port", str(self.web_port))
        threads = ("--workers", "1", "--backpressure", WEB_CONNECTIONS)
        heads = (
            "--http",
            "1",
            "--http1-header-read-timeout",
            HEAD_MILLISECONDS,
            "--http1-buffer-size",
            HEAD_BUFFER_BYTES,
        )
        habits = ("--no-ws", "--respawn-failed-workers", "--workers-kill-timeout", "15")
        return Service(
            name="web",
            command=(
                *python("granian", "--interface", "rsgi"),
                *address,
                *threads,
                *heads,
                *habits,
                f"{PROJECT}.server.rsgi:application",
            ),
            environment={**self.environment, "BROKER_WEB_THREADS": WEB_THREADS},
            is_ready=partial(answers, f"http://{LOOPBACK}:{self.web_port}/livez"),
        )

    def worker(self, number: int) -> Service:
        """One Celery process with threads and the driver of lines; its name stays the same over restarts."""
        return self._worker(f"worker{number}", "-X", ANALYTICS, "-c", WORKER_THREADS)

    def analytics(self) -> Service:
        """One Celery process that starts Spark when there is something to summarize."""
        return self._worker(ANALYTICS, "-Q", ANALYTICS, "-c", "1")

    def _worker(self, name: str, *serving: str) -> Service:
        identity = f"{name}.{self.installation}"
        habits = ("-E", "--without-mingle", "--without-gossip", "--loglevel", "INFO")
        return Service(
            name=name,
            command=(
                *("nice", "-n", WORKER_NICENESS),
                *celery("worker", "-P", "threads", *serving),
                *habits,
                *("-n", identity),
            ),
            environment={**self.environment, "BROKER_WORKER_NAME": identity},
            is_ready=partial(is_listening, self.environment["REDIS_URL"], f"celery@{identity}"),
            stop_seconds=REQUEST_SECONDS,
        )

    def beat(self) -> Service:
        """Celery's clock, with its schedule in the database."""
        return Service(
            name="beat",
            command=celery("beat", "--pidfile", "", "--loglevel", "INFO"),
            environment=self.environment,
        )

    def flower(self) -> Service:
        """The view of queues and tasks: reads only, asks for a login."""
        address = (f"--address={LOOPBACK}", f"--port={self.flower_port}")
        config = (f"--conf={FLOWER_CONFIG}",)
        return Service(
            name="flower",
            command=celery("flower", *address, "--read_only=True", f"--max_tasks={FLOWER_TASKS}", *config),
            environment={**self.environment, "FLOWER_BASIC_AUTH": self.flower_login},
            is_ready=partial(lets_in, f"http://{LOOPBACK}:{self.flower_port}/healthcheck", self.flower_login),
            stop_signal=signal.SIGINT,
            stop_seconds=5.0,
        )


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """Return a command that runs a module of the environment."""
    return (sys.executable, "-m", module, *arguments)


def celery(*arguments: str) -> tuple[str, ...]:
    """Return a command of the project's Celery application."""
    return python("celery", "-A", PROJECT, *arguments)
