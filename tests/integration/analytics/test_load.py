"""Load summaries into PostgreSQL, and delete old ones."""

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from django.apps import apps
from django.db import connection as of_django
from structlog.testing import capture_logs

from analytics.models import HourTotal, Run, RunKind, RunState, rows_of
from analytics.pipeline.job import Window, midnight
from analytics.pipeline.load import load
from analytics.pipeline.tables import BACKLOG, BUDGETS, GOLD, RELIABILITY
from analytics.summaries import apply_retention
from delivery.maintenance.partitions import today
from tests.support.spark_history import database_address

NOON: Final = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
HOUR: Final = dt.timedelta(hours=1)
WINDOW: Final = Window(NOON, NOON + HOUR)
COUNTS: Final = ("deliveries", "delivered", "eligible", "first_attempt", "attempts")

Row = dict[str, Any]

KEEP_DAYS = 400
FIRST = dt.timedelta(days=KEEP_DAYS)
SECOND = dt.timedelta(seconds=1)

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
    return [*rows_of(RELIABILITY).order_by("id").values(*SCHEMA.names)]


def fine() -> None:
    """Accept that this is still the only run."""


def test_rows_of_the_window_are_replaced_and_others_stay(connection: psycopg.Connection) -> None:
    beside = [row(NOON - HOUR), row(NOON + HOUR)]
    for one in (*beside, row(deliveries=99), row(NOON + HOUR / 2)):
        rows_of(RELIABILITY).create(**one)
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


def test_a_run_that_lost_its_lock_replaces_nothing(connection: psycopg.Connection) -> None:
    def lost() -> None:
        raise InterruptedError

    rows_of(RELIABILITY).create(**row())
    with pytest.raises(InterruptedError):
        load(connection, WINDOW, {RELIABILITY: [batch(row(deliveries=2))]}, lost)
    assert there() == [row()]


def test_hour_totals_follow_what_is_loaded(transactional_db: None) -> None:
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
def test_an_hour_with_only_a_backlog_has_a_total(connection: psycopg.Connection, end: dt.datetime) -> None:
    rows_of(BACKLOG).create(at=NOON + HOUR / 2, deliveries=3)
    load(connection, Window(NOON, end), {RELIABILITY: []}, fine)
    assert HourTotal.objects.values_list("deliveries", "by_status", "histogram", "backlog").get() == (0, {}, {}, 3)


def test_expired_summaries_and_runs_are_deleted(db: None) -> None:
    first = midnight(today() - FIRST)
    for at in (first - SECOND, first):
        rows_of(RELIABILITY).create(hour=at, deliveries=1, delivered=1, eligible=1, first_attempt=1, attempts=1)
        rows_of(BACKLOG).create(at=at, deliveries=1)
        rows_of(BUDGETS).create(day=at.date(), eligible=1, bad=0, objective=0.999, eligible_28=1, bad_28=0, spent=0.0)
        HourTotal.objects.create(hour=at)
        Run.objects.create(kind=RunKind.HOURS, state=RunState.PASSED, ended_at=at)
    with capture_logs() as logged:
        apply_retention("", keep_days=KEEP_DAYS)
    assert [(one["rows"], one["runs"]) for one in logged] == [(4, 1)], "each table had one row too old"
    assert [*rows_of(RELIABILITY).values_list("hour", flat=True)] == [first]
    assert [*rows_of(BACKLOG).values_list("at", flat=True)] == [first]
    assert [*HourTotal.objects.values_list("hour", flat=True)] == [first]
    assert [*rows_of(BUDGETS).values_list("day", flat=True)] == [first.date()]
    assert [*Run.objects.values_list("ended_at", flat=True)] == [first]


def test_retention_covers_every_summary(db: None) -> None:
    tables = {model._meta.db_table for model in apps.get_app_config("analytics").get_models()}
    others = {f"analytics_{name}" for name in ("run", "runwindow", "totals", "alert", "clockdifference")}
    assert {f"analytics_{table.name}" for table in GOLD} == tables - others


def test_expired_days_of_the_lake_are_deleted_with_their_manifests(db: None, tmp_path: Path) -> None:
    kept, gone = today() - FIRST, today() - FIRST - dt.timedelta(days=1)
    for day in (kept, gone):
        folder = tmp_path / f"gold/reliability/dt={day}/hours=00-24/run=7"
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").touch()
        (tmp_path / "manifests").mkdir(exist_ok=True)
        (tmp_path / f"manifests/dt={day}.json").touch()
    (tmp_path / "manifests/touched").mkdir()
    (tmp_path / f"manifests/touched/dt={gone}").touch()
    foreign = {tmp_path / f"manifests/dt={gone}.json.new", tmp_path / "gold/reliability/notes.txt"}
    for file in foreign:
        file.touch()
    apply_retention(str(tmp_path), keep_days=KEEP_DAYS)
    kept_files = {path for path in tmp_path.rglob("*") if path.is_file()} - foreign
    files = sorted(str(path.relative_to(tmp_path)) for path in kept_files)
    summary = f"gold/reliability/dt={kept}/hours=00-24/run=7/part-0.parquet"
    assert [name for name in files if "touched" not in name] == [summary, f"manifests/dt={kept}.json"]
