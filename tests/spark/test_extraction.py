"""What Spark reads from PostgreSQL: every table and window, late rows, failures."""

import datetime as dt
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from analytics.pipeline import connections, tables
from analytics.pipeline.connections import Unreadable
from analytics.pipeline.extraction import row_counts, source
from analytics.pipeline.extraction.row_counts import counts, has_grown, leaf_rows
from analytics.pipeline.extraction.source import copied, read, register, slices
from analytics.pipeline.extraction.statements import (
    ATTEMPTS,
    ENDPOINT,
    IN_WINDOW,
    bounds_of,
    leaves_of,
    relations_of,
    selected,
)
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table
from delivery.maintenance.partitions import first_id
from tests.support.spark_history import (
    HOUR,
    MIDNIGHT,
    ONE_DAY,
    SLICE_ROWS,
    UNTIL,
    WINDOWS,
    database_address,
    read_here,
    record_attempt,
    record_delivery,
    record_message,
    rows,
    truth,
)
from tests.support.spark_runs import QUICK_START

pytestmark = pytest.mark.django_db

MINUTE: Final = dt.timedelta(minutes=1)
MOVE: Final = "UPDATE delivery_open SET reason = repeat(md5(reason || id), 60)"


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
    assert table not in IN_WINDOW or found.total() == counts(history, window)[table]
    assert not table.key or max(found.values(), default=1) == 1


def test_a_window_is_cut_into_slices_of_about_the_requested_size(history: psycopg.Connection[Any]) -> None:
    window = WINDOWS[0]
    queries = slices(history, tables.ATTEMPTS, window, SLICE_ROWS)
    sizes = [history.execute(query.encode()).rowcount for query in queries]
    assert sum(sizes) == counts(history, window)[tables.ATTEMPTS]
    assert max(sizes) <= 1.1 * SLICE_ROWS  # what began at one moment stays together
    assert len(queries) > 2


def test_kept_messages_are_read_without_an_index(frames: SparkSession, history: psycopg.Connection[Any]) -> None:
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


def test_a_dropped_day_is_not_an_empty_day(frames: SparkSession, history: psycopg.Connection[Any]) -> None:
    gone = Window(MIDNIGHT - 9 * ONE_DAY, MIDNIGHT - 8 * ONE_DAY)
    with pytest.raises(PySparkException, match="2026-04-24 cannot be summarized"):
        read(frames, tables.ATTEMPTS, gone, slice_rows=SLICE_ROWS).count()
    with pytest.raises(Unreadable, match="cannot be summarized"):
        relations_of(history, tables.ATTEMPTS, gone)


def test_a_partition_dropped_while_it_is_read_fails_the_window(history: psycopg.Connection[Any]) -> None:
    stretch = bounds_of(tables.ATTEMPTS, WINDOWS[0])
    query = selected(tables.ATTEMPTS, WINDOWS[0], "(SELECT * FROM delivery_attempt_19990101)", stretch)
    with pytest.raises(Unreadable, match='relation "delivery_attempt_19990101" does not exist'):
        list(copied(database_address(), tables.ATTEMPTS, query))


def test_an_unreachable_database_is_reported(spark: SparkSession) -> None:
    register(spark, make_conninfo(database_address(), host="127.0.0.1", port=1, password="planted-word"))
    with pytest.raises(PySparkException, match=r"Unreadable: connection failed.*refused") as failure:
        read(spark, tables.LINES, WINDOWS[0], slice_rows=SLICE_ROWS).count()
    assert "planted-word" not in str(failure.value)


def test_an_invalid_address_is_not_shown_by_readers() -> None:
    with pytest.raises(Unreadable, match=r"^the database address is no address"):
        connections.reading("postgres//broker:planted-word@host").__enter__()


@pytest.mark.parametrize(
    ("endpoint", "kept"),
    [
        ("https://host/path", "https://host/path"),
        ("https://user:pass@host:8443/path", "https://host:8443/path"),
        ("https://user:p@ss@host/path@home", "https://host/path@home"),
        ("PATCH:https://user:pass@host/path?key=1#part", "PATCH:https://host/path"),
        ("https://host?to=https://user@other/", "https://host"),
        ("https://host/path?redirect=a@b/c", "https://host/path"),
        ("https://host#user@part", "https://host"),
        ("webr://user@anything?key=1", "webr://anything"),
        ("webr://", "webr://"),
    ],
)
def test_secret_parts_of_endpoints_are_not_read(history: psycopg.Connection[Any], endpoint: str, kept: str) -> None:
    asked = f"SELECT {ENDPOINT} FROM (SELECT %s::text AS endpoint) r"
    assert history.execute(asked.encode(), [endpoint]).fetchone() == (kept,)


