"""Summaries into PostgreSQL: what replaces what, and how long it keeps vacuum waiting."""

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from django.db import connection as of_django

from analytics.models import Backlog, HourTotal, Reliability
from analytics.pipeline.job import Window
from analytics.pipeline.load import load
from analytics.pipeline.tables import RELIABILITY
from tests.spark.summaries import database_address

NOON: Final = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
HOUR: Final = dt.timedelta(hours=1)
WINDOW: Final = Window(NOON, NOON + HOUR)
COUNTS: Final = ("deliveries", "delivered", "eligible", "first_attempt", "attempts")
SCHEMA: Final = pa.schema(
    [
        ("hour", pa.timestamp("us", "UTC")),
        ("subscriber_id", pa.int64()),
        ("subscriber", pa.string()),
        ("event_type_id", pa.int64()),
        ("event_type", pa.string()),
        ("kind", pa.string()),
        *((name, pa.int64()) for name in COUNTS),
        ("by_status", pa.map_(pa.string(), pa.int64())),
    ]
)

Row = dict[str, Any]


@pytest.fixture
def connection(transactional_db: None) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(database_address(), autocommit=True)) as opened:
        yield opened


def row(hour: dt.datetime = NOON, **more: Any) -> Row:
    named = {"subscriber_id": 1, "subscriber": "", "event_type_id": None, "event_type": "Created", "kind": "TOPIC"}
    return {"hour": hour, **named, **dict.fromkeys(COUNTS, 1), "by_status": {}, **more}


def batch(*rows: Row) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**one, "by_status": [*one["by_status"].items()]} for one in rows], SCHEMA)


def there() -> list[Row]:
    return [*Reliability.objects.order_by("id").values(*SCHEMA.names)]


def fine() -> None:
    """Be still the only run."""


def test_rows_of_the_window_are_replaced_and_others_stay(connection: psycopg.Connection) -> None:
    beside = [row(NOON - HOUR), row(NOON + HOUR)]
    for one in (*beside, row(deliveries=99), row(NOON + HOUR / 2)):
        Reliability.objects.create(**one)
    load(connection, WINDOW, {RELIABILITY: [batch(row(deliveries=2)), batch(row(deliveries=3))]}, fine)
    assert there() == [*beside, row(deliveries=2), row(deliveries=3)]


@pytest.mark.parametrize("name", ["", '"', "a, b", "two\nlines", "\\.", "\\N", "NULL", "\t", "ä€😀", " x "])
def test_names_arrive_as_they_are(connection: psycopg.Connection, name: str) -> None:
    awkward = row(subscriber_id=None, subscriber=name, by_status={name: 1, "DELIVERED": 2})
    load(connection, WINDOW, {RELIABILITY: [batch(awkward)]}, fine)
    assert there() == [awkward]


def test_rows_are_copied_before_anything_is_locked_or_keeps_vacuum_waiting(connection: psycopg.Connection) -> None:
    looked: list[tuple[Any, ...] | None] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for deliveries in (1, 2, 3):
            yield batch(row(deliveries=deliveries))
            looked.append(state_of(connection))

    load(connection, WINDOW, {RELIABILITY: batches()}, fine)
    assert looked == [(None, None)] * 3
    assert len(there()) == 3


def state_of(connection: psycopg.Connection) -> tuple[Any, ...] | None:
    """Return what keeps vacuum from removing what dies now: the connection's transaction, and its snapshot."""
    with of_django.cursor() as cursor:
        pid = connection.info.backend_pid
        cursor.execute("SELECT backend_xid, backend_xmin FROM pg_stat_activity WHERE pid = %s", [pid])
        found: tuple[Any, ...] | None = cursor.fetchone()
        return found


def test_where_the_run_is_not_the_only_one_any_more_nothing_is_replaced(connection: psycopg.Connection) -> None:
    def lost() -> None:
        raise InterruptedError

    Reliability.objects.create(**row())
    with pytest.raises(InterruptedError):
        load(connection, WINDOW, {RELIABILITY: [batch(row(deliveries=2))]}, lost)
    assert there() == [row()]


def test_what_the_hours_of_a_window_come_to_follows_what_is_loaded(transactional_db: None) -> None:
    two = batch(row(deliveries=2, by_status={"DELIVERED": 2}), row(subscriber_id=2, by_status={"DELIVERED": 1}))
    for at, loaded in (
        (NOON - HOUR, batch(row(NOON - HOUR, deliveries=4))),
        (NOON, batch(row(deliveries=99, by_status={"FAILED": 99}))),
        (NOON, two),
        (NOON + HOUR, batch(row(NOON + HOUR))),
        (NOON + HOUR, batch()),
    ):
        with closing(psycopg.connect(database_address(), autocommit=True)) as opened:
            load(opened, Window(at, at + HOUR), {RELIABILITY: [loaded]}, fine)
    found = HourTotal.objects.order_by("hour").values_list("hour", "deliveries", "by_status")
    assert [*found] == [(NOON - HOUR, 4, {}), (NOON, 3, {"DELIVERED": 3})]


@pytest.mark.parametrize("end", [NOON + HOUR, NOON + HOUR / 4], ids=["the hour", "its beginning"])
def test_an_hour_in_which_something_only_waited_has_a_total_too(
    connection: psycopg.Connection, end: dt.datetime
) -> None:
    Backlog.objects.create(at=NOON + HOUR / 2, deliveries=3)
    load(connection, Window(NOON, end), {RELIABILITY: []}, fine)
    assert HourTotal.objects.values("deliveries", "by_status", "histogram", "backlog").get() == {
        "deliveries": 0,
        "by_status": {},
        "histogram": {},
        "backlog": 3,
    }
