"""Spark's summaries against the same in SQL: over random facts, and over a long history."""

import datetime as dt
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import psycopg
import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from pyspark.sql import SparkSession

from analytics.models import rows_of as summary_of
from analytics.pipeline.application import Status
from analytics.pipeline.job import Window
from analytics.pipeline.quantiles import Histogram, merged, quantile
from analytics.pipeline.tables import (
    BRONZE,
    CALLBACKS_SUMMARY,
    ENDPOINTS,
    FINDINGS,
    LATENCY,
    RELIABILITY,
    SILVER,
    VOLUME,
    Table,
)
from analytics.pipeline.transforms.frames import Frames
from analytics.pipeline.transforms.hourly import HOURLY_SUMMARIES
from analytics.pipeline.transforms.silver import silver
from analytics.vocabulary import vocabulary
from benchmarks import summaries_sql
from benchmarks.history import write_history
from delivery.maintenance.minutes import count_minute
from delivery.models import MinuteCount
from delivery.outcomes import RetryAction
from delivery.statuses import DeliveryStatus
from tests.support.spark_frames import DAY, WINDOW, Row, facts, rows_of
from tests.support.spark_history import database_address
from tests.support.spark_runs import Summarizer, job

WORDS = vocabulary()
EXAMPLES = settings.get_profile("default").max_examples // 100
FEWEST = 40
"""Each example is a frame of many histories, since Spark takes as long for one; so none is made smaller."""

SUBSCRIPTIONS = {kind: number for number, kind in enumerate(WORDS.kinds[:-1], 1)}