def test_a_delivery_has_its_ordering_key_where_its_subscriber_was_keyed_when_it_ended(
    history: psycopg.Connection[Any],
) -> None:
    serial = "SELECT min(id) FROM subscriptions_subscriber WHERE processing = 'SERIAL'"
    ((owner,),) = history.execute(serial).fetchall()
    record = (
        "INSERT INTO subscriptions_statuschange (subscriber_id, status, processing_before, at) VALUES (%s, %s, %s, %s)"
    )
    changes = [(5, "SERIAL"), (10, "KEYED"), (20, "SERIAL")]
    with history.transaction(force_rollback=True):
        for minute, before in changes:
            history.execute(record, [owner, "ACTIVE", before, MIDNIGHT - HOUR + minute * MINUTE])
        (query,) = slices(history, tables.DELIVERIES, WINDOWS[1], 10**6)
        found = history.execute(
            f"SELECT d.ordering_key IS NOT NULL, date_bin('5 min', d.finished_at, 'epoch') FROM ({query}) d"
            "  JOIN subscriptions_subscription s ON s.id = d.subscription_id"
            "  JOIN delivery_delivery r ON r.id = d.id"
            " WHERE s.subscriber_id = %s AND r.ordering_key IS NOT NULL".encode(),
            [owner],
        ).fetchall()
    keyed = {at for is_keyed, at in found if is_keyed}
    assert keyed == {MIDNIGHT - HOUR + 5 * MINUTE}
    assert len({at for is_keyed, at in found if not is_keyed}) > 2


def test_what_is_older_than_the_path_of_a_keyed_subscriber_has_the_empty_key(history: psycopg.Connection[Any]) -> None:
    serial = "SELECT min(id) FROM subscriptions_subscriber WHERE processing = 'SERIAL'"
    ((owner,),) = history.execute(serial).fetchall()
    its = "SELECT id FROM subscriptions_subscription WHERE subscriber_id = %s"
    with history.transaction(force_rollback=True):
        history.execute(f"UPDATE delivery_delivery SET ordering_key = NULL WHERE subscription_id IN ({its})", [owner])
        keys = []
        for change in (
            "UPDATE subscriptions_subscriber SET description = 'without a path' WHERE id = %s",
            "UPDATE subscriptions_subscriber SET ordering_key = 'a path' WHERE id = %s",
        ):
            history.execute(change.encode(), [owner])
            history.execute(
                "INSERT INTO subscriptions_statuschange (subscriber_id, status, processing_before, at)"
                " VALUES (%s, 'ACTIVE', 'KEYED', now())",
                [owner],
            )
            (query,) = slices(history, tables.DELIVERIES, WINDOWS[1], 10**6)
            asked = (
                f"SELECT DISTINCT ordering_key FROM ({query}) d WHERE group_id IS NULL AND subscription_id IN ({its})"
            )
            keys += history.execute(asked.encode(), [owner]).fetchall()
    assert keys == [(None,), ("d41d8cd98f00b204e9800998ecf8427e",)]  # the MD5 of nothing


READER: Final = """
import datetime, os, sys
from pyspark.sql import SparkSession
from analytics.pipeline import tables
from analytics.pipeline.extraction.source import read, register
from analytics.pipeline.job import Window
spark = SparkSession.builder.master("local[1]").config("spark.log.level", "INFO").config(
    "spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false").config(
    "spark.eventLog.dir", sys.argv[1]).getOrCreate()
register(spark, os.environ.pop("PLANTED"))
window = Window(*map(datetime.datetime.fromisoformat, sys.argv[2:]))
frame = read(spark, tables.ATTEMPTS, window, slice_rows=400)
frame.explain("extended")
print("read", frame.count())
spark.stop()
"""


