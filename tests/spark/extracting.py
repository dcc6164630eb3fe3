"""A history that Spark reads, and what is asked of it."""

import datetime as dt
from collections import Counter
from typing import Any, Final

import psycopg
from pyspark.sql import DataFrame

from analytics.pipeline.extraction.source import copied, slices
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table
from tests.spark.bronze import TRUTH
from tests.spark.summaries import database_address

UNTIL: Final = dt.datetime(2026, 5, 3, 2, 20, tzinfo=dt.UTC)
MIDNIGHT: Final = dt.datetime(2026, 5, 3, tzinfo=dt.UTC)
HOUR: Final = dt.timedelta(hours=1)
DAY: Final = dt.timedelta(days=1)
WINDOWS: Final = (
    Window(MIDNIGHT - DAY, MIDNIGHT),
    Window(MIDNIGHT - HOUR, MIDNIGHT),
    Window(MIDNIGHT, MIDNIGHT + HOUR),
    Window(MIDNIGHT + 2 * HOUR, MIDNIGHT + 3 * HOUR),
)
OVER_MIDNIGHT: Final = """
INSERT INTO delivery_attempt (id, delivery_id, number, started_at, duration_ms, error, answer_headers, answer_excerpt)
VALUES (2605030000000001, 1, 1, '2026-05-02 23:59:59.999999+00', 10, '', '', '');
INSERT INTO delivery_delivery (id, message_id, status, size, attempts, created_at, finished_at, closed_on)
VALUES (2605020000000001, 1, 'DELIVERED', 7, 1, '2026-05-02 23:59:58+00', '2026-05-03 00:00:00+00', '2026-05-02');
"""
"""An attempt settled after midnight, and a call filed on the day before."""

SLICE_ROWS: Final = 400


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in frame.toArrow().to_pylist())


def truth(connection: psycopg.Connection[Any], table: Table, window: Window) -> Counter[tuple[Any, ...]]:
    return Counter(connection.execute(TRUTH[table], {"start": window.start, "end": window.end}).fetchall())


def record_attempt(connection: psycopg.Connection[Any], id_: int, at: dt.datetime) -> None:
    connection.execute(
        "INSERT INTO delivery_attempt (id, number, started_at, duration_ms, error, answer_headers, answer_excerpt)"
        " VALUES (%s, 1, %s, 1, '', '', '')",
        [id_, at],
    )


def record_message(connection: psycopg.Connection[Any], id_: int, at: dt.datetime) -> None:
    connection.execute(
        "INSERT INTO delivery_message (id, body, size, content_type, headers, outcome, deliveries_count, published_at)"
        " VALUES (%s, '', 0, 'text/plain', '[]', 'ROUTED', 0, %s)",
        [id_, at],
    )


def record_delivery(
    connection: psycopg.Connection[Any],
    id_: int,
    ended: dt.datetime,
    closed_on: dt.date,
    made: dt.datetime | None = None,
) -> None:
    connection.execute(
        "INSERT INTO delivery_delivery (id, status, size, attempts, created_at, finished_at, closed_on)"
        " VALUES (%s, 'DELIVERED', 7, 1, %s, %s, %s)",
        [id_, made or ended, ended, closed_on],
    )


def read_here(connection: psycopg.Connection[Any], table: Table, window: Window) -> Counter[tuple[Any, ...]]:
    """Return the rows of a window's slices, without Spark."""
    queries = slices(connection, table, window, SLICE_ROWS)
    batches = (batch for query in queries for batch in copied(database_address(), table, query))
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())
