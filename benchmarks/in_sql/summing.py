"""Summing windows up: temporary tables, named as Spark's, that grow window by window."""

from typing import Any, Final

import psycopg

from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.tables import Table
from benchmarks.in_sql.days import BUDGET
from benchmarks.in_sql.facts import FACTS
from benchmarks.in_sql.plain_sql import TOTALS
from benchmarks.in_sql.words import parameters

HOURLY: Final = tuple(TOTALS)
DAILY: Final = tuple(BUDGET)


def sum_up(
    connection: psycopg.Connection[Any], window: Window, words: Vocabulary, *, objective: float, memory: str = "64MB"
) -> None:
    """Add a window, the next in time, to the summaries in temporary tables of a connection; a day's are made anew."""
    said = parameters(words, window, objective=objective)
    with connection.transaction(), psycopg.ClientCursor(connection) as cursor:
        cursor.execute(f"SET LOCAL work_mem = '{memory}'; SET LOCAL timezone = 'UTC'; SET LOCAL jit = off".encode())
        for statement in FACTS:
            cursor.execute(statement.encode(), said)
        for table, query in TOTALS.items():
            _add(cursor, table, query, said)
        for table, query in BUDGET.items():
            if _is_there(cursor, table):
                cursor.execute(f"DELETE FROM pg_temp.{table.name} WHERE day = %(start)s::date".encode(), said)
            _add(cursor, table, query, said)


def _add(cursor: psycopg.ClientCursor[Any], table: Table, query: str, said: dict[str, Any]) -> None:
    made = f"INSERT INTO pg_temp.{table.name}" if _is_there(cursor, table) else f"CREATE TEMP TABLE {table.name} AS"
    cursor.execute(f"{made} {query}".encode(), said)


def _is_there(cursor: psycopg.ClientCursor[Any], table: Table) -> bool:
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [f"pg_temp.{table.name}"])
    return bool((cursor.fetchone() or [False])[0])
