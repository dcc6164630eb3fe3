"""`./broker histories`: random histories on all cores, with those that break a promise."""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import django
import psycopg
from django.core.management import call_command
from django.db import connection
from psycopg import sql

from broker_project.core.cores import usable_cores
from broker_project.core.subprocesses import die_with
from broker_project.stack.test_command import prepared
from broker_project.stack.up import run_command

if TYPE_CHECKING:
    from tests.histories.world import World

SEEDS: Final = 5_000
AT_A_TIME: Final = 8
"""Seeds that a process gets at once."""
PROGRESS_SECONDS: Final = 10.0
MAX_BROKEN: Final = 20
"""Histories that break a promise, after which no more are begun."""
_until_the_end = ExitStack()


def histories(*arguments: str) -> int:
    """Run the histories of some seeds on temporary servers; return 0 if every promise was kept."""
    made = argparse.ArgumentParser("./broker histories", description="Let two workers live through random histories.")
    made.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"how many; otherwise {SEEDS}")
    made.add_argument("--from", dest="start", type=int, default=0, metavar="S", help="the first seed")
    made.add_argument("--seed", type=int, metavar="S", help="only this one, to repeat its history")
    options = made.parse_args(arguments)
    seeds = range(options.start, options.start + options.seeds)
    with prepared() as (_, variables):
        os.environ.update(variables)
        django.setup()
        logging.disable()
        call_command("migrate", verbosity=0)
        return run(seeds if options.seed is None else range(options.seed, options.seed + 1))


def run(seeds: Sequence[int]) -> int:
    """Run their histories in a process per core; print how far it is, and those that break a promise."""
    cores, broken = min(usable_cores(), len(seeds)), list[int]()
    forked = multiprocessing.get_context("fork")
    databases = forked.SimpleQueue()
    for name in copies_of_the_database(cores):
        databases.put(name)
    with ProcessPoolExecutor(cores, forked, begin, (os.getpid(), databases)) as processes:
        began = said = time.perf_counter()
        stories = processes.map(story_of, seeds, chunksize=AT_A_TIME)
        for number, (seed, story) in enumerate(zip(seeds, stories, strict=True), 1):
            if story:
                broken.append(seed)
                print(story if len(broken) == 1 else "", f"History {seed} breaks a promise.", sep="\n", flush=True)
            now = time.perf_counter()
            is_over = number == len(seeds) or len(broken) == MAX_BROKEN
            if is_over or now >= said + PROGRESS_SECONDS:
                print(f"{number} of {len(seeds)} histories, {number / (now - began):.1f} a second", flush=True)
                said = now
            if is_over:
                processes.shutdown(wait=False, cancel_futures=True)
                break
    if broken:
        print(f"{len(broken)} broke a promise: {broken}. To repeat the first: ./broker histories --seed {broken[0]}")
    return 1 if broken else 0


def copies_of_the_database(count: int) -> Iterator[str]:
    """Copy the migrated database, which nobody else may use meanwhile; yield the name of each copy."""
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]  # it is PostgreSQL's
    own = sql.Identifier(connection.settings_dict["NAME"])
    with psycopg.connect(urlsplit(os.environ["DATABASE_URL"])._replace(path="/postgres").geturl()) as server:
        server.autocommit = True
        for number in range(count):
            name = f"histories_{number}"
            server.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), own))
            yield name


def begin(parent: int, databases: "multiprocessing.SimpleQueue[str]") -> None:
    """Take a database of this process's own."""
    die_with(parent)
    connection.settings_dict["NAME"] = databases.get()


@cache
def own_world() -> "World":
    """Prepare the world in which this process runs its histories, until it ends."""
    from tests.histories.world import prepared_world  # noqa: PLC0415 - models need settings

    return _until_the_end.enter_context(prepared_world())


def story_of(seed: int) -> str:
    """Run a history; return its story if it breaks a promise."""
    from tests.histories.history import run_history  # noqa: PLC0415 - models need settings

    return run_history(own_world(), seed)


if __name__ == "__main__":
    sys.exit(run_command(histories, *sys.argv[1:]))
