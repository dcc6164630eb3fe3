"""Break a running broker: kill, freeze, restart, flush, add workers."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from broker_project.stack import postgres
from broker_project.stack.application import Application
from broker_project.stack.load.wait import wait_until
from broker_project.stack.supervisor import Child, Service
from delivery.maintenance.partitions import SEQUENCES
from tests.support.faults.figures import RESTARTED, promised_pause
from tests.support.faults.load import Load
from tests.support.real_broker import Broker

SWEEP = "Sending due task do chores"
"""What beat logs every thirty seconds."""

SESSIONS = "FROM pg_stat_activity WHERE backend_type = 'client backend'"
TERMINATE_ALL = f"SELECT pg_terminate_backend(pid) {SESSIONS} AND datname = %s AND pid <> pg_backend_pid()"
TERMINATE_ONE = f"""
    SELECT pg_terminate_backend(pid) {SESSIONS} AND datname = current_database() AND pid <> pg_backend_pid()
    ORDER BY random() LIMIT 1
"""
STOPPED = f"SELECT pid {SESSIONS} AND %(pid)s = ANY (pg_blocking_pids(pid))"

NUMBER = 20_061
"""Of the lock at which changes stop."""
DO_NOTHING = "CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
STOP = f"""
    CREATE OR REPLACE FUNCTION stop_there() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared({NUMBER}); RETURN NEW; END'
"""
REFUSE = """
    CREATE SEQUENCE refusals;
    CREATE OR REPLACE FUNCTION refuse_it() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE check_violation USING MESSAGE = nextval(''refusals''); END'
"""

MAX_RESTART = promised_pause(RESTARTED)
KILL_EVERY = 5.0

SECOND = "second"
"""What tells the further processes from those of the broker."""


@contextmanager
def restarted(*children: Child) -> Iterator[None]:
    """End when each of them has been started again and is ready."""
    before = {child.pid for child in children}
    yield
    wait_until(lambda: all(child.pid not in {None, *before} and child.service.is_ready() for child in children))


@contextmanager
def away(child: Child) -> Iterator[None]:
    """Kill a process and keep it down inside."""
    child.stop(signal.SIGKILL)
    try:
        yield
    finally:
        child.start()
        child.wait_until_ready()


@contextmanager
def frozen(child: Child) -> Iterator[None]:
    """Let a process and all its threads stand still inside."""
    assert child.pid
    os.killpg(child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(child.pid, signal.SIGCONT)


def freeze(child: Child) -> list[int]:
    """Let a process and its children stand still; return their ids."""
    assert child.pid
    os.kill(child.pid, signal.SIGSTOP)  # first: now it begins no more of them
    processes = [child.pid, *map(int, Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split())]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    return processes


@contextmanager
def hung(child: Child) -> Iterator[None]:
    """Let a process and its children, which have groups of their own, take what they are sent and answer nothing."""
    processes = freeze(child)
    try:
        yield
    finally:
        for process in reversed(processes):
            os.kill(process, signal.SIGCONT)


@contextmanager
def with_environment(children: Sequence[Child], **variables: str) -> Iterator[None]:
    """Restart processes with further environment variables inside, and without them afterwards."""
    services = [child.service for child in children]
    try:
        restart_as(children, [replace(one, environment={**one.environment, **variables}) for one in services])
        yield
    finally:
        restart_as(children, services)


def restart_as(children: Sequence[Child], services: Sequence[Service]) -> None:
    """Stop processes and start these in their place."""
    for child, service in zip(children, services, strict=True):
        child.stop()
        child.service = service
        child.start()
    for child in children:
        child.wait_until_ready()


@contextmanager
def beat_going_on(broker: Broker) -> Iterator[None]:
    """Fail if beat ends inside, or sends nothing any more afterwards."""
    beat = broker.stack.supervisor["beat"]
    before = beat.pid
    yield
    assert beat.pid == before
    sent = beat.log.read_text().count(SWEEP)
    wait_until(lambda: beat.log.read_text().count(SWEEP) > sent)


def send(number: signal.Signals, child: Child) -> None:
    """Send a signal to a process, not to its group."""
    assert child.pid
    os.kill(child.pid, number)


def flush_redis(broker: Broker) -> None:
    """Forget everything that Redis holds."""
    with broker.redis() as redis:
        redis.flushall()


@contextmanager
def read_only(broker: Broker) -> Iterator[None]:
    """Let the database be read-only for all sessions inside, as hosters do when a disk is full."""
    with terminating(broker) as connection:
        connection.execute("SET default_transaction_read_only = off")
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        try:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            yield
        finally:
            connection.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))


def dump(broker: Broker, file: Path) -> None:
    """Write what the database holds to a file."""
    postgres.run("pg_dump", "--format=custom", f"--file={file}", broker.stack.environment["DATABASE_URL"])


def restore(broker: Broker, file: Path) -> None:
    """Restore a dump as the documentation says: into a new database, while the broker is stopped."""
    address = broker.stack.environment["DATABASE_URL"]
    children = [child for child in broker.stack.supervisor if not child.service.is_store]
    for child in children:
        child.stop(signal.SIGTERM)
    with beside_database(broker) as (connection, name):
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
    postgres.run("pg_restore", f"--dbname={address}", file)
    restart_as(children, [child.service for child in children])


def copy_database(broker: Broker) -> Path:
    """Return a copy of the server's files as they are at the end, as a standby has them that hears no more."""
    copy = data_of(broker).with_name("copy")
    address = f"--dbname={broker.stack.environment['DATABASE_URL']}"
    postgres.run("pg_basebackup", address, f"--pgdata={copy}", "--checkpoint=fast", "--no-sync")
    (copy / "standby.signal").touch()
    return copy


