"""Ways to break a running broker: kill, stop, freeze, flush."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from broker_project.stack.supervisor import Child
from tests.real_broker import Broker
from tests.receiver import wait_until

RESTART_SECONDS = 60.0
SWEEP = "Sending due task sweep lines"
"""What beat logs every five seconds."""

TERMINATE_ONE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    ORDER BY random() LIMIT 1
"""


@contextmanager
def restarted(*children: Child) -> Iterator[None]:
    """End when each of them has been started again and is ready."""
    before = {child.pid for child in children}
    yield
    wait_until(
        lambda: all(child.pid not in {None, *before} and child.service.is_ready() for child in children),
        RESTART_SECONDS,
    )


@contextmanager
def away(child: Child) -> Iterator[None]:
    """Kill a process and keep it down inside."""
    child.take_down()
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
    """Send a signal to a process alone, as somebody at a terminal would."""
    assert child.pid
    os.kill(child.pid, number)


def flush_redis(broker: Broker) -> None:
    """Forget everything that Redis holds."""
    with broker.redis() as redis:
        redis.flushall()


@contextmanager
def terminating(broker: Broker) -> Iterator[psycopg.Connection]:
    """Give a connection of our own to end others with."""
    with psycopg.connect(broker.stack.environment["DATABASE_URL"], autocommit=True) as connection:
        yield connection


def terminate_a_backend(connection: psycopg.Connection) -> Sequence[object] | None:
    """End a database session of the broker, whichever; return None if there was none."""
    return connection.execute(TERMINATE_ONE).fetchone()
