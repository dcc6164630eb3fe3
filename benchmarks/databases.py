"""Further databases on the stack's server, each with a process that measures the broker's functions on it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import psycopg

from broker_project.stack.folders import ROOT

Command = Callable[..., Any]
"""Calls a method in the process, by name and arguments, and returns its result."""
SUBSCRIPTION_FIELDS: Final = {"endpoint": "http://127.0.0.1:9/", "signing_secret": "whsec_" + "A" * 43 + "="}
"""Fields of subscriptions to which nothing is sent."""


def serve_commands(target: object) -> None:
    """Call the methods of `target` that are named on the input until it ends; print the results as JSON."""
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(getattr(target, command)(**arguments)), flush=True)


def url_of(environment: Mapping[str, str], name: str) -> str:
    """Return the address of the database `name`."""
    return f"{environment['DATABASE_URL'].rpartition('/')[0]}/{name}"


@contextlib.contextmanager
def measured_database(environment: Mapping[str, str], name: str, module: str) -> Iterator[tuple[Command, int]]:
    """Create a database with a process on it, and drop it in the end; yield as `command_process` does."""
    _administer(environment, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name}")
    try:
        with command_process({**environment, "DATABASE_URL": url_of(environment, name)}, module) as process:
            yield process
    finally:
        _administer(environment, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextlib.contextmanager
def command_process(environment: Mapping[str, str], module: str) -> Iterator[tuple[Command, int]]:
    """Start a process that runs `module`; yield how to command it, and its id."""
    # Hints go to a Redis database without workers.
    redis = f"{environment['REDIS_URL'].rpartition('/')[0]}/15"
    process = subprocess.Popen(  # noqa: S603 - a module of ours
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**os.environ, **environment, "REDIS_URL": redis},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin  # noqa: S101 - both are pipes
    assert process.stdout  # noqa: S101
    commands, answers = process.stdin, process.stdout

    def command(what: str, **arguments: Any) -> Any:
        commands.write(json.dumps([what, arguments]) + "\n")
        commands.flush()
        return json.loads(answers.readline())

    try:
        json.loads(answers.readline())
        yield command, process.pid
    finally:
        commands.close()
        process.wait()
        answers.close()


def _administer(environment: Mapping[str, str], *statements: str) -> None:
    with psycopg.connect(environment["DATABASE_URL"], autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
