"""Summaries into PostgreSQL, for the admin and the API: a window in one transaction, instead of what was there."""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from analytics.pipeline.job import Window
from analytics.pipeline.tables import ANOMALIES, BUDGETS, DAILY, GOLD, HOURLY, Table

Batches = Iterable[pa.RecordBatch]

SECONDS_TO_LOCK: Final = 30
"""Whoever keeps the tables for longer is somebody else's business: the window is done again."""

OF_DAY: Final = {BUDGETS: "day", ANOMALIES: "hour"}


def load(
    connection: psycopg.Connection, window: Window, rows: Mapping[Table, Batches], still: Callable[[], None]
) -> None:
    """Replace what is there of a window, and of its day.

    Readers see what was there until all of the new is; they never wait. Other writers of the same tables do: all of
    them are locked at once, in the same order. `still` raises where this run must not go on by then.

    Raises:
        psycopg.Error: nothing has been replaced.

    """
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{SECONDS_TO_LOCK}s")))
        cursor.execute(sql.SQL("SET LOCAL timezone = 'UTC'"))
        names = sql.SQL(", ").join(map(_name, GOLD))
        cursor.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(names))
        still()
        for table in GOLD:
            _clear(cursor, table, window)
            _copy(cursor, table, rows[table])


def _clear(cursor: psycopg.Cursor, table: Table, window: Window) -> None:
    column = OF_DAY[table] if table in DAILY else table.columns.split()[0]
    statement = sql.SQL("DELETE FROM {} WHERE {column} >= %s AND {column} < %s")
    cursor.execute(statement.format(_name(table), column=sql.Identifier(column)), _span(table, window))


def _span(table: Table, window: Window) -> tuple[dt.date, dt.date]:
    if table in HOURLY:
        return window.start, window.end
    if table is BUDGETS:
        return window.day, window.day + dt.timedelta(days=1)
    midnight = dt.datetime.combine(window.day, dt.time(), dt.UTC)
    return midnight, midnight + dt.timedelta(days=1)


def _copy(cursor: psycopg.Cursor, table: Table, batches: Batches) -> None:
    names = column_names(table)
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(_name(table), columns)) as copy:
        for batch in batches:
            for row in batch.to_pylist():
                copy.write_row([_value(row[name]) for name in names])


def _value(value: Any) -> Any:
    """Return a value as PostgreSQL takes it: a map, which Arrow gives as pairs, as JSON."""
    return json.dumps(dict(sorted(value))) if isinstance(value, list) else value


def column_names(table: Table) -> list[str]:
    """Return the columns of a table, in order."""
    return [column.split()[0] for column in table.columns.split(", ")]


def _name(table: Table) -> sql.Identifier:
    return sql.Identifier(f"analytics_{table.name}")
