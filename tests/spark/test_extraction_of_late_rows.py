"""What is written while a window is read, and after it."""

import datetime as dt
from collections import Counter
from typing import Any, Final

import psycopg
import pytest

from analytics.pipeline import tables
from analytics.pipeline.extraction import count, has_grown, leaf_rows, row_counts, source
from analytics.pipeline.extraction.source import copied, slices
from analytics.pipeline.extraction.statements import ATTEMPTS, leaves_of
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table
from delivery.maintenance.partitions import first_id
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

MOVE: Final = "UPDATE delivery_open SET reason = repeat(md5(reason || id), 60)"
FILE_ONE: Final = """
WITH gone AS (
  DELETE FROM delivery_open
   WHERE id = (SELECT max(id) FROM delivery_open WHERE attempts > 0 AND created_at < '2026-05-03 01:00+00') RETURNING *)
INSERT INTO delivery_delivery (id, status, size, attempts, sequence, created_at, finished_at, closed_on)
SELECT id, 'FAILED', size, attempts, sequence, created_at, '2026-05-03 03:00+00', '2026-05-03' FROM gone
"""
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
    monkeypatch.setattr(row_counts, "COUNTED_ANYWAY", 10**9)
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
    monkeypatch.setattr(row_counts, "COUNTED_ANYWAY", 1)
    day = WINDOWS[0].day
    history.execute("SELECT pg_stat_force_next_flush()")
    known = leaf_rows(history, day)
    forged = {name: rows + (name == "delivery_attempt_20260502") for name, rows in known.items()}
    assert not has_grown(history, day, forged)
    history.execute("SELECT pg_stat_reset_single_table_counters('delivery_attempt_20260502'::regclass)")
    assert has_grown(history, day, forged)
    assert not has_grown(history, day, known)


@pytest.mark.parametrize("place", [0, -1], ids=["the first", "the last"])
def test_what_stands_in_any_other_days_leaf_is_read_and_counted(history: psycopg.Connection[Any], place: int) -> None:
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


def test_retention_need_not_wait_for_slices_of_deliveries(history: psycopg.Connection[Any]) -> None:
    """It locks the parents, and what it drops."""
    queries = [
        query for table in (tables.DELIVERIES, tables.UNFINISHED) for query in slices(history, table, WINDOWS[0], 400)
    ]
    with history.transaction():
        history.execute("LOCK TABLE ONLY delivery_message, ONLY delivery_delivery IN ACCESS EXCLUSIVE MODE")
        found = [list(copied(database_address(), tables.DELIVERIES, query)) for query in queries]
    assert all(found)


@pytest.mark.parametrize(
    ("table", "told"), [(tables.UNFINISHED, "id"), (tables.WAITING, "deliveries")], ids=["unfinished", "waiting"]
)
def test_what_moves_between_two_slices_is_read_once(
    history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, table: Table, told: str
) -> None:
    """All of the open shelf is written to other pages of it, and some of it filed."""
    monkeypatch.setattr(source, "SAMPLE_PAGES", 10**6)
    window, place = WINDOWS[2], [column.split()[0] for column in table.columns.split(", ")].index(told)
    expected = [row[place] for row in truth(history, table, window)]
    queries, found = slices(history, table, window, 7), list[int]()
    for query in queries:
        for batch in copied(database_address(), table, query):
            found += batch.column(place).to_pylist()
        history.execute(MOVE)
        history.execute(FILE_ONE)
    assert len(queries) > 2
    assert (sorted(found) == sorted(expected)) if table == tables.UNFINISHED else (sum(found) == sum(expected))


def test_the_open_shelf_is_read_by_index_a_slice_at_a_time(
    history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "SAMPLE_PAGES", 10**6)
    with history.transaction():
        history.execute("SET LOCAL enable_seqscan = off")
        queries = slices(history, tables.WAITING, WINDOWS[2], 7)[1:-1]
        assert queries
        for query in queries:
            plan = history.execute(f"EXPLAIN {query}".encode()).fetchall()
            assert "delivery_open_pkey" in str(plan), "\n".join(line for (line,) in plan)


def test_what_happened_before_all_deliveries_of_a_window_is_left_there(history: psycopg.Connection[Any]) -> None:
    record = "INSERT INTO subscriptions_statuschange (subscriber_id, status, at) VALUES (%s, 'ACTIVE', %s)"
    history.execute(record, [801, MIDNIGHT - 30 * DAY])
    history.execute(record, [802, MIDNIGHT - 3 * DAY])
    record_delivery(history, first_id((MIDNIGHT - 9 * DAY).date()), MIDNIGHT, MIDNIGHT.date(), made=MIDNIGHT - 9 * DAY)
    found = {row[0] for row in read_here(history, tables.STATUS_CHANGES, WINDOWS[2])}
    assert 802 in found
    assert 801 not in found


def test_only_an_index_that_lacks_much_is_told_and_no_autovacuum_is_ended(
    history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not source.unsummarized(history, ["delivery_attempt_20260502"])
    monkeypatch.setattr(source, "MANY_ROWS", 0)  # whoever vacuums it meanwhile
    (index,) = source.unsummarized(history, ["delivery_attempt_20260502"])
    assert index.startswith("delivery_attempt_20260502")
    patient = "SELECT %s::interval < current_setting('deadlock_timeout')::interval"
    assert history.execute(patient, [source.LOCK_WAIT]).fetchone() == (True,)
    with psycopg.connect(database_address()) as vacuum:
        vacuum.execute("LOCK TABLE delivery_attempt_20260502 IN SHARE UPDATE EXCLUSIVE MODE")
        source.summarize(history, ["delivery_attempt_20260502"])  # goes on without
