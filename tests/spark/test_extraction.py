"""What Spark reads of a generated history is what SQL says, for every table and whatever window."""

from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from analytics.pipeline import tables
from analytics.pipeline.extraction import count, read
from analytics.pipeline.extraction.source import slices
from analytics.pipeline.extraction.statements import IN_WINDOW, relations_of
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table
from benchmarks.history.history import ERRORS
from delivery.statuses import DeliveryStatus
from tests.spark.extracting import DAY, HOUR, MIDNIGHT, SLICE_ROWS, UNTIL, WINDOWS, record_message, rows, truth

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "window",
    [pytest.param(one, id=str(one), marks=[pytest.mark.lengthy] * (number % 2)) for number, one in enumerate(WINDOWS)],
)
@pytest.mark.parametrize("table", tables.BRONZE, ids=lambda table: table.name)
def test_spark_reads_what_postgresql_holds(
    frames: SparkSession, history: psycopg.Connection[Any], table: Table, window: Window
) -> None:
    found = rows(read(frames, table, window, slice_rows=SLICE_ROWS))
    assert found == truth(history, table, window)
    assert table not in IN_WINDOW or found.total() == count(history, table, window)
    assert not table.key or max(found.values(), default=1) == 1


def test_the_history_has_all_that_can_happen(history: psycopg.Connection[Any]) -> None:
    """Else reading it right would say little."""
    all_of_it = Window(MIDNIGHT - DAY, UNTIL + HOUR)
    statuses = history.execute("SELECT DISTINCT status FROM delivery_delivery").fetchall()
    errors = history.execute("SELECT DISTINCT error FROM delivery_attempt").fetchall()
    assert {status for (status,) in statuses} == set(DeliveryStatus.values)
    assert {error for (error,) in errors} == {"", *ERRORS}
    assert all(truth(history, table, all_of_it) for table in tables.BRONZE)
    on_the_hour = "SELECT FROM delivery_delivery WHERE finished_at = date_trunc('hour', finished_at)"
    assert history.execute(on_the_hour).rowcount > 1


def test_a_window_is_cut_into_slices_of_about_the_size_asked_for(history: psycopg.Connection[Any]) -> None:
    window = WINDOWS[0]
    queries = slices(history, tables.ATTEMPTS, window, SLICE_ROWS)
    sizes = [history.execute(query.encode()).rowcount for query in queries]
    assert sum(sizes) == count(history, tables.ATTEMPTS, window)
    assert max(sizes) <= 1.1 * SLICE_ROWS  # what began at one moment stays together
    assert len(queries) > 2


def test_what_goes_over_midnight_is_found_by_its_time(frames: SparkSession, history: psycopg.Connection[Any]) -> None:
    before, after = WINDOWS[1], WINDOWS[2]
    assert 2605030000000001 in {row[0] for row in rows(read(frames, tables.ATTEMPTS, before, slice_rows=SLICE_ROWS))}
    assert 2605020000000001 in {row[0] for row in rows(read(frames, tables.DELIVERIES, after, slice_rows=SLICE_ROWS))}


def test_a_day_on_which_nothing_happened_is_empty(frames: SparkSession) -> None:
    window = Window(MIDNIGHT + DAY, MIDNIGHT + 2 * DAY)
    happened = (tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES, tables.CALLBACKS)
    assert [read(frames, table, window, slice_rows=SLICE_ROWS).count() for table in happened] == [0] * 4


def test_messages_that_retention_kept_are_read_without_an_index(
    frames: SparkSession, history: psycopg.Connection[Any]
) -> None:
    indexes = history.execute(
        "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a"
        " ON a.oid = relam WHERE indrelid = 'delivery_message_20260502'::regclass AND amname = 'brin'"
    ).fetchall()
    assert len(indexes) == 1
    history.execute(f"DROP INDEX {indexes[0][0]}".encode())
    record_message(history, 2605020000000001, MIDNIGHT)
    found = rows(read(frames, tables.MESSAGES, WINDOWS[2], slice_rows=SLICE_ROWS))
    assert "delivery_message_20260502" in relations_of(history, tables.MESSAGES, WINDOWS[2])
    assert found == truth(history, tables.MESSAGES, WINDOWS[2])
