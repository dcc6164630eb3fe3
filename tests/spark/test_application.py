"""Summarizing a small history: once, twice, late, when a day has become empty, and when something is wrong."""

import dataclasses
import datetime as dt
import json
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.models import rows_of
from analytics.pipeline import application
from analytics.pipeline import window as window_module
from analytics.pipeline.application import Status
from analytics.pipeline.connections import LOCK, LockLost
from analytics.pipeline.extraction import source
from analytics.pipeline.job import Window
from analytics.pipeline.lake import CHANGED
from analytics.pipeline.manifests import path_of
from analytics.pipeline.tables import (
    ATTEMPTS,
    AUDIT,
    BACKLOG,
    BRONZE,
    BUDGETS,
    FINDINGS,
    GOLD,
    HOURLY,
    LATENCY,
    RELIABILITY,
    SILVER,
    Table,
)
from delivery.maintenance import partitions
from delivery.models import Attempt, Delivery
from delivery.outcomes import RetryAction
from delivery.statuses import DeliveryStatus
from tests.support.database import execute
from tests.support.spark_history import DAY, MORNING, Traffic, empty_day
from tests.support.spark_runs import WHOLE_DAY, ReportStream, Summarizer, all_loaded, hour, loaded

HELD = """database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (classid::bigint << 32) | objid::bigint"""


@pytest.fixture
def summarizer(spark: SparkSession, tmp_path: Path) -> Summarizer:
    """A summarizer whose lake has a path with special characters."""
    return Summarizer(spark, tmp_path / "a lake [of] {days}, 100% *")


@pytest.fixture
def traffic(storage: None) -> Traffic:
    """A day's: one delivered at once, one at the third attempt, one rejected."""
    traffic = Traffic()
    traffic.delivered()
    traffic.delivered(answers=(503, 500, 200))
    traffic.delivered(answers=(404,))
    return traffic


@pytest.mark.lengthy
def test_a_day_is_read_checked_summarized_and_loaded(summarizer: Summarizer, traffic: Traffic) -> None:
    assert summarizer.run() is Status.DONE
    (report,) = summarizer.reports.windows()
    assert (report["state"], report["error"]) == ("PASSED", "")
    assert report["rows_read"] == {table.name: len(summarizer.rows(table)) for table in BRONZE}
    assert (report["rows_read"]["deliveries"], report["rows_read"]["attempts"]) == (3, 5)
    assert report["rows_written"] == {table.path: len(summarizer.rows(table)) for table in SILVER + GOLD}
    assert all(check["passed"] for check in report["checks"])
    assert report["lake_bytes"] == sum(file.stat().st_size for file in summarizer.folder.rglob("*.parquet"))
    assert [deliveries_of(row) for row in loaded(RELIABILITY)] == [3]
    assert {name: len(rows) for name, rows in all_loaded().items()} == {
        name: len(rows) for name, rows in summarizer.gold().items()
    }


@pytest.mark.lengthy
def test_summarizing_twice_gives_the_same_rows(summarizer: Summarizer, traffic: Traffic) -> None:
    summarizer.run()
    lake, database, before = summarizer.gold(), all_loaded(), summarizer.manifest()
    summarizer.runs = 0
    assert summarizer.run() is Status.DONE
    assert (summarizer.gold(), all_loaded()) == (lake, database)
    after = summarizer.manifest()
    assert said(after.as_json().replace("run=1-2", "run=1")) == said(before.as_json())
    assert {part.folder for part in after.parts()}.isdisjoint(part.folder for part in before.parts())


@pytest.mark.lengthy
def test_resummarizing_a_day_adds_late_data_and_loses_nothing(summarizer: Summarizer, traffic: Traffic) -> None:
    summarizer.run()
    traffic.delivered(MORNING + dt.timedelta(hours=1))
    assert summarizer.run() is Status.DONE
    assert [deliveries_of(row) for row in loaded(RELIABILITY)] == [3, 1]
    assert [deliveries_of(row) for row in summarizer.rows(RELIABILITY)] == [3, 1]
    empty_day()
    before = all_loaded()
    assert summarizer.run() is Status.FAILED
    (report,) = summarizer.reports.windows()
    assert "bronze/attempts: none is gone (6 of 6 are; see docs/explanation/summaries-pipeline.md)" in report["error"]
    assert all_loaded() == before
    assert [deliveries_of(row) for row in summarizer.rows(RELIABILITY)] == [3, 1]
    summarizer.lake.storage.files.delete_file(path_of(DAY))
    assert summarizer.run() is Status.DONE
    assert {name: rows for name, rows in all_loaded().items() if rows} == {}
    assert {name: rows for name, rows in summarizer.gold().items() if rows} == {}