def promote(broker: Broker, copy: Path) -> None:
    """Let the copy take the place of the server, which vanishes."""
    server = broker.stack.supervisor["postgres"]
    server.stop(signal.SIGKILL)
    shutil.rmtree(data_of(broker))
    copy.rename(data_of(broker))
    server.start()
    server.wait_until_ready()
    broker.ask("SELECT pg_promote(wait => false)")


def data_of(broker: Broker) -> Path:
    """Return the folder of PostgreSQL's files."""
    return broker.stack.logs.with_name("postgres") / "data"


def set_ids_back(broker: Broker) -> None:
    """Let the database give ids that it has given before, as it does after its files were restored."""
    for sequence in SEQUENCES:
        broker.ask(f"SELECT setval('{sequence}', last_value - 20) FROM {sequence}")


def incarnation(broker: Broker) -> str:
    """Return which incarnation of the database this is."""
    return str(broker.ask("SELECT id FROM delivery_incarnation")[0][0])


@contextmanager
def beside_database(broker: Broker) -> Iterator[tuple[psycopg.Connection, sql.Identifier]]:
    """Give a connection to another database of the server, and the name of the broker's."""
    address = urlsplit(broker.stack.environment["DATABASE_URL"])._replace(path="/postgres")
    with psycopg.connect(address.geturl(), autocommit=True) as connection:
        yield connection, sql.Identifier(postgres.NAME)


@contextmanager
def terminating(broker: Broker) -> Iterator[psycopg.Connection]:
    """Give a connection of our own to end others with."""
    with psycopg.connect(broker.stack.environment["DATABASE_URL"], autocommit=True) as connection:
        yield connection


def terminate_a_backend(connection: psycopg.Connection) -> Sequence[object] | None:
    """End a random database session of the broker; return None if there was none."""
    return connection.execute(TERMINATE_ONE).fetchone()


@contextmanager
def locked(broker: Broker, rows: str, **arguments: object) -> Iterator[psycopg.Connection]:
    """Lock the rows of a query inside, as somebody does who forgets an open transaction; give that connection."""
    with psycopg.connect(broker.stack.environment["DATABASE_URL"]) as connection:
        connection.execute(f"{rows} FOR UPDATE".encode(), arguments)
        yield connection


@contextmanager
def _triggered(broker: Broker, function: str, change: str) -> Iterator[psycopg.Connection]:
    (name,) = re.findall(r"(\w+)\(\)", function)
    with terminating(broker) as connection:
        connection.execute(function.encode())
        connection.execute(f"CREATE TRIGGER {name} BEFORE {change} EXECUTE FUNCTION {name}()".encode())
        try:
            yield connection
        finally:
            connection.execute(DO_NOTHING.format(name).encode())  # to drop it now could end in a deadlock


@contextmanager
def stopped(broker: Broker, change: str) -> Iterator[Callable[[], Sequence[int]]]:
    """Let statements stop before such a change of a row inside, as "INSERT ON a_table"; give the sessions that have."""
    with _triggered(broker, STOP, change) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [NUMBER])
        pid = connection.info.backend_pid
        try:
            yield lambda: [one for (one,) in broker.ask(STOPPED, pid=pid)]
        finally:
            connection.execute("SELECT pg_advisory_unlock_all()")


