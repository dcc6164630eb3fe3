"""One run at a time: the locks in PostgreSQL that a run, and the worker that has started it, hold while they live."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg

LOCK: Final = "hashtextextended('analytics.pipeline', 0)"
"""Session-level: it ends with the connection, and so with the process, however that ends."""
WORKER_LOCK: Final = "hashtextextended('analytics.runs', 0)"
"""Likewise of who starts the application, from before it is started until its end is written down."""

CONNECT_SECONDS: Final = 10


class AnotherRun(Exception):
    """Somebody else summarizes; nothing has been done."""


class NoAddress(Exception):
    """What should be the database's address is none; it is not shown, for it may hold a password."""


class LockLost(Exception):
    """The database has ended the connection that held the lock: somebody else may be summarizing by now."""


@contextmanager
def only_run(database: str, lock: str = LOCK) -> Iterator[Callable[[], None]]:
    """Be the only one with the lock; give what raises `LockLost` once that is not certain any more.

    Raises:
        AnotherRun: there is one already.
        NoAddress: the database's address is none.
        psycopg.Error: the database does not answer.

    """
    with _connected(database) as connection:
        if not _one(connection, f"SELECT pg_try_advisory_lock({lock})"):
            raise AnotherRun("another run is under way; nothing has been done")
        try:
            yield lambda: _look(connection)
        finally:
            with suppress(psycopg.Error):  # it would end with the connection, but a moment later than the next one asks
                connection.execute(f"SELECT pg_advisory_unlock({lock})")


def _connected(database: str) -> psycopg.Connection:
    try:
        return psycopg.connect(database, autocommit=True, connect_timeout=CONNECT_SECONDS)
    except psycopg.ProgrammingError:  # libpq quotes what it cannot read
        raise NoAddress("the database's address is no address of PostgreSQL") from None


def _look(connection: psycopg.Connection) -> None:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error as failure:
        raise LockLost(
            "the connection that held the lock of this run is lost: another one may be under way"
        ) from failure


def _one(connection: psycopg.Connection, query: str) -> bool:
    row = connection.execute(query).fetchone()
    return bool(row and row[0])
