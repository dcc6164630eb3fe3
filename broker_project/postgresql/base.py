"""The database engine: Django's PostgreSQL with a cheaper check of pooled connections, and an end to waiting."""

import select
import time
from typing import Any, Final

import psycopg
from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

from broker_project.core.db import NotAnswered, waits

INTERVAL_SECONDS: Final = 0.1
"""How often a wait looks for signals, as psycopg's own do."""


class Connection(psycopg.Connection[Any]):
    """A connection that gives up when the server has not answered by the time until which its thread waits."""

    def wait(self, gen: Any, interval: float = INTERVAL_SECONDS, timeout: float | None = None) -> Any:
        """Wait until an exchange with the server is over."""
        if (until := waits.until) is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, max(0.001, until - time.monotonic()))
        except psycopg.OperationalError as failure:
            if time.monotonic() < until:
                raise
            self.pgconn.finish()
            raise NotAnswered("the database did not answer in time") from failure


class DatabaseWrapper(base.DatabaseWrapper):
    """A thread's connection, taken from the pool."""

    @property
    def pool(self) -> "ConnectionPool[Any] | None":
        """The pool of this process, if it has one."""
        pool: ConnectionPool[Any] | None = super().pool
        if pool is not None:
            pool._check = check  # noqa: SLF001 - Django passes its own check to every pool that it makes
            pool.connection_class = Connection
        return pool


def check(connection: "psycopg.Connection[Any]") -> None:
    """Check an idle connection that has become readable, which usually means that the server closed it.

    Checking every time would cost every request a round trip. A broken connection raises `psycopg.Error`.
    """
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN)
    if readable.poll(0):
        ConnectionPool.check_connection(connection)
