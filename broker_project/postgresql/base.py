"""Django looks for an engine's `DatabaseWrapper` here."""

import select
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool


class DatabaseWrapper(base.DatabaseWrapper):
    """A thread's connection, lent by the pool."""

    @property
    def pool(self) -> "ConnectionPool[Any] | None":
        """The process's pool; None: it has none."""
        pool: ConnectionPool[Any] | None = super().pool
        if pool is not None:
            pool._check = check  # noqa: SLF001 - the only way: Django gives its own to each pool that it makes
        return pool


def check(connection: "psycopg.Connection[Any]") -> None:
    """Ask whether a connection still answers, if it has said anything unasked: its end, as a rule.

    Asking each time costs each request a round trip, of three or four.

    Raises:
        psycopg.Error: it does not.

    """
    if _says_something(connection):
        ConnectionPool.check_connection(connection)


def _says_something(connection: "psycopg.Connection[Any]") -> bool:
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))