@pytest.mark.lengthy
def test_days_after_a_changed_day_are_recomputed(summarizer: Summarizer, traffic: Traffic) -> None:
    days = [WHOLE_DAY, day_after(1), day_after(2)]
    partitions.open_days(DAY, ahead=3)
    assert summarizer.run(*days) is Status.DONE
    assert [row[:1] + row[6:8] for row in loaded(BUDGETS)] == [(day.day, 3, 1) for day in days]
    traffic.delivered()
    with pytest.raises(KeyboardInterrupt):
        summarizer.run(reports=ReportStream(partial(interrupt, "summarized in")))
    assert [row[6] for row in loaded(BUDGETS)] == [4, 3, 3]
    assert summarizer.run(days[1]) is Status.DONE, "which does what the other run left"
    assert [row[6] for row in loaded(BUDGETS)] == [4, 4, 4]
    said = summarizer.reports.getvalue()
    assert [said.count(f"{day.day}: budgets and anomalies made again") for day in days] == [1, 1, 1]
    assert summarizer.lake.marked(CHANGED) == set()


@pytest.mark.lengthy
def test_a_day_replaces_its_hours_with_the_same_totals(summarizer: Summarizer, traffic: Traffic) -> None:
    traffic.delivered(MORNING + dt.timedelta(hours=1))
    assert summarizer.run(hour(7), hour(8)) is Status.DONE
    by_hours = {table.name: loaded(table) for table in HOURLY}
    assert [piece.window for piece in summarizer.manifest().pieces] == [hour(7), hour(8)]
    assert not any(piece.inputs for piece in summarizer.manifest().pieces), "leaves are counted for whole days only"
    assert summarizer.run(WHOLE_DAY) is Status.DONE
    assert [piece.window for piece in summarizer.manifest().pieces] == [WHOLE_DAY]
    assert {table.name: loaded(table) for table in HOURLY} == by_hours
    assert {path.name for path in summarizer.folder.rglob("run=*")} == {"run=1", "run=2"}, "readers may still use them"
    summarizer.lake.sweep(print)
    assert {path.name for path in summarizer.folder.rglob("run=*")} == {"run=2"}


@pytest.mark.behaviour("11.10")
def test_hours_in_which_nothing_happened_take_no_spark(tmp_path: Path, traffic: Traffic) -> None:
    waiting_since(traffic, MORNING)
    summarizer = Summarizer(cast("SparkSession", None), tmp_path)
    assert summarizer.run(hour(8), hour(9)) is Status.DONE, summarizer.reports.getvalue()
    at = {hour(8).start + number * dt.timedelta(minutes=5) for number in range(2 * 12)}
    subscriber = traffic.subscription.subscriber
    assert {*loaded(BACKLOG)} == {*summarizer.rows(BACKLOG)} == {(one, subscriber.pk, subscriber.name, 1) for one in at}
    assert [name for name, rows in all_loaded().items() if rows] == [BACKLOG.name]
    assert [piece.window for piece in summarizer.manifest().pieces] == [hour(8), hour(9)]
    assert {report["state"] for report in summarizer.reports.windows()} == {"PASSED"}


