"""Processes that call the broker's own functions, each on one database."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import django
import psycopg
from django.utils.module_loading import import_string

from benchmarks.processes import spawned

Command = Callable[..., Any]
"""Calls a method in another process, by name and arguments, and returns its result."""


@contextlib.contextmanager
def measured_database(environment: Mapping[str, str], name: str, target: str) -> Iterator[tuple[Command, int]]:
    """Create a database on the stack's server with a process on it, and drop it in the end."""
    url = f"{environment['DATABASE_URL'].rpartition('/')[0]}/{name}"
    with psycopg.connect(environment["DATABASE_URL"], autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
        try:
            with command_process({**environment, "DATABASE_URL": url}, target) as process:
                yield process
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextlib.contextmanager
def command_process(environment: Mapping[str, str], target: str) -> Iterator[tuple[Command, int]]:
    """Run a process with an instance of the class `target`; yield how to call its methods, and its id."""
    # Hints go to a Redis database without workers.
    redis = f"{environment['REDIS_URL'].rpartition('/')[0]}/15"
    with spawned(_serve_commands, {**environment, "REDIS_URL": redis}, target) as (process, control):

        def command(method: str, **arguments: object) -> Any:
            control.send((method, arguments))
            return control.recv()

        yield command, process.pid or 0


def _serve_commands(control: Connection, environment: Mapping[str, str], target: str) -> None:
    os.environ.update(environment)
    django.setup()
    made = import_string(target)()
    with contextlib.suppress(EOFError):
        while True:
            method, arguments = control.recv()
            control.send(getattr(made, method)(**arguments))
