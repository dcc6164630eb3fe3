"""Summaries into PostgreSQL, for the admin and the API: a window in one transaction, instead of what was there."""

import datetime as dt
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from analytics.pipeline.job import DAY, Window
from analytics.pipeline.tables import ANOMALIES, BUDGETS, DAILY, GOLD, HOURLY, Table
from analytics.pipeline.totals import ADDED_UP, add_up

Batches = Iterable[pa.RecordBatch]

SECONDS_TO_LOCK: Final = 30
"""Whoever keeps the tables for longer is somebody else's business: the window is done again."""

OF_DAY: Final = {BUDGETS: "day", ANOMALIES: "hour"}


def load(
    connection: psycopg.Connection, window: Window, rows: Mapping[Table, Batches], still: Callable[[], None]
) -> None:
    """Replace what is there of a window, and of its day, in the tables that rows are given of.

    The rows are copied to temporary tables first, a batch a transaction: the one that replaces is short, and with it
    the time for which vacuum must keep whatever dies in the whole database. Readers see what was there until all of the
    new is; they never wait. Other writers of the same tables do: all of them are locked at once, in the same order.

    - `connection`: in autocommit, and ended after this
    - `still` raises where this run must not go on by then

    Raises:
        psycopg.Error: nothing has been replaced.

    """
    for table, batches in rows.items():
        _stage(connection, table, batches)
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{SECONDS_TO_LOCK}s")))
        names = sql.SQL(", ").join(_name(table) for table in GOLD if table in rows)
        cursor.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(names))
        still()
        for table in rows:
            _clear(cursor, table, window)
            insert = sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {}")
            cursor.execute(insert.format(_name(table), _staged(table), columns=_columns(table)))
        if ADDED_UP & rows.keys():
            add_up(cursor, window)


def _stage(connection: psycopg.Connection, table: Table, batches: Batches) -> None:
    create = sql.SQL("CREATE TEMPORARY TABLE {} AS SELECT {} FROM {} WITH NO DATA")
    connection.execute(create.format(_staged(table), _columns(table), _name(table)))
    statement = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(_staged(table))
    for batch in batches:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(_as_csv(batch.select(column_names(table))))


def _as_csv(batch: pa.RecordBatch) -> bytes:
    """Return rows as PostgreSQL takes them: what is null is empty, an empty text is quoted, a map is JSON."""
    for number, column in enumerate(batch.schema):
        if pa.types.is_map(column.type):
            texts = [None if pairs is None else json.dumps(dict(sorted(pairs))) for pairs in batch[number].to_pylist()]
            batch = batch.set_column(number, column.name, pa.array(texts, pa.string()))
    written = io.BytesIO()
    csv.write_csv(batch, written, csv.WriteOptions(include_header=False))
    return written.getvalue()


def _clear(cursor: psycopg.Cursor, table: Table, window: Window) -> None:
    column = OF_DAY[table] if table in DAILY else table.columns.split()[0]
    statement = sql.SQL("DELETE FROM {} WHERE {column} >= %s AND {column} < %s")
    cursor.execute(statement.format(_name(table), column=sql.Identifier(column)), _span(table, window))


def _span(table: Table, window: Window) -> tuple[dt.date, dt.date]:
    if table in HOURLY:
        return window.start, window.end
    if table is BUDGETS:
        return window.day, window.day + DAY
    midnight = dt.datetime.combine(window.day, dt.time(), dt.UTC)
    return midnight, midnight + DAY


def column_names(table: Table) -> list[str]:
    """Return the columns of a table, in order."""
    return [column.split()[0] for column in table.columns.split(", ")]


def _name(table: Table) -> sql.Identifier:
    return sql.Identifier(f"analytics_{table.name}")


def _columns(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, column_names(table)))


def _staged(table: Table) -> sql.Identifier:
    return sql.Identifier("pg_temp", f"staged_{table.name}")
