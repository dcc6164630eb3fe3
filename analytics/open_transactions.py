"""Transactions that keep days from being sealed: what they have written may be filed under a day that is over."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from django.db import connection

OLDEST: Final = """
SELECT pid, application_name, xact_start FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL AND xact_start IS NOT NULL
 ORDER BY xact_start LIMIT 1
"""
"""Of those that have written something, and only they have a number: what they wrote nobody else sees yet.

Whoever only reads, a backup or a forgotten window of psql, keeps nothing from being sealed. Should it still write, what
it files late makes its day due again: the leaf then holds more than was summarized.
"""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has written something and has not ended."""

    pid: int
    """Of its process of PostgreSQL."""
    application: str
    """What whoever began it calls itself, may be nothing."""
    since: dt.datetime

    def __str__(self) -> str:
        whose = f"{self.pid} ({self.application})" if self.application else f"{self.pid}"
        return (
            f"Days from {self.since:%Y-%m-%d} on are not summarized as a whole: PostgreSQL's process {whose} has had a"
            f" transaction open since {self.since:%Y-%m-%d %H:%M} UTC that has written something. End it, if need be by"
            f" SELECT pg_terminate_backend({self.pid})."
        )


def oldest_transaction() -> OpenTransaction | None:
    """Return the one that has been open for longest."""
    with connection.cursor() as cursor:
        cursor.execute(OLDEST)
        row = cursor.fetchone()
        return OpenTransaction(*row) if row else None