@contextmanager
def refused(broker: Broker, change: str) -> Iterator[Callable[[], bool]]:
    """Let the database refuse such a change of a row inside; give whether it has."""
    with _triggered(broker, REFUSE, change) as connection:
        try:
            yield lambda: bool(broker.ask("SELECT is_called FROM refusals")[0][0])
        finally:
            connection.execute("DROP SEQUENCE refusals")


def drop_triggers(broker: Broker) -> None:
    """Drop what `stopped` and `refused` have left; nothing may be under way."""
    with terminating(broker) as connection:
        connection.execute("DROP FUNCTION IF EXISTS stop_there, refuse_it CASCADE")


def terminate(broker: Broker, sessions: Sequence[int]) -> None:
    """End these database sessions."""
    broker.ask("SELECT pg_terminate_backend(pid) FROM unnest(%(sessions)s::int[]) AS pid", sessions=[*sessions])


@contextmanager
def refusing_connections(broker: Broker) -> Iterator[None]:
    """End all database sessions, and let nobody connect inside."""
    allow = "ALTER DATABASE {} ALLOW_CONNECTIONS {}"
    with beside_database(broker) as (connection, name):
        connection.execute(sql.SQL(allow).format(name, False))
        try:
            connection.execute(TERMINATE_ALL.encode(), [postgres.NAME])
            yield
        finally:
            connection.execute(sql.SQL(allow).format(name, True))


@contextmanager
def on_small_disk(broker: Broker, disk: Path) -> Iterator[Path]:
    """Move the database to a disk of its own inside, a little larger than it is; give a file with which to fill it."""
    size, spare = broker.ask("SELECT pg_database_size(current_database())")[0][0], 64 * 1024 * 1024
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size + spare}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk can be mounted only by root")
    try:
        postgres.ordinary_user().own(disk)
        data = disk / "data"
        data.mkdir()
        postgres.ordinary_user().own(data)
        with moved(broker, data):
            yield disk / "filler"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextmanager
def moved(broker: Broker, folder: Path) -> Iterator[None]:
    """Move the database to a tablespace in this folder inside."""
    move = sql.SQL("ALTER DATABASE {} SET TABLESPACE {}")
    with beside_database(broker) as (connection, name):
        connection.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(str(folder)))
        with refusing_connections(broker):
            connection.execute(move.format(name, sql.Identifier("small")))
        try:
            yield
        finally:
            with refusing_connections(broker):
                connection.execute(move.format(name, sql.Identifier("pg_default")))
            connection.execute("DROP TABLESPACE small")


@contextmanager
def full(filler: Path) -> Iterator[None]:
    """Leave no space on a disk inside."""
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(2**16)):
            pass
    try:
        yield
    finally:
        filler.unlink()


def kill_all(load: Load) -> None:
    """Kill every worker at the same time, once all run."""
    workers = load.broker.workers()
    wait_until(lambda: all(worker.pid for worker in workers), MAX_RESTART)
    with load.fault():
        for worker in workers:
            worker.kill()


def kill_again_and_again(load: Load, kills: int) -> None:
    """Kill a worker every few seconds, `kills` times, in random order and each equally often.

    A worker that is killed more often is restarted after longer and longer pauses.
    """
    workers = load.broker.workers()
    for victim in random.sample(workers * -(-kills // len(workers)), kills):
        wait_until(partial(getattr, victim, "pid"), MAX_RESTART)
        with load.fault():
            victim.kill()
        time.sleep(KILL_EVERY)


@contextmanager
def more_workers(broker: Broker) -> Iterator[None]:
    """Run as many workers again inside, under other names."""
    numbers = range(1, len(broker.workers()) + 1)
    workers = [_installation(broker, SECOND).worker(number) for number in numbers]
    with broker.stack.supervisor.meanwhile(*(replace(worker, name=f"{worker.name}-{SECOND}") for worker in workers)):
        yield


@contextmanager
def more_beats(broker: Broker, count: int) -> Iterator[None]:
    """Run `count` further beats inside."""
    names = [f"beat-{number + 1}-{SECOND}" for number in range(count)]
    beats = [replace(_installation(broker, name).beat(), name=name) for name in names]
    with broker.stack.supervisor.meanwhile(*beats):
        yield


def _installation(broker: Broker, name: str) -> Application:
    return Application(broker.stack.environment, 0, 0, "", name)