@pytest.mark.cluster
def test_the_password_is_nowhere_shown(spark: SparkSession, history: psycopg.Connection[Any], tmp_path: Path) -> None:
    """By a role that may only read, so that nothing else is needed either."""
    history.execute("CREATE ROLE planted LOGIN PASSWORD 'planted-word'; GRANT pg_read_all_data TO planted")
    window = WINDOWS[0]
    planted = make_conninfo(database_address(), user="planted", password="planted-word")
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    try:
        done = subprocess.run(
            (sys.executable, "-c", READER, str(tmp_path), window.start.isoformat(), window.end.isoformat()),
            env=environment | QUICK_START | {"PLANTED": planted},
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        history.execute("DROP ROLE planted")
    logged = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert f"read {counts(history, window)[tables.ATTEMPTS]}" in done.stdout
    assert "INFO" in done.stderr
    assert "SparkListenerJobStart" in logged
    assert "planted-word" not in done.stdout + done.stderr + logged


FILE_ONE: Final = """
WITH gone AS (
  DELETE FROM delivery_open
   WHERE id = (SELECT max(id) FROM delivery_open WHERE attempts > 0 AND created_at < '2026-05-03 01:00+00') RETURNING *)
INSERT INTO delivery_delivery (id, status, size, attempts, sequence, created_at, finished_at, closed_on)
SELECT id, 'FAILED', size, attempts, sequence, created_at, '2026-05-03 03:00+00', '2026-05-03' FROM gone
"""


def test_rows_written_between_two_slices_are_in_their_own_window_only(history: psycopg.Connection[Any]) -> None:
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


def test_late_rows_are_noticed(history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_counts, "MIN_TRUSTED", 10**9)
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


def test_a_large_partition_is_counted_again_only_if_postgresql_lost_its_counters(
    history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_counts, "MIN_TRUSTED", 1)
    day = WINDOWS[0].day
    history.execute("SELECT pg_stat_force_next_flush()")
    known = leaf_rows(history, day)
    forged = {name: rows + (name == "delivery_attempt_20260502") for name, rows in known.items()}
    assert not has_grown(history, day, forged)
    history.execute("SELECT pg_stat_reset_single_table_counters('delivery_attempt_20260502'::regclass)")
    assert has_grown(history, day, forged)
    assert not has_grown(history, day, known)


@pytest.mark.parametrize("place", [0, -1], ids=["the first", "the last"])
def test_rows_in_other_days_partitions_are_read_and_counted(history: psycopg.Connection[Any], place: int) -> None:
    """Where ids were moved on late, or the clock was set back; there is something in the leaf between."""
    window = Window(MIDNIGHT + ONE_DAY, MIDNIGHT + ONE_DAY + HOUR)
    there = dt.date.fromisoformat(leaves_of(history, ATTEMPTS)[place].removeprefix(f"{ATTEMPTS}_"))
    known = leaf_rows(history, window.day)
    record_attempt(history, first_id(there), window.start)
    record_message(history, first_id(there), window.start)
    record_delivery(history, first_id(there), window.start, there)
    for table in (tables.ATTEMPTS, tables.DELIVERIES, tables.MESSAGES):
        found = read_here(history, table, window)
        assert first_id(there) in {row[0] for row in found}
        assert found == truth(history, table, window)
        assert found.total() == counts(history, window)[table]
    assert has_grown(history, window.day, known)


def test_no_partition_is_locked_while_its_rows_are_used(history: psycopg.Connection[Any]) -> None:
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
    ("table", "column"), [(tables.UNFINISHED, "id"), (tables.WAITING, "deliveries")], ids=["unfinished", "waiting"]
)
def test_what_moves_between_two_slices_is_read_once(
    history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, table: Table, column: str
) -> None:
    """All of the open shelf is written to other pages of it, and some of it filed."""
    monkeypatch.setattr(source, "SAMPLE_PAGES", 10**6)
    window, place = WINDOWS[2], [*table.types].index(column)
    expected = [row[place] for row in truth(history, table, window)]
    queries, found = slices(history, table, window, 7), list[int]()
    for query in queries:
        for batch in copied(database_address(), table, query):
            found += batch.column(place).to_pylist()
        history.execute(MOVE)
        history.execute(FILE_ONE)
    assert len(queries) > 2
    assert (sorted(found) == sorted(expected)) if table == tables.UNFINISHED else (sum(found) == sum(expected))


def test_unfinished_deliveries_are_read_by_index_slice_by_slice(
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


def test_events_before_all_deliveries_of_a_window_are_not_read(history: psycopg.Connection[Any]) -> None:
    record = "INSERT INTO subscriptions_statuschange (subscriber_id, status, at) VALUES (%s, 'ACTIVE', %s)"
    history.execute(record, [801, MIDNIGHT - 30 * ONE_DAY])
    history.execute(record, [802, MIDNIGHT - 3 * ONE_DAY])
    record_delivery(
        history, first_id((MIDNIGHT - 9 * ONE_DAY).date()), MIDNIGHT, MIDNIGHT.date(), made=MIDNIGHT - 9 * ONE_DAY
    )
    found = {row[0] for row in read_here(history, tables.STATUS_CHANGES, WINDOWS[2])}
    assert 802 in found
    assert 801 not in found


def test_only_stale_indexes_are_updated_and_no_autovacuum_is_cancelled(
    history: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not source.stale_indexes(history, ["delivery_attempt_20260502"])
    monkeypatch.setattr(source, "MIN_NEW_ROWS", 0)  # a vacuum may have run
    (index,) = source.stale_indexes(history, ["delivery_attempt_20260502"])
    assert index.startswith("delivery_attempt_20260502")
    patient = "SELECT %s::interval < current_setting('deadlock_timeout')::interval"
    assert history.execute(patient, [source.LOCK_TIMEOUT]).fetchone() == (True,)
    with psycopg.connect(database_address()) as vacuum:
        vacuum.execute("LOCK TABLE delivery_attempt_20260502 IN SHARE UPDATE EXCLUSIVE MODE")
        source.update_indexes(history, ["delivery_attempt_20260502"])  # goes on without


def test_what_waits_is_read_whatever_day_its_id_is_of(history: psycopg.Connection[Any]) -> None:
    """The clock was days ahead for a while: when it is set back, ids go on from where they are."""
    window, id_ = WINDOWS[1], first_id((MIDNIGHT + ONE_DAY).date())
    record_message(history, id_, window.start)
    record_delivery(history, id_, window.end + HOUR, window.day, made=window.start)
    for table in (tables.UNFINISHED, tables.WAITING):
        assert read_here(history, table, window) == truth(history, table, window)
