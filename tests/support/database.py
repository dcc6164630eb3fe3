"""Empty the database, open a second connection, run something beside a transaction."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from django.apps import apps
from django.db import connection

from broker_project.core.db import forget_connection
from broker_project.stack.load.wait import wait_until
from delivery.maintenance import partitions
from subscriptions import matching
from subscriptions.presets import install

KEPT_TABLES: Final = [
    *("django_migrations", "django_content_type", "auth_permission", "auth_group", "auth_group_permissions"),
    "delivery_incarnation",
]
"""What migrating has made, and no test changes."""
LARGE: Final = 1024 * 1024
"""Bytes of a table, or of one of its partitions."""

LARGEST: Final = """
SELECT max(pg_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""

T = TypeVar("T")

LOCK_WAITS: LiteralString = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)

TABLES: Final = """
SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
 WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> ALL (%s)
"""
EMPTY: Final = """
DO $$
DECLARE one text;
BEGIN
  SET LOCAL session_replication_role = replica;  -- neither triggers nor foreign keys
  FOR one IN SELECT oid::regclass FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
                AND relname <> ALL (%s) AND pg_relation_size(oid) > 0
  LOOP
    EXECUTE 'DELETE FROM ' || one;
  END LOOP;
END $$
"""

PARTS_OF_BODIES: Final = """
SELECT c.reltoastrelid::regclass::text FROM pg_partition_tree('delivery_message') p
  JOIN pg_class c ON c.oid = p.relid AND c.reltoastrelid > 0
"""


def execute(statement: Any, arguments: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement on this thread's connection; return its rows, if it has any."""
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments)
        return cursor.fetchall() if cursor.description else []


def damage_long_bodies() -> None:
    """Leave PostgreSQL without the parts of bodies that it stores apart: reading one fails, as after a disk fault."""
    for (parts,) in execute(PARTS_OF_BODIES):
        execute("UPDATE pg_class SET relkind = 'r' WHERE oid = %s::regclass", [parts])  # otherwise nobody may write
        execute(f"DELETE FROM {parts}")
        execute(f"VACUUM {parts}")
        execute("UPDATE pg_class SET relkind = 't' WHERE oid = %s::regclass", [parts])


def empty_database(_case: object = None) -> None:
    """Leave the database as migrating has left it, but for the numbers that are given out next."""
    if execute(LARGEST)[0][0] > LARGE:
        execute(f"TRUNCATE {execute(TABLES, [KEPT_TABLES])[0][0]}")
    else:
        execute(EMPTY, [KEPT_TABLES])
    prepare_database()


def forget_filters() -> None:
    """Let this process forget by which paths filters are looked up."""
    for learned in (matching._known, matching._learned):
        learned.clear()


def prepare_database(**_: object) -> None:
    """Open the storage days, and install what is there before anybody has configured anything."""
    partitions.open_days(datetime.now(UTC).date(), ahead=1)
    install(apps)


def database_url() -> str:
    """Return the address of the test's own database."""
    return f"{os.environ['DATABASE_URL'].rpartition('/')[0]}/{connection.settings_dict['NAME']}"


def another_connection() -> "psycopg.Connection[Any]":
    """Open a connection as the broker's own are, with the same settings of the planner."""
    parameters = connection.get_connection_params()
    names = parameters.keys() & {"host", "port", "user", "password", "dbname", "options"}
    return psycopg.connect(**{name: parameters[name] for name in names}, autocommit=True)


def do_and_disconnect(do: Callable[[], T]) -> T:
    """Do it in this thread, and leave no connection."""
    try:
        return do()
    finally:
        forget_connection()


def in_parallel(number: int, do: Callable[[], T]) -> list[T]:
    """Call `do` in `number` threads, each with a connection of its own; return the results."""
    with ThreadPoolExecutor(number) as threads:
        return [one.result() for one in [threads.submit(do_and_disconnect, do) for _ in range(number)]]


@contextmanager
def in_other_thread(do: Callable[[], T]) -> "Iterator[Future[T]]":
    """Call `do` in another thread; begin the block when it has returned or waits for a lock."""
    waiting_before = lock_waiters()
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(do_and_disconnect, do)
        wait_until(lambda: done.done() or lock_waiters() > waiting_before)
        yield done


def lock_waiters() -> int:
    """Return how many sessions wait for a lock, also within a transaction, which caches what it reads of sessions."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(LOCK_WAITS)
        return int(cursor.rowcount)


def wait_for_time_in_the_minute() -> None:
    """Wait until the minute lasts for some seconds more: longer than the test."""
    wait_until(lambda: datetime.now(UTC).second < 55)