GONE = 99
SUBSCRIPTION_IDS = st.sampled_from([*SUBSCRIPTIONS.values(), None, GONE])
LINE_IDS = st.sampled_from([1, 2, 3, None, GONE])
EVENT_TYPE_IDS = st.sampled_from([7, 8, None, GONE])
MOMENTS = st.integers(0, 3 * 3600 * 1000).map(lambda ms: DAY + dt.timedelta(hours=21, milliseconds=ms - 1))
TIMES = st.integers(0, 22).map(lambda power: 2**power // 2).flatmap(lambda low: st.integers(low, 2 * low))
STATUS_CODES = st.sampled_from([None, 100, 200, 204, 302, 404, 500, 503, 599, 600])
ERRORS = st.sampled_from(["", "no answer: Could not resolve x", "Resolving timed out after 1 ms", "TLS: no", "broke"])
MEANINGS = st.sampled_from([None, None, *(meaning.value for meaning in RetryAction)])
DELAYS = st.sampled_from([None, None, 0.1, 0.5, 1.1])
"""The share of the time between its publish and its end in which it was not due."""
REPEATED = st.sampled_from([1, 1, 1, 2])

CALLBACKS = st.fixed_dictionaries({"event_type_id": EVENT_TYPE_IDS, "created_at": MOMENTS})

MIDNIGHT: Final = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
NOW: Final = MIDNIGHT + dt.timedelta(hours=1, minutes=30)
WINDOWS: Final = (Window(MIDNIGHT - dt.timedelta(days=1), MIDNIGHT), Window(MIDNIGHT, MIDNIGHT + dt.timedelta(hours=1)))
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
        whole = {**whole, "unread": whole["unread"] and whole["status"] == DeliveryStatus.EXPIRED}
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
    """Return a delivery that lasted `took` from its publish on, and was delayed for a share of it."""
    created_at = delivery["finished_at"] - took
    return {**delivery, "created_at": created_at, "not_before": delay and created_at + took * delay}


FACT_TABLES: Final = """
CREATE TEMP TABLE subscriptions_subscriber (id bigint, name text, processing text, keyless_until bigint);
CREATE TEMP TABLE subscriptions_statuschange (
  subscriber_id bigint, subscription_id bigint, processing_before text, at timestamptz);
CREATE TEMP TABLE subscriptions_subscription (
  id bigint, subscriber_id bigint, event_type_id bigint, kind text, delivery_mode text, endpoint text);
CREATE TEMP TABLE subscriptions_eventtype (id bigint, name text, kind text);
CREATE TEMP TABLE subscriptions_publisher (id bigint, name text);
CREATE TEMP TABLE delivery_line (id bigint, subscriber_id bigint, sender int);
CREATE TEMP TABLE delivery_message (
  id bigint, event_type_id bigint, publisher_id bigint, size int, outcome text, deliveries_count int, answers bigint,
  published_at timestamptz);
CREATE TEMP TABLE delivery_delivery (
  id bigint, message_id bigint, line_id bigint, subscription_id bigint, group_id bigint, status text, attempts int,
  fetches int, sequence bigint, ordering_key text, uncertain boolean, reason text, not_before timestamptz,
  created_at timestamptz, finished_at timestamptz, closed_on date);
CREATE TEMP TABLE delivery_attempt (
  id bigint, delivery_id bigint, number int, started_at timestamptz, duration_ms int, status_code int, error text,
  meaning text);
CREATE TEMP TABLE delivery_callback (id bigint, event_type_id bigint, created_at timestamptz);
"""
"""The broker's tables, as far as summaries read them: temporary ones hide them, and accept unknown ids."""


def store(connection: psycopg.Connection[Any], rows: Mapping[str, list[Row]]) -> None:
    """Store facts, each once: for Spark some are repeated, as if they had changed while they were read."""
    connection.execute(FACT_TABLES)
    deliveries = {row["id"]: row for row in (*rows["unfinished"], *rows["deliveries"])}.values()
    of_deliveries = [{"id": -1 - row["id"], "event_type_id": row["event_type_id"]} for row in deliveries]
    tables: dict[str, list[Row]] = {
        "subscriptions_subscriber": rows["subscribers"],
        "subscriptions_subscription": rows["subscriptions"],
        "subscriptions_eventtype": rows["event_types"],
        "subscriptions_publisher": rows["publishers"],
        "delivery_line": rows["lines"],
        "delivery_message": [*rows["messages"], *of_deliveries],
        "delivery_delivery": [
            {**row, "message_id": -1 - row["id"], "reason": "unread for 5 days" * bool(row["unread"]), "closed_on": DAY}
            for row in deliveries
        ],
        "delivery_attempt": rows["attempts"],
        "delivery_callback": rows["callbacks"],
    }
    for name, stored in tables.items():
        columns = [column.name for column in connection.execute(f"TABLE {name}".encode()).description or []]
        once = {row["id"]: [row.get(column) for column in columns] for row in stored}
        with connection.cursor().copy(f"COPY {name} FROM STDIN".encode()) as copy:
            for row in once.values():
                copy.write_row(row)


def plain(value: Any) -> Any:
    """Return a value as Spark and PostgreSQL have it alike."""
    if isinstance(value, dict):
        return {str(key): number for key, number in sorted(value.items(), key=str)}
    if isinstance(value, Decimal):
        return int(value)
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def sorted_rows(rows: Iterable[Row], columns: Iterable[str]) -> list[dict[str, Any]]:
    return sorted(({name: plain(row[name]) for name in columns} for row in rows), key=repr)


@settings(
    phases=[Phase.generate],
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(histories=st.lists(HISTORIES, min_size=FEWEST, max_size=80))
def test_summaries_of_random_facts_are_those_of_sql(spark: SparkSession, histories: list[Any], db: None) -> None:
    assume(len(histories) > FEWEST)  # Hypothesis begins with the simplest, which shows little
    rows = document(histories)
    made = kept(silver(facts(spark, **rows), WORDS))
    with psycopg.connect(database_address(), autocommit=True, options="-c timezone=UTC") as connection:
        store(connection, rows)
        summaries_sql.sum_up(connection, WINDOW, WORDS, objective=0.999)
        for table in (RELIABILITY, LATENCY, ENDPOINTS, VOLUME, CALLBACKS_SUMMARY):
            found = rows_of(HOURLY_SUMMARIES[table](made, WINDOW, WORDS))
            cursor = connection.cursor(row_factory=dict_row)
            wanted = cursor.execute(f"SELECT * FROM pg_temp.{table.name}".encode()).fetchall()
            columns = [column.name for column in cursor.description or []]
            assert sorted_rows(found, columns) == sorted_rows(wanted, columns), table.name
            for row in found if table == LATENCY else []:
                for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p95_ms", 0.95), ("p99_ms", 0.99)):
                    assert row[name] == pytest.approx(quantile(row["histogram"], share))
    spark.catalog.clearCache()


def kept(made: Frames) -> Frames:
    return {table: rows.cache() if table in SILVER else rows for table, rows in made.items()}


@pytest.mark.lengthy
def test_every_total_is_that_of_sql(
    spark: SparkSession, storage: None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    attempts = int(request.config.getoption("--history"))
    write_history(NOW, messages=attempts * 2 // 3, days=2, subscribers=6)  # a message has nearly two attempts
    summarizer = Summarizer(spark, tmp_path)
    assert summarizer.run(*WINDOWS) is Status.DONE, summarizer.reports.getvalue()
    assert sum(one["rows_read"]["attempts"] for one in summarizer.reports.windows()) >= attempts
    with psycopg.connect(database_address(), autocommit=True, options="-c timezone=UTC") as connection:
        for window in WINDOWS:
            summaries_sql.sum_up(connection, window, summarizer.words, objective=job(tmp_path).objective)
        for table in summaries_sql.SUMMARIES:
            assert (summary_of(table).exists(), differences(connection, table)) == (True, []), table.name
    assert live_numbers(WINDOWS[-1]) == numbers_of_summaries(WINDOWS[-1]) != {}
    assert {*summary_of(RELIABILITY).values_list("kind", flat=True)} >= {*summarizer.words.kinds}
    explanations = {*summary_of(FINDINGS).values_list("explanation", flat=True)}
    assert "" not in explanations, [*summary_of(FINDINGS).filter(explanation="").values()]
    assert explanations >= {"not yet due", "made later", "the outcome of a request was unknown; flagged"}


Numbers = tuple[int, int, int, Histogram]


def live_numbers(hour: Window) -> dict[tuple[int | None, int | None], Numbers]:
    """Return what the minutes of an hour come to, by subscriber and event type."""
    minute = dt.timedelta(minutes=1)
    for number in range((hour.end - hour.start) // minute):
        with transaction.atomic():
            count_minute(hour.start + number * minute)
    counted = MinuteCount.objects.filter(minute__gte=hour.start, minute__lt=hour.end)
    return added_up(
        ((row.subscriber_id, row.event_type_id), row, dict(zip(row.buckets, row.bucket_counts, strict=True)))
        for row in counted
    )


def numbers_of_summaries(hour: Window) -> dict[tuple[int | None, int | None], Numbers]:
    """Return the same by the summaries, which tell kinds apart."""
    within = {"hour__gte": hour.start, "hour__lt": hour.end}
    nothing = SimpleNamespace(deliveries=0, delivered=0, eligible=0)
    times = summary_of(LATENCY).filter(measure="delivery", **within)
    return added_up(
        chain(
            (((row.subscriber_id, row.event_type_id), row, {}) for row in summary_of(RELIABILITY).filter(**within)),
            (((row.subscriber_id, row.event_type_id), nothing, int_keys(row.histogram)) for row in times),
        )
    )


def added_up(rows: Iterable[tuple[tuple[int | None, int | None], Any, Histogram]]) -> dict[Any, Numbers]:
    sums: dict[Any, Numbers] = {}
    for key, row, histogram in rows:
        *counts, times = sums.get(key, (0, 0, 0, {}))
        more = (row.deliveries, row.delivered, row.eligible)
        sums[key] = (*(one + other for one, other in zip(counts, more, strict=True)), merged([times, histogram]))
    return sums


def int_keys(histogram: Mapping[str, int]) -> Histogram:
    return {int(bucket): number for bucket, number in histogram.items()}


def differences(connection: psycopg.Connection[Any], table: Table) -> list[tuple[Any, ...]]:
    """Return some rows of a summary that only Spark or only SQL has, with its name."""
    in_sql, by_spark = Identifier("pg_temp", table.name), Identifier(f"analytics_{table.name}")
    made = connection.execute(SQL("SELECT * FROM {} LIMIT 0").format(in_sql)).description or []
    columns = SQL(", ").join(Identifier(column.name) for column in made)
    found = SQL(ONLY_ONE_HAS).format(columns=columns, in_sql=in_sql, by_spark=by_spark)
    return connection.execute(found).fetchall()
