"""What Spark has summed up is what plain SQL sums up over the broker's tables, of a history with all there is in one.

Small as it stands; `./broker test tests/spark/test_truth.py --history 200000` takes a real one.
"""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from pyspark.sql import SparkSession

from analytics.pipeline.application import Status
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table
from analytics.pipeline.transforms.audit import FLAGGED, MADE_LATER, NOT_DUE
from benchmarks import in_sql
from benchmarks.history import History
from tests.spark.summaries import Summarizer, database_address, job

MIDNIGHT: Final = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
NOW: Final = MIDNIGHT + dt.timedelta(hours=1, minutes=30)
WINDOWS: Final = (
    Window(MIDNIGHT - dt.timedelta(days=1), MIDNIGHT),
    Window(MIDNIGHT, MIDNIGHT + dt.timedelta(hours=1)),
)
"""The whole days, and the closed hours of today."""

ONLY_ONE_HAS: Final = """
(SELECT 'only Spark', s.* FROM (SELECT {columns} FROM {by_spark} EXCEPT ALL SELECT {columns} FROM {in_sql}) s LIMIT 5)
 UNION ALL
(SELECT 'only SQL', s.* FROM (SELECT {columns} FROM {in_sql} EXCEPT ALL SELECT {columns} FROM {by_spark}) s LIMIT 5)
"""


@pytest.fixture
def attempts(storage: None, request: pytest.FixtureRequest) -> int:
    """Write a history of so many attempts at least; a message has nearly two."""
    asked = int(request.config.getoption("--history"))
    History(NOW, messages=asked * 2 // 3, days=2, subscribers=6).write()
    return asked


@pytest.fixture
def connection() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_address(), autocommit=True, options="-c timezone=UTC") as connection:
        yield connection


@pytest.mark.lengthy
def test_every_total_is_that_of_sql(
    spark: SparkSession, attempts: int, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    summarizer = Summarizer(spark, tmp_path)
    assert summarizer.run(*WINDOWS) is Status.DONE, summarizer.told.getvalue()
    assert sum(one["rows_read"]["attempts"] for one in summarizer.told.windows()) >= attempts
    for window in WINDOWS:
        in_sql.sum_up(connection, window, summarizer.words, objective=job(tmp_path).objective)
    for table in (*in_sql.HOURLY, *in_sql.DAILY):
        assert count_of(connection, table) > 0, table.name
        assert differences(connection, table) == [], table.name
    assert kinds(connection) >= {*summarizer.words.kinds}
    assert unexplained(connection) == []
    assert explanations(connection) >= {NOT_DUE, MADE_LATER, FLAGGED}


def count_of(connection: psycopg.Connection[Any], table: Table) -> int:
    ((count,),) = connection.execute(SQL("SELECT count(*) FROM pg_temp.{}").format(Identifier(table.name)))
    return int(count)


def kinds(connection: psycopg.Connection[Any]) -> set[str]:
    return {kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM analytics_reliability")}


def unexplained(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT subscriber, finding, delivery_id, other_id FROM analytics_findings WHERE explanation = ''"
    ).fetchall()


def explanations(connection: psycopg.Connection[Any]) -> set[str]:
    return {text for (text,) in connection.execute("SELECT DISTINCT explanation FROM analytics_findings")}


def differences(connection: psycopg.Connection[Any], table: Table) -> list[tuple[Any, ...]]:
    """Return some rows of a summary that only one of the two has, each with who."""
    in_sql, by_spark = Identifier("pg_temp", table.name), Identifier(f"analytics_{table.name}")
    made = connection.execute(SQL("SELECT * FROM {} LIMIT 0").format(in_sql)).description or []
    columns = SQL(", ").join(Identifier(column.name) for column in made)
    found = SQL(ONLY_ONE_HAS).format(columns=columns, in_sql=in_sql, by_spark=by_spark)
    return connection.execute(found).fetchall()