@pytest.mark.lengthy
@pytest.mark.behaviour("11.10")
def test_an_idle_hour_has_the_summaries_that_spark_makes_of_it(summarizer: Summarizer, traffic: Traffic) -> None:
    """Something else begins to wait in it, which a replay can make without publishing."""
    waiting_since(traffic, MORNING)
    waiting_since(traffic, MORNING + dt.timedelta(hours=1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(application, "idle_windows", lambda _: [])
        assert summarizer.run(hour(7), hour(8)) is Status.DONE
    by_spark = (summarizer.gold(), all_loaded())
    assert summarizer.run(hour(8)) is Status.DONE
    assert '"step"' not in summarizer.reports.getvalue()
    assert (summarizer.gold(), all_loaded()) == by_spark
    assert by_spark[1][BACKLOG.name][-1][-1] == 2


@pytest.mark.lengthy
def test_files_written_before_a_column_was_added_have_null_in_it(summarizer: Summarizer, traffic: Traffic) -> None:
    traffic.delivered(MORNING + dt.timedelta(hours=1))
    assert summarizer.run(hour(7)) is Status.DONE
    for table, column in (
        (RELIABILITY, "eligible"),
        (LATENCY, "histogram"),
        (AUDIT, "high_created_at"),
        (ATTEMPTS, "meaning"),
    ):
        take_away(column, table, summarizer)
    Attempt.objects.update(meaning=RetryAction.HOLD)
    assert summarizer.run(hour(8)) is Status.DONE, summarizer.reports.getvalue()
    read = summarizer.lake.read_days(RELIABILITY, [summarizer.manifest()]).orderBy("hour")
    assert [tuple(row) for row in read.select("deliveries", "eligible").collect()] == [(3, None), (1, 1)]
    tried = summarizer.lake.read_days(ATTEMPTS, [summarizer.manifest()])
    assert {row.meaning for row in tried.collect()} == {None, "hold"}, "of the new hour it is known"
    assert [row[3:5] + row[6:8] for row in loaded(BUDGETS)] == [(1, 0, 1, 0)], "of what is known"


@pytest.mark.lengthy
def test_an_inversion_across_two_hours_is_found(summarizer: Summarizer, traffic: Traffic) -> None:
    overtaken, overtaker = traffic.delivered(MORNING + dt.timedelta(hours=1)), traffic.delivered()
    sent_last = {"sequence": overtaker.id + 1, "created_at": MORNING - dt.timedelta(hours=1)}
    Delivery.objects.filter(id=overtaken.id).update(**sent_last)
    assert summarizer.run(hour(7), hour(8)) is Status.DONE
    found = rows_of(FINDINGS).values_list("finding", "delivery_id", "other_id", "explanation")
    assert [*found] == [("inversion", overtaken.id, overtaker.id, "")]


@pytest.mark.lengthy
def test_a_failed_check_is_named_leaves_what_was_in_force_and_stops_no_other_window(
    summarizer: Summarizer, traffic: Traffic
) -> None:
    summarizer.run(hour(7))
    before = (summarizer.rows(RELIABILITY), loaded(RELIABILITY))
    for later in (0, 1):
        traffic.delivered(MORNING + later * dt.timedelta(hours=1))
    statuses = tuple(set(summarizer.words.statuses) - {DeliveryStatus.REJECTED.value})
    summarizer.words = dataclasses.replace(summarizer.words, statuses=statuses)
    assert summarizer.run(hour(7), hour(8)) is Status.FAILED
    failed, following = summarizer.reports.windows()
    name = "bronze/deliveries: only words of the broker"
    wrong = [check for check in failed["checks"] if not check["passed"]]
    assert wrong == [{"name": name, "passed": False, "found": "1 rows are wrong"}]
    assert (failed["state"], name in failed["error"], following["state"]) == ("FAILED", True, "PASSED")
    assert (summarizer.rows(RELIABILITY)[:-1], loaded(RELIABILITY)[:-1]) == before


@pytest.mark.lengthy
@pytest.mark.parametrize(("is_closed", "expected"), [(False, Status.DONE), (True, Status.FAILED)])
def test_what_is_settled_while_a_window_is_read_may_be_missing_until_it_is_closed(
    summarizer: Summarizer, traffic: Traffic, monkeypatch: pytest.MonkeyPatch, is_closed: bool, expected: Status
) -> None:
    def read_and_settle(spark: SparkSession, table: Table, window: Window, *, slice_rows: int) -> DataFrame:
        frame = source.read(spark, table, window, slice_rows=slice_rows).localCheckpoint()
        if table is BRONZE[-1]:
            traffic.delivered()
        return frame

    monkeypatch.setattr(window_module, "read", read_and_settle)
    monkeypatch.setattr(window_module, "is_closed", lambda *_: is_closed)
    assert summarizer.run(hour(7)) is expected


@pytest.mark.lengthy
def test_a_run_that_lost_its_lock_commits_nothing(summarizer: Summarizer, traffic: Traffic) -> None:
    def end_lock(report: str) -> None:
        if "rows made" in report:
            execute(f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {HELD} = {LOCK}")

    with pytest.raises(LockLost, match="lost"):
        summarizer.run(reports=ReportStream(end_lock))
    assert summarizer.manifest().pieces == ()
    assert loaded(RELIABILITY) == []


def waiting_since(traffic: Traffic, at: dt.datetime) -> None:
    """Let a delivery wait that was created at an instant and has not been sent."""
    size = {"size": 2, "status": DeliveryStatus.PENDING}
    id_ = partitions.first_id(at.date()) + int(at.timestamp()) % 10**9
    Delivery.objects.create(id=id_, line=traffic.line, subscription=traffic.subscription, created_at=at, **size)


def day_after(number: int) -> Window:
    return Window(*(moment + dt.timedelta(days=number) for moment in (WHOLE_DAY.start, WHOLE_DAY.end)))


def take_away(column: str, table: Table, summarizer: Summarizer) -> None:
    """Leave what the lake has of a table as it was written when the table had no such column."""
    for part in summarizer.manifest().parts():
        if part.table == table.path:
            for file in (summarizer.folder / part.folder).glob("*.parquet"):
                rows = pq.ParquetFile(file).read()
                file.unlink()
                pq.write_table(rows.drop_columns([column]), file.with_name(f"before-{file.name}"))


def interrupt(moment: str, report: str) -> None:
    if moment in report:
        raise KeyboardInterrupt


def deliveries_of(row: tuple[Any, ...]) -> int:
    return int(row[6])


def said(manifest: str) -> Any:
    """Return a manifest without what differs from one time to the next.

    PostgreSQL writes its counters of rows down when it comes to it; the second time there is something to lose.
    """
    manifest_said = json.loads(manifest)
    for piece in manifest_said["pieces"]:
        piece["inputs"] = {leaf: rows for leaf, rows in piece["inputs"].items() if not leaf.endswith("inserted")}
        piece["checks"] = [check for check in piece["checks"] if not check["name"].endswith("none is gone")]
    return manifest_said
