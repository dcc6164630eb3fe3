"""What Spark reads of a generated history is what SQL says, for every table and whatever window."""

import datetime as dt
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from django.core.management import call_command
from psycopg.conninfo import make_conninfo
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pytest_django.plugin import DjangoDbBlocker

from analytics.pipeline import tables
from analytics.pipeline.extraction import (
    DayGone,
    Unreadable,
    connecting,
    count,
    counting,
    has_grown,
    leaf_rows,
    read,
    register,
)
from analytics.pipeline.extraction.copying import copied
from analytics.pipeline.extraction.leaves import relations_of
from analytics.pipeline.extraction.slicing import slices
from analytics.pipeline.extraction.statements import ENDPOINT, selected, stretch_of
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table
from benchmarks.history import History
from benchmarks.history.endings import ERRORS
from delivery.rules.statuses import DeliveryStatus
from tests.spark.bronze import TRUTH
from tests.spark.summaries import database_address

pytestmark = pytest.mark.django_db

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


@pytest.fixture(scope="module")
def history(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[psycopg.Connection[Any]]:
    """A history that everybody sees; give a connection to it."""
    with django_db_blocker.unblock():
        History(UNTIL, messages=4000, days=2, subscribers=4).write()
        with closing(psycopg.connect(database_address(), autocommit=True, options="-c timezone=UTC")) as connection:
            connection.execute(OVER_MIDNIGHT)
            yield connection
        call_command("flush", verbosity=0, interactive=False)


@pytest.fixture
def frames(spark: SparkSession, history: psycopg.Connection[Any]) -> SparkSession:
    """A session that knows where the history is."""
    register(spark, database_address())
    return spark


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


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("table", tables.BRONZE, ids=lambda table: table.name)
def test_spark_reads_what_postgresql_holds(
    frames: SparkSession, history: psycopg.Connection[Any], table: Table, window: Window
) -> None:
    found = rows(read(frames, table, window, slice_rows=SLICE_ROWS))
    assert found == truth(history, table, window)
    assert found.total() == count(history, table, window)
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


def test_a_day_that_was_dropped_is_not_taken_for_an_empty_one(
    frames: SparkSession, history: psycopg.Connection[Any]
) -> None:
    gone = Window(MIDNIGHT - 9 * DAY, MIDNIGHT - 8 * DAY)
    with pytest.raises(PySparkException, match="2026-04-24 cannot be summarized"):
        read(frames, tables.ATTEMPTS, gone, slice_rows=SLICE_ROWS).count()
    with pytest.raises(DayGone):
        count(history, tables.ATTEMPTS, gone)


def test_a_leaf_that_is_dropped_while_it_is_read_fails_the_window(history: psycopg.Connection[Any]) -> None:
    stretch = stretch_of(tables.ATTEMPTS, WINDOWS[0])
    query = selected(tables.ATTEMPTS, WINDOWS[0], "(SELECT * FROM delivery_attempt_19990101)", stretch)
    with pytest.raises(Unreadable, match='relation "delivery_attempt_19990101" does not exist'):
        list(copied(database_address(), tables.ATTEMPTS, query))


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


def test_messages_that_retention_kept_are_read_without_an_index(
    frames: SparkSession, history: psycopg.Connection[Any]
) -> None:
    indexes = history.execute(
        "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a"
        " ON a.oid = relam WHERE indrelid = 'delivery_message_20260502'::regclass AND amname = 'brin'"
    ).fetchall()
    assert len(indexes) == 1
    history.execute(f"DROP INDEX {indexes[0][0]}".encode())
    found = rows(read(frames, tables.MESSAGES, WINDOWS[2], slice_rows=SLICE_ROWS))
    assert "delivery_message_20260502" in relations_of(history, tables.MESSAGES, WINDOWS[2])
    assert found == truth(history, tables.MESSAGES, WINDOWS[2])


def test_a_row_that_comes_late_is_noticed(history: psycopg.Connection[Any]) -> None:
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


def test_a_database_that_is_away_is_said_to_be(spark: SparkSession) -> None:
    register(spark, make_conninfo(database_address(), host="127.0.0.1", port=1, password="planted-word"))
    with pytest.raises(PySparkException, match=r"Unreadable: connection failed.*refused") as failure:
        read(spark, tables.LINES, WINDOWS[0], slice_rows=SLICE_ROWS).count()
    assert "planted-word" not in str(failure.value)


def test_an_address_that_is_none_is_not_repeated() -> None:
    with pytest.raises(Unreadable, match=r"^the database address is no address"):
        connecting.reading("postgres//broker:planted-word@host").__enter__()


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
def test_endpoints_lose_what_may_be_secret(history: psycopg.Connection[Any], endpoint: str, kept: str) -> None:
    asked = f"SELECT {ENDPOINT} FROM (SELECT %s::text AS endpoint) r"  # noqa: S608 - our own
    assert history.execute(asked.encode(), [endpoint]).fetchone() == (kept,)


READER: Final = """
import datetime, os, sys
from pyspark.sql import SparkSession
from analytics.pipeline import tables
from analytics.pipeline.extraction import read, register
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


def test_the_password_is_in_no_log_plan_or_page(
    spark: SparkSession, history: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """By a role that may only read, so that nothing else is needed either."""
    history.execute("CREATE ROLE planted LOGIN PASSWORD 'planted-word'; GRANT pg_read_all_data TO planted")
    window = WINDOWS[0]
    planted = make_conninfo(database_address(), user="planted", password="planted-word")
    try:
        done = subprocess.run(
            (sys.executable, "-c", READER, str(tmp_path), window.start.isoformat(), window.end.isoformat()),
            env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | {"PLANTED": planted},
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        history.execute("DROP ROLE planted")
    logged = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert f"read {count(history, tables.ATTEMPTS, window)}" in done.stdout
    assert "INFO" in done.stderr
    assert "SparkListenerJobStart" in logged
    assert "planted-word" not in done.stdout + done.stderr + logged
