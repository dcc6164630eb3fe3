"""Connections to PostgreSQL that disturb nobody, and what is said when there is none."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

import psycopg

CONNECT_SECONDS: Final = 10
SETTINGS: Final = {
    "application_name": "broker-summaries",
    "default_transaction_read_only": "on",
    # A slice is copied in a second: whoever needs longer holds back vacuum, and the lines with it.
    "statement_timeout": "120s",
    "idle_in_transaction_session_timeout": "120s",
    # Behind whoever drops a day, not in front of those who publish.
    "lock_timeout": "5s",
    "work_mem": "8MB",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "enable_bitmapscan": "on",
    "timezone": "UTC",
    "datestyle": "ISO",
    "client_encoding": "UTF8",
}


class Unreadable(Exception):
    """PostgreSQL is away, or what was to be read is not there any more; the message never has the address."""


class DayGone(Unreadable):
    """The day has been dropped, or never was: reading it would make nothing of what is summarized already."""


class Connection(Protocol):
    """What questions are put to: a connection of psycopg, or Django's."""

    def cursor(self) -> AbstractContextManager[Any]:
        """Return what executes them."""


@contextmanager
def reading(address: str) -> Iterator[psycopg.Connection[Any]]:
    """Give a connection that only reads; each statement is a short transaction of its own.

    Raises:
        Unreadable: PostgreSQL is away, refuses, or has not what is asked for.

    """
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    try:
        with psycopg.connect(address, autocommit=True, options=options, connect_timeout=CONNECT_SECONDS) as connection:
            yield connection
    except psycopg.ProgrammingError as refused:
        # An address that is no address is quoted by libpq; what the server says is not about the address.
        said = refused.diag.message_primary or "the database address is no address of PostgreSQL"
        raise Unreadable(said) from None
    except psycopg.Error as failure:
        raise Unreadable(str(failure).strip()) from None
