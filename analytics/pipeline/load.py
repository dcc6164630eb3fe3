"""Load summaries into PostgreSQL: a window in one transaction, replacing its rows."""

import datetime as dt
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from analytics.pipeline.job import DAY, HOUR, Window, midnight
from analytics.pipeline.tables import BACKLOG, DAILY, GOLD, LATENCY, RELIABILITY, Table

TOTALLED: Final = frozenset({BACKLOG, LATENCY, RELIABILITY})
"""The summaries that `analytics_totals` adds up."""
LOCK_SECONDS: Final = 30
"""If somebody else locks the tables for longer, the window is tried again later."""

CLEAR_TOTALS: Final = "DELETE FROM analytics_totals WHERE hour >= %(start)s AND hour < %(end)s"
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

Batches = Iterable[pa.RecordBatch]


def add_up(cursor: psycopg.Cursor[Any], window: Window) -> None:
    """Replace the totals of the hours that begin in a window; an hour in which nothing happened has none."""
    hours = -((window.start - window.end) // HOUR)  # rounded up: a window may end within an hour
    bounds = {"start": window.start, "end": window.start + hours * HOUR}
    cursor.execute(CLEAR_TOTALS, bounds)
    cursor.execute(ADD_UP, bounds)


def load(
    connection: psycopg.Connection, window: Window, rows: Mapping[Table, Batches], commit_lake: Callable[[], None]
) -> None:
    """Replace the rows of a window, and of its day in daily tables.

    The rows are copied to temporary tables first, a batch a transaction: the transaction that replaces them is short,
    so it does not hold back vacuum. Readers see the old rows until all new ones are there, and never wait. Other
    writers wait: all tables are locked at once, in the same order.

    - `connection`: in autocommit, closed by the caller
    - `commit_lake` is the last thing before the transaction ends, so that a run that is cancelled or killed leaves
      lake and PostgreSQL alike, but for that instant; it raises if another run may have started

    Raises:
        psycopg.Error: nothing has been replaced.
    """
    for table, batches in rows.items():
        create = sql.SQL("CREATE TEMPORARY TABLE {} AS SELECT {} FROM {} WITH NO DATA")
        connection.execute(create.format(_staged(table), _columns(table), sql.Identifier(table.db_table)))
        statement = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(_staged(table))
        for batch in batches:
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(_as_csv(batch.select([*table.types])))
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{LOCK_SECONDS}s")))
        names = sql.SQL(", ").join(sql.Identifier(table.db_table) for table in GOLD if table in rows)
        cursor.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(names))
        for table in rows:
            clear = sql.SQL("DELETE FROM {} WHERE {time} >= %s AND {time} < %s")
            target = sql.Identifier(table.db_table)
            cursor.execute(clear.format(target, time=sql.Identifier(table.time)), _span(table, window))
            insert = sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {}")
            cursor.execute(insert.format(target, _staged(table), columns=_columns(table)))
        if TOTALLED & rows.keys():
            add_up(cursor, window)
        commit_lake()


def _as_csv(batch: pa.RecordBatch) -> bytes:
    """Return rows as PostgreSQL's CSV: nulls are empty, empty strings are quoted, maps are JSON."""
    for number, column in enumerate(batch.schema):
        if pa.types.is_map(column.type):
            texts = [None if pairs is None else json.dumps(dict(sorted(pairs))) for pairs in batch[number].to_pylist()]
            batch = batch.set_column(number, column.name, pa.array(texts, pa.string()))
    written = io.BytesIO()
    csv.write_csv(batch, written, csv.WriteOptions(include_header=False))
    return written.getvalue()


def _span(table: Table, window: Window) -> tuple[dt.date, dt.date]:
    if table not in DAILY:
        return window.start, window.end
    if table.types[table.time] == "date":
        return window.day, window.day + DAY
    return midnight(window.day), midnight(window.day + DAY)


def _columns(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, table.types))


def _staged(table: Table) -> sql.Identifier:
    return sql.Identifier("pg_temp", f"staged_{table.name}")
