"""The broker itself as services: web, workers, one more for summaries, beat, and Flower to watch them."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from broker_project.stack.ports import LOOPBACK
from broker_project.stack.readiness import answers, is_listening, lets_in
from broker_project.stack.services import Service

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
