"""A history that Spark reads, and what is asked of it."""

import datetime as dt
from collections import Counter
from typing import Any, Final

import psycopg
from pyspark.sql import DataFrame

from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table
from tests.spark.bronze import TRUTH

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
