"""What cannot be read is said to be so, and nothing secret is told, be it by accident."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from analytics.pipeline import tables
from analytics.pipeline.extraction import DayGone, Unreadable, connection, count, read, register
from analytics.pipeline.extraction.source import copied
from analytics.pipeline.extraction.statements import ENDPOINT, relations_of, selected, stretch_of
from analytics.pipeline.job import Window
from tests.spark.extracting import DAY, MIDNIGHT, SLICE_ROWS, WINDOWS
from tests.spark.processes import QUICK_START
from tests.spark.summaries import database_address

pytestmark = pytest.mark.django_db


def test_a_day_that_was_dropped_is_not_taken_for_an_empty_one(
    frames: SparkSession, history: psycopg.Connection[Any]
) -> None:
    gone = Window(MIDNIGHT - 9 * DAY, MIDNIGHT - 8 * DAY)
    with pytest.raises(PySparkException, match="2026-04-24 cannot be summarized"):
        read(frames, tables.ATTEMPTS, gone, slice_rows=SLICE_ROWS).count()
    with pytest.raises(DayGone):
        relations_of(history, tables.ATTEMPTS, gone)


def test_a_leaf_that_is_dropped_while_it_is_read_fails_the_window(history: psycopg.Connection[Any]) -> None:
    stretch = stretch_of(tables.ATTEMPTS, WINDOWS[0])
    query = selected(tables.ATTEMPTS, WINDOWS[0], "(SELECT * FROM delivery_attempt_19990101)", stretch)
    with pytest.raises(Unreadable, match='relation "delivery_attempt_19990101" does not exist'):
        list(copied(database_address(), tables.ATTEMPTS, query))


def test_a_database_that_is_away_is_said_to_be(spark: SparkSession) -> None:
    register(spark, make_conninfo(database_address(), host="127.0.0.1", port=1, password="planted-word"))
    with pytest.raises(PySparkException, match=r"Unreadable: connection failed.*refused") as failure:
        read(spark, tables.LINES, WINDOWS[0], slice_rows=SLICE_ROWS).count()
    assert "planted-word" not in str(failure.value)


def test_an_address_that_is_none_is_not_repeated() -> None:
    with pytest.raises(Unreadable, match=r"^the database address is no address"):
        connection.reading("postgres//broker:planted-word@host").__enter__()


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
    asked = f"SELECT {ENDPOINT} FROM (SELECT %s::text AS endpoint) r"
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


@pytest.mark.cluster
def test_the_password_is_in_no_log_plan_or_page(
    spark: SparkSession, history: psycopg.Connection[Any], tmp_path: Path
) -> None:
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
    assert f"read {count(history, tables.ATTEMPTS, window)}" in done.stdout
    assert "INFO" in done.stderr
    assert "SparkListenerJobStart" in logged
    assert "planted-word" not in done.stdout + done.stderr + logged
