"""What the broker asks of its PostgreSQL server: checked as its processes start, and by `/readyz`."""

import sys
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
import structlog
from django.db import connection


class Requirement(NamedTuple):
    """Something that has to be true of the server."""

    holds: LiteralString
    """SQL."""
    otherwise: str
    """What is wrong if it does not, and what to do."""
    is_essential: bool = True
    """Whether the broker refuses to work without it; otherwise it is reported."""


IS_STANDBY: Final = "PostgreSQL is a standby: add ?target_session_attrs=read-write to DATABASE_URL, or promote it"
REQUIREMENTS: Final = (
    Requirement(
        "pg_backend_pid() = %(pid)s",
        "a connection pooler such as PgBouncer is between the broker and PostgreSQL, which has to keep its session"
        " (advisory locks, prepared statements, parameters): set DATABASE_URL to PostgreSQL's own address",
    ),
    Requirement("current_setting('server_version_num')::int >= 140000", "PostgreSQL is older than version 14: upgrade"),
    Requirement(
        "current_setting('server_encoding') = 'UTF8'",
        "the database's encoding is not UTF8: create it with ENCODING 'UTF8'",
    ),
    Requirement("NOT pg_is_in_recovery()", IS_STANDBY),
    Requirement(
        "current_setting('fsync')::bool", "fsync is off: a power cut loses accepted events", is_essential=False
    ),
    Requirement(
        "current_setting('full_page_writes')::bool",
        "full_page_writes is off: a power cut can corrupt tables",
        is_essential=False,
    ),
    Requirement(
        "current_setting('synchronous_commit') <> 'off'",
        "synchronous_commit is off: a crash of PostgreSQL loses accepted events",
        is_essential=False,
    ),
)
CHECK: Final = f"SELECT {', '.join(one.holds for one in REQUIREMENTS)}"

log = structlog.get_logger(__name__)


def unmet_requirements(server: "psycopg.Connection[Any]") -> list[Requirement]:
    """Return what is not true of this server.

    A pooler tells its clients a process id that is not that of their session.

    Raises:
        psycopg.Error
    """
    (holds,) = server.execute(CHECK.encode(), {"pid": server.info.backend_pid}).fetchall()
    return [one for one, is_true in zip(REQUIREMENTS, holds, strict=True) if not is_true]


def check_server_at_start() -> None:
    """End the process with one line if the broker cannot work with the server; report in one line what is unsafe."""
    try:
        with psycopg.connect(**connection.get_connection_params()) as server:
            unmet = unmet_requirements(server)
        if IS_STANDBY in [one.otherwise for one in unmet]:
            raise psycopg.OperationalError(IS_STANDBY)
    except psycopg.Error as failure:
        log.warning("database.not_checked", reason=failure)  # it is away: this process waits for it
        return
    for essential in (one for one in unmet if one.is_essential):
        sys.exit(f"broker: {essential.otherwise}.")
    if unmet:
        log.warning("database.unsafe", problems=[one.otherwise for one in unmet])
