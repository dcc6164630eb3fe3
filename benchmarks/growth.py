"""`growth`: what publishing, sweeping, claiming, reading and settling cost beside years of finished deliveries.

Two databases of the same server, one empty and one with a history, are measured in turn, so that whatever else the
machine does meets both alike; the figures are ratios of medians.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Outcome, at_most
from broker_project.stack.folders import ROOT

NAME: Final = "growth"
MOST: Final = 1.1
WARM_ROUNDS: Final = 10
EMPTY, GROWN = (f"broker_growth_{os.getpid()}_{state}" for state in ("empty", "grown"))


def run(bench: Bench, *, finished: int = 10_000_000, waiting: int = 1_000_000, rounds: int = 200) -> Outcome:
    """Measure beside `finished` deliveries that ended and `waiting` ones of inactive subscriptions."""
    return Outcome(measure(bench.stack.environment, bench.say, finished=finished, waiting=waiting, rounds=rounds))


def measure(environment: Mapping[str, str], say: Any, *, finished: int, waiting: int, rounds: int) -> Sequence[Figure]:
    """Return the ratios, on a server that lets us create databases."""
    with _database(environment, EMPTY) as empty, _database(environment, GROWN) as grown:
        say(f"storing {finished:,} finished and {waiting:,} waiting deliveries")
        grown("fill", url=_url(environment, GROWN), finished=finished, waiting=waiting)
        for _ in range(WARM_ROUNDS):
            empty("round")
            grown("round")
        say("measuring both in turn")
        pairs = [(empty("round"), grown("round")) for _ in range(rounds)]
    return [_ratio(kind, pairs) for kind in pairs[0][0]]


def _ratio(kind: str, pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> Figure:
    before, after = (statistics.median(pair[side][kind] for pair in pairs) for side in (0, 1))
    return Figure(NAME, f"{kind}, grown : empty", after / before, "times", target=at_most(MOST))


def _url(environment: Mapping[str, str], name: str) -> str:
    return f"{environment['DATABASE_URL'].rpartition('/')[0]}/{name}"


@contextlib.contextmanager
def _database(environment: Mapping[str, str], name: str) -> Iterator[Any]:
    """Create a database with a process of its own on it, and drop it in the end; hand out how to command that."""
    _administer(environment, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name}")
    # Hints to a database of Redis where nobody takes them.
    redis = f"{environment['REDIS_URL'].rpartition('/')[0]}/15"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.growing"],
        cwd=ROOT,
        env={**os.environ, **environment, "DATABASE_URL": _url(environment, name), "REDIS_URL": redis},
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
        yield command
    finally:
        commands.close()
        process.wait()
        answers.close()
        _administer(environment, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _administer(environment: Mapping[str, str], *statements: str) -> None:
    with psycopg.connect(environment["DATABASE_URL"], autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
