"""Spark's summaries against plain Python, and against SQL over a long history."""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Identifier
from pyspark.sql import SparkSession

from analytics.pipeline.application import Status
from analytics.pipeline.job import Window
from analytics.pipeline.tables import BRONZE, CALLBACKS_SUMMARY, ENDPOINTS, LATENCY, RELIABILITY, VOLUME, Table
from analytics.pipeline.transforms.audit import FLAGGED, MADE_LATER, NOT_DUE
from analytics.pipeline.transforms.frames import Silver
from analytics.pipeline.transforms.hourly import HOURLY_SUMMARIES
from analytics.pipeline.transforms.silver import silver
from analytics.vocabulary import vocabulary
from benchmarks import in_sql
from benchmarks.history import History
from delivery.outcomes import Meaning
from tests.support.expected_summaries import DAY, WINDOW, ExpectedSummaries, Row, facts, frame, rows_of
from tests.support.spark_history import database_address
from tests.support.spark_runs import Summarizer, job

WORDS = vocabulary()
EXAMPLES = settings.get_profile("default").max_examples // 50
"""Each is a frame of many histories, since Spark takes as long for one; so none is made smaller."""


SUBSCRIPTIONS = {kind: number for number, kind in enumerate(WORDS.kinds[:-1], 1)}


