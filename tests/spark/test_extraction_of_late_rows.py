"""What is written while a window is read, and after it."""

import datetime as dt
from collections import Counter
from typing import Any

import psycopg
import pytest

from analytics.pipeline import tables
from analytics.pipeline.extraction import (
    count,
    counting,
    has_grown,
    leaf_rows,
)
from analytics.pipeline.extraction.copying import copied
from analytics.pipeline.extraction.leaves import leaves_of
from analytics.pipeline.extraction.slicing import slices
from analytics.pipeline.extraction.statements import ATTEMPTS
from analytics.pipeline.job import Window
from delivery.retention.storage_days import first_id
from tests.spark.extracting import (
    DAY,
    HOUR,
    MIDNIGHT,
    UNTIL,
    WINDOWS,
    read_here,
    record_attempt,
    record_delivery,
    record_message,
    truth,
)
from tests.spark.summaries import database_address

pytestmark = pytest.mark.django_db


def test_what_is_written_between_two_slices_is_in_no_window_but_its_own(history: psycopg.Connection[Any]) -> None:
    window = WINDOWS[2]
    expected = truth(history, tables.ATTEMPTS, window)
    queries = slices(history, tables.ATTEMPTS, window, 50)
    found: Counter[tuple[Any, ...]] = Counter()
    for number, query in enumerate(queries):
        record_attempt(history, 2605030000000100 + number, UNTIL)
        for batch in copied(database_address(), tables.ATTEMPTS, query):
            found.update(tuple(row.values()) for row in batch.to_pylist())
    assert len(queries) > 1
    assert found == expected


def test_a_row_that_comes_late_is_noticed(history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "COUNTED_ANYWAY", 10**9)
    day = WINDOWS[0].day
    known = leaf_rows(history, day)
    assert not has_grown(history, day, known)
    record_attempt(history, 2605020000000200, MIDNIGHT - HOUR)
    assert has_grown(history, day, known)
    known = leaf_rows(history, day)
    record_attempt(history, 2605030000000201, MIDNIGHT - HOUR)  # in the leaf of the day after
    assert has_grown(history, day, known)
    record_attempt(history, 2605030000000202, MIDNIGHT + HOUR)
    assert not has_grown(history, day, leaf_rows(history, day))


def test_a_big_leaf_is_not_counted_again_unless_postgresql_has_forgotten(
    history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "COUNTED_ANYWAY", 1)
    day = WINDOWS[0].day
    history.execute("SELECT pg_stat_force_next_flush()")
    known = leaf_rows(history, day)
    forged = {name: rows + (name == "delivery_attempt_20260502") for name, rows in known.items()}
    assert not has_grown(history, day, forged)
    history.execute("SELECT pg_stat_reset_single_table_counters('delivery_attempt_20260502'::regclass)")
    assert has_grown(history, day, forged)
    assert not has_grown(history, day, known)


@pytest.mark.parametrize("place", [0, -1], ids=["the first", "the last"])
def test_what_stands_in_any_other_days_leaf_is_read_and_counted(
    history: psycopg.Connection[Any], place: int
) -> None:
    """Where ids were moved on late, or the clock was set back; there is something in the leaf between."""
    window = Window(MIDNIGHT + DAY, MIDNIGHT + DAY + HOUR)
    there = dt.date.fromisoformat(leaves_of(history, ATTEMPTS)[place].removeprefix(f"{ATTEMPTS}_"))
    known = leaf_rows(history, window.day)
    record_attempt(history, first_id(there), window.start)
    record_message(history, first_id(there), window.start)
    record_delivery(history, first_id(there), window.start, there)
    for table in (tables.ATTEMPTS, tables.DELIVERIES, tables.MESSAGES):
        found = read_here(history, table, window)
        assert first_id(there) in {row[0] for row in found}
        assert found == truth(history, table, window)
        assert found.total() == count(history, table, window)
    assert has_grown(history, window.day, known)


def test_no_leaf_is_locked_while_its_rows_are_used(history: psycopg.Connection[Any]) -> None:
    batches = copied(database_address(), tables.ATTEMPTS, slices(history, tables.ATTEMPTS, WINDOWS[0], 10**6)[0])
    assert next(batches).num_rows > 0
    locks = history.execute("SELECT FROM pg_locks WHERE relation = 'delivery_attempt_20260502'::regclass")
    assert locks.rowcount == 0
