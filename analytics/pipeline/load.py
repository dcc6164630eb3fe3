"""Load summaries into PostgreSQL: a window in one transaction, replacing what was there."""

import datetime as dt
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from analytics.pipeline.job import DAY, HOUR, Window
from analytics.pipeline.tables import ANOMALIES, BACKLOG, BUDGETS, DAILY, GOLD, HOURLY, LATENCY, RELIABILITY, Table

ADDED_UP: Final = frozenset({BACKLOG, LATENCY, RELIABILITY})

CLEAR: Final = "DELETE FROM analytics_totals WHERE hour >= %(start)s AND hour < %(end)s"

Batches = Iterable[pa.RecordBatch]

SECONDS_TO_LOCK: Final = 30
"""Whoever keeps the tables for longer is somebody else's business: the window is done again."""

OF_DAY: Final = {BUDGETS: "day", ANOMALIES: "hour"}

ADD_UP: Final = """
WITH ended AS (
  SELECT hour, sum(deliveries) AS deliveries, sum(delivered) AS delivered, sum(eligible) AS eligible,
         sum(first_attempt) AS first_attempt
    FROM analytics_reliability WHERE hour >= %(start)s AND hour < %(end)s GROUP BY hour),
statuses AS (
  SELECT hour, jsonb_object_agg(status, number) AS by_status
    FROM (SELECT hour, status, sum(number::bigint)::bigint AS number
            FROM analytics_reliability, jsonb_each_text(by_status) AS s (status, number)
           WHERE hour >= %(start)s AND hour < %(end)s GROUP BY hour, status) AS of_status
   GROUP BY hour),
took AS (
  SELECT hour, jsonb_object_agg(bucket, number) AS histogram
    FROM (SELECT hour, bucket, sum(number::bigint)::bigint AS number
            FROM analytics_latency, jsonb_each_text(histogram) AS h (bucket, number)
           WHERE hour >= %(start)s AND hour < %(end)s AND measure = 'delivery' GROUP BY hour, bucket) AS in_bucket
   GROUP BY hour),
waited AS (
  SELECT date_trunc('hour', at, 'UTC') AS hour, max(deliveries) AS backlog
    FROM (SELECT at, sum(deliveries) AS deliveries
            FROM analytics_backlog WHERE at >= %(start)s AND at < %(end)s GROUP BY at) AS moments
   GROUP BY 1)
INSERT INTO analytics_totals (hour, deliveries, delivered, eligible, first_attempt, by_status, histogram, backlog)
SELECT hour, COALESCE(deliveries, 0), COALESCE(delivered, 0), COALESCE(eligible, 0), COALESCE(first_attempt, 0),
       COALESCE(by_status, '{}'), COALESCE(histogram, '{}'), COALESCE(backlog, 0)
  FROM ended FULL JOIN statuses USING (hour) FULL JOIN took USING (hour) FULL JOIN waited USING (hour)
"""


def add_up(cursor: psycopg.Cursor[Any], window: Window) -> None:
    """Replace the totals of the hours that begin in a window; of one in which nothing happened there is none.

    Of a window that ends within an hour too it is all that is there of that hour.
    """
    hours = -((window.start - window.end) // HOUR)
    bounds = {"start": window.start, "end": window.start + hours * HOUR}
    cursor.execute(CLEAR, bounds)
    cursor.execute(ADD_UP, bounds)


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