GONE = 99
SUBSCRIPTION_IDS = st.sampled_from([*SUBSCRIPTIONS.values(), None, GONE])
LINE_IDS = st.sampled_from([1, 2, 3, None, GONE])
EVENT_TYPE_IDS = st.sampled_from([7, 8, None, GONE])
MOMENTS = st.integers(0, 3 * 3600 * 1000).map(lambda ms: DAY + dt.timedelta(hours=21, milliseconds=ms - 1))
TIMES = st.integers(0, 22).map(lambda power: 2**power // 2).flatmap(lambda low: st.integers(low, 2 * low))
STATUS_CODES = st.sampled_from([None, 100, 200, 204, 302, 404, 500, 503, 599, 600])
ERRORS = st.sampled_from(["", "no answer: Could not resolve x", "Resolving timed out after 1 ms", "TLS: no", "broke"])
MEANINGS = st.sampled_from([None, None, *(meaning.value for meaning in Meaning)])
DELAYS = st.sampled_from([None, None, 0.1, 0.5, 1.1])
"""The share of the time between its publish and its end in which it was not due."""
REPEATED = st.sampled_from([1, 1, 1, 2])


CALLBACKS = st.fixed_dictionaries({"event_type_id": EVENT_TYPE_IDS, "created_at": MOMENTS})

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


def how(kind: str) -> Row:
    """Return how a subscription's deliveries come to be of a kind."""
    return {"kind": "TOPIC", "delivery_mode": WORDS.pull_mode} if kind == WORDS.pulled_kind else {"kind": kind}


WORLD: Mapping[str, list[Row]] = {
    "subscribers": [{"id": 1, "name": "ABC"}, {"id": 2, "name": "XYZ"}],
    "subscriptions": [
        {"id": number, "subscriber_id": 1 + number % 2, "endpoint": f"https://{kind}.example", **how(kind)}
        for kind, number in SUBSCRIPTIONS.items()
    ],
    "event_types": [{"id": 7, "name": "Create", "kind": "TOPIC"}, {"id": 8, "name": "Print", "kind": "QUEUE"}],
    "publishers": [{"id": 1, "name": "CRM"}],
    "lines": [{"id": 1, "subscriber_id": 1}, {"id": 2, "sender": 4}, {"id": 3}],
}


ATTEMPTS = st.fixed_dictionaries(
    {
        "number": st.integers(1, 3),
        "started_at": MOMENTS,
        "duration_ms": TIMES,
        "status_code": STATUS_CODES,
        "error": ERRORS,
        "meaning": MEANINGS,
    }
)
DELIVERIES = st.fixed_dictionaries(
    {
        "subscription_id": SUBSCRIPTION_IDS,
        "line_id": LINE_IDS,
        "event_type_id": EVENT_TYPE_IDS,
        "status": st.sampled_from(WORDS.statuses),
        "attempts": st.integers(0, 3),
        "fetches": st.sampled_from([0, 0, 1, 2]),
        "unread": st.sampled_from([None, False, False, True]),
        "finished_at": MOMENTS,
        "delay": DELAYS,
    }
)
MESSAGES = st.fixed_dictionaries(
    {
        "event_type_id": EVENT_TYPE_IDS,
        "publisher_id": st.sampled_from([1, None, GONE]),
        "size": st.integers(0, 9),
        "outcome": st.sampled_from(WORDS.outcomes),
        "deliveries_count": st.integers(0, 3),
        "answers": st.sampled_from([None, None, 1]),
        "published_at": MOMENTS,
    }
)

HISTORIES = st.tuples(DELIVERIES, TIMES, st.lists(ATTEMPTS, max_size=3), MESSAGES, CALLBACKS, REPEATED)


def document(histories: list[Any]) -> dict[str, list[Row]]:
    """Return the facts of many histories side by side, each with ids of its own."""
    rows: dict[str, list[Row]] = {table.name: list(WORLD.get(table.name, [])) for table in BRONZE}
    for number, (delivery, ms, attempts, message, callback, times) in enumerate(histories):
        whole = lasting(dt.timedelta(milliseconds=ms), **delivery, id=number)
        is_open = delivery["status"] in WORDS.unfinished
        rows["unfinished"] += [{**whole, "finished_at": None}] * (times if is_open else times - 1)
        rows["deliveries"] += [whole] * (0 if is_open else times)
        rows["messages"] += [{**message, "id": number}] * times
        rows["callbacks"] += [{**callback, "id": number}] * times
        for place, attempt in enumerate(attempts):
            delivery_id = number if place < 2 else -number
            rows["attempts"] += [{**attempt, "id": number * 10 + place, "delivery_id": delivery_id}] * times
    return rows


def lasting(took: dt.timedelta, delay: float | None, **delivery: Any) -> Row:
    """Return a delivery that took so long, from its publish on, and was delayed for a share of it."""
    created_at = delivery["finished_at"] - took
    return {**delivery, "created_at": created_at, "not_before": delay and created_at + took * delay}


@settings(
    phases=[Phase.generate],
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(histories=st.lists(HISTORIES, min_size=10, max_size=60))
def test_summaries_are_those_of_plain_python(spark: SparkSession, histories: list[Any]) -> None:
    rows = document(histories)
    made = kept(silver(facts(spark, **rows), WORDS))
    plain = ExpectedSummaries(rows, WINDOW, WORDS)
    for table, wanted in {
        RELIABILITY: plain.reliability(),
        LATENCY: plain.latency(),
        ENDPOINTS: plain.endpoints(),
        VOLUME: plain.volume(),
        CALLBACKS_SUMMARY: plain.callbacks(),
    }.items():
        found = rows_of(HOURLY_SUMMARIES[table](made, WINDOW, WORDS))
        assert in_groups(spark, table, found, wanted) == wanted
    spark.catalog.clearCache()


def kept(made: Silver) -> Silver:
    """Return what is made once for all summaries."""
    frames = {name: getattr(made, name).cache() for name in ("deliveries", "attempts", "messages")}
    return replace(made, **frames)


def in_groups(spark: SparkSession, table: Table, found: list[dict[str, Any]], wanted: Mapping[Any, Row]) -> Any:
    """Return rows as the oracle has them; a quantile equals what is within 1 % of it."""
    values = next(iter(wanted.values()), {})
    names = [name for name in frame(spark, table).columns if name not in values]
    groups = {}
    for row in found:
        group = tuple(row[name] for name in names)
        close = {name: pytest.approx(row[name], rel=0.0101) if name.startswith("p") else row[name] for name in values}
        assert group not in groups
        groups[group] = close
    return groups


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
