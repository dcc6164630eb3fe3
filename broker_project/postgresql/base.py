"""The database engine: Django's PostgreSQL with a pool of our own connections, which it checks more cheaply."""

import select
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

from broker_project.core.db import Connection


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
