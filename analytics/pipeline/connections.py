"""The pipeline's connections to PostgreSQL: read-only ones that disturb nobody, and the lock of the run in progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

CONNECT_SECONDS: Final = 10
SETTINGS: Final = {
    "application_name": "broker-summaries",
    "default_transaction_read_only": "on",
    # A slice is copied in a second: a longer transaction holds back vacuum, and the lines with it.
    "statement_timeout": "120s",
    "idle_in_transaction_session_timeout": "120s",
    # Give way to retention, which drops days; otherwise publishers would wait behind both.
    "lock_timeout": "5s",
    "work_mem": "8MB",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "enable_bitmapscan": "on",
    "timezone": "UTC",
    "datestyle": "ISO",
    "client_encoding": "UTF8",
}

LOCK: Final = "hashtextextended('analytics.pipeline', 0)"
"""Held by the Spark application. It is a session lock: it ends with the connection, however the process ends."""
WORKER_LOCK: Final = "hashtextextended('analytics.runs', 0)"
"""Held by the worker from before the application starts until the end of the run is recorded."""


class Unreadable(Exception):
    """PostgreSQL or its address is wrong, or the rows no longer exist; the message never contains the address."""


class AnotherRun(Exception):
    """Another run is in progress; nothing has been done."""


class LockLost(Exception):
    """The database has closed the connection that held the lock: another run may have started."""


@contextmanager
def reading(address: str) -> Iterator[psycopg.Connection[Any]]:
    """Open a read-only connection; each statement is a short transaction of its own.

    Raises:
        Unreadable: PostgreSQL is away, refuses, or does not have what is asked for.
    """
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    try:
        with psycopg.connect(address, autocommit=True, options=options, connect_timeout=CONNECT_SECONDS) as connection:
            yield connection
    except psycopg.ProgrammingError as refused:
        # libpq quotes an invalid address; the server's own messages never contain it.
        raise Unreadable(refused.diag.message_primary or "the database address is no address of PostgreSQL") from None
    except psycopg.Error as failure:
        raise Unreadable(str(failure).strip()) from None


def fetch(connection: psycopg.Connection[Any], query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query, which is put together from constants."""
    return connection.execute(query.encode(), parameters or None).fetchall()


@contextmanager
def only_run(database: str, lock: str = LOCK) -> Iterator[Callable[[], None]]:
    """Hold the lock; yield a function that raises `LockLost` once the lock may be lost.

    Raises:
        AnotherRun: another process holds it.
        Unreadable: the database address is invalid.
        psycopg.Error: the database does not answer.
    """
    try:
        held = psycopg.connect(database, autocommit=True, connect_timeout=CONNECT_SECONDS)
    except psycopg.ProgrammingError:  # libpq quotes what it cannot read
        raise Unreadable("the database's address is no address of PostgreSQL") from None

    def ensure_held() -> None:
        try:
            held.execute("SELECT 1")
        except psycopg.Error as failure:
            raise LockLost(
                "the connection that held the lock of this run is lost: another one may be under way"
            ) from failure

    with held:
        if held.execute(f"SELECT pg_try_advisory_lock({lock})").fetchone() != (True,):
            raise AnotherRun("another run is under way; nothing has been done")
        try:
            yield ensure_held
        finally:
            with suppress(psycopg.Error):  # closing the connection unlocks too, but later than the next run may ask
                held.execute(f"SELECT pg_advisory_unlock({lock})")
