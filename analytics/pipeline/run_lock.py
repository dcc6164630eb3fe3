"""One run at a time: the lock in PostgreSQL that a run holds as long as it lives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

LOCK: Final = "hashtextextended('analytics.pipeline', 0)"
"""Session-level: it ends with the connection, and so with the process, however that ends."""

CONNECT_SECONDS: Final = 10


class AnotherRun(Exception):
    """Somebody else summarizes; nothing has been done."""


class NoAddress(Exception):
    """What should be the database's address is none; it is not shown, for it may hold a password."""


class LockLost(Exception):
    """The database has ended the connection that held the lock: somebody else may be summarizing by now."""


@contextmanager
def only_run(database: str) -> Iterator[Callable[[], None]]:
    """Be the only run; give what raises `LockLost` once that is not certain any more.

    Raises:
        AnotherRun: there is one already.
        NoAddress: the database's address is none.
        psycopg.Error: the database does not answer.

    """
    with _connected(database) as connection:
        if not _one(connection, f"SELECT pg_try_advisory_lock({LOCK})"):
            raise AnotherRun("another run is under way; nothing has been done")
        yield lambda: _look(connection)


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
