"""Summarizing a small history: once, twice, late, when a day has become empty, and when something is wrong."""

import dataclasses
import datetime as dt
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.db import connection
from pyspark.sql import SparkSession

from analytics.pipeline.application import Status
from analytics.pipeline.lake.manifests import path_of
from analytics.pipeline.run_lock import AnotherRun, only_run
from analytics.pipeline.tables import ATTEMPTS, BRONZE, DELIVERIES, GOLD, HOURLY, RELIABILITY, SILVER, VOLUME
from delivery.models import Delivery
from tests.spark.summaries import WHOLE_DAY, Summarizer, Told, database_address, hour, loaded
from tests.spark.traffic import DAY, MORNING, Traffic, empty_day


@pytest.fixture
def summarizer(spark: SparkSession, tmp_path: Path) -> Summarizer:
    """One with a lake on a path that is a nuisance."""
    return Summarizer(spark, tmp_path / "a lake [of] {days}, 100% *")


@pytest.fixture
def traffic(storage: None) -> Traffic:
    """A day's: one delivered at once, one at the third attempt, one rejected."""
    traffic = Traffic()
    traffic.delivered()
    traffic.delivered(answers=(503, 500, 200))
    traffic.delivered(answers=(404,))
    return traffic


def test_a_day_is_read_checked_summarized_and_loaded(summarizer: Summarizer, traffic: Traffic) -> None:
    assert summarizer.run() is Status.DONE
    (told,) = summarizer.told.windows()
    assert (told["state"], told["error"]) == ("PASSED", "")
    assert told["rows_read"] == {table.name: len(summarizer.rows(table)) for table in BRONZE}
    assert (told["rows_read"]["deliveries"], told["rows_read"]["attempts"]) == (3, 5)
    assert told["rows_written"] == {table.path: len(summarizer.rows(table)) for table in SILVER + GOLD}
    assert all(check["passed"] for check in told["checks"])
    assert told["lake_bytes"] == sum(file.stat().st_size for file in summarizer.folder.rglob("*.parquet"))
    ((deliveries, delivered),) = {(row[6], row[7]) for row in loaded(RELIABILITY)}
    assert (deliveries, delivered) == (3, 2)


def test_running_twice_gives_the_same(summarizer: Summarizer, traffic: Traffic) -> None:
    summarizer.run()
    lake, database, manifest = summarizer.gold(), in_postgresql(), summarizer.manifest()
    assert summarizer.run() is Status.DONE
    assert (summarizer.gold(), in_postgresql()) == (lake, database)
    assert told_apart(summarizer.manifest().as_json(), run=2) == told_apart(manifest.as_json(), run=1)


def test_the_same_run_done_again_leaves_what_counts_alone_until_it_is_through(
    summarizer: Summarizer, traffic: Traffic
) -> None:
    summarizer.run()
    before = summarizer.manifest()
    summarizer.runs = 0
    assert summarizer.run() is Status.DONE
    folders = {part.folder for part in summarizer.manifest().parts()}
    assert folders.isdisjoint(part.folder for part in before.parts())
    assert all((summarizer.folder / part.folder).is_dir() for part in before.parts()), "somebody may be reading them"


def test_late_rows_appear_when_it_is_done_again(summarizer: Summarizer, traffic: Traffic) -> None:
    summarizer.run()
    traffic.delivered(MORNING + dt.timedelta(hours=3))
    assert summarizer.run() is Status.DONE
    assert [row[6] for row in loaded(RELIABILITY)] == [3, 1]
    assert loaded(RELIABILITY) == [with_map(row) for row in summarizer.rows(RELIABILITY)]


def test_a_day_that_has_become_empty_has_no_summaries_any_more(summarizer: Summarizer, traffic: Traffic) -> None:
    summarizer.run()
    assert loaded(VOLUME)
    empty_day()
    assert summarizer.run() is Status.DONE
    assert {name: rows for name, rows in in_postgresql().items() if rows} == {}
    assert {name: rows for name, rows in summarizer.gold().items() if rows} == {}


def test_hours_of_a_day_add_up_to_the_day(summarizer: Summarizer, traffic: Traffic) -> None:
    traffic.delivered(MORNING + dt.timedelta(hours=1))
    assert summarizer.run(hour(7), hour(8)) is Status.DONE
    by_hours = {table.name: loaded(table) for table in HOURLY}
    assert [piece.window for piece in summarizer.manifest().pieces] == [hour(7), hour(8)]
    assert summarizer.run(WHOLE_DAY) is Status.DONE
    assert [piece.window for piece in summarizer.manifest().pieces] == [WHOLE_DAY]
    assert {table.name: loaded(table) for table in HOURLY} == by_hours


def test_what_does_not_count_any_more_is_removed_by_the_next_run(summarizer: Summarizer, traffic: Traffic) -> None:
    for _ in range(3):
        summarizer.run()
    there = {path.name for path in summarizer.folder.rglob("run=*")}
    assert there == {"run=2", "run=3"}, "what the last one replaced may still be read"
    summarizer.run(hour(7))
    assert {path.name for path in summarizer.folder.rglob("run=*")} == {"run=3", "run=4"}


def test_a_column_that_is_new_is_null_in_what_is_older(summarizer: Summarizer, traffic: Traffic) -> None:
    summarizer.run()
    grown = dataclasses.replace(RELIABILITY, columns=f"{RELIABILITY.columns}, regretted long")
    assert {row["regretted"] for row in summarizer.lake.of_days(grown, [summarizer.manifest()]).collect()} == {None}
    assert {len(row) for row in summarizer.rows(RELIABILITY)} == {12}


def test_a_failed_check_is_named_and_leaves_the_old_summaries_in_force(
    summarizer: Summarizer, traffic: Traffic
) -> None:
    summarizer.run(hour(7))
    lake, database = summarizer.gold(), in_postgresql()
    traffic.delivered()
    with connection.cursor() as cursor:  # as if a later version had written what this one does not know
        cursor.execute("ALTER TABLE delivery_message DROP CONSTRAINT IF EXISTS message_outcome")
        cursor.execute(
            "UPDATE delivery_message SET outcome = 'MISLAID' WHERE id = (SELECT max(id) FROM delivery_message)"
        )
    assert summarizer.run(hour(7), hour(8)) is Status.FAILED
    failed, passed = summarizer.told.windows()
    assert (failed["state"], passed["state"]) == ("FAILED", "PASSED"), "the next window has its chance"
    assert "bronze/messages: only words of the broker" in failed["error"]
    assert [check["name"] for check in failed["checks"] if not check["passed"]] == [
        "bronze/messages: only words of the broker"
    ]
    assert (summarizer.gold(), in_postgresql()) == (lake, database)


@pytest.mark.parametrize("moment", ["rows read", "rows made", "in the lake"])
def test_a_run_that_is_killed_leaves_nothing_half(summarizer: Summarizer, traffic: Traffic, moment: str) -> None:
    summarizer.run()
    before = in_postgresql()
    traffic.delivered()

    def kill(report: str) -> None:
        if moment in report:
            raise KeyboardInterrupt(moment)

    with pytest.raises(KeyboardInterrupt):
        summarizer.run(told=Told(kill))
    assert in_postgresql() == before
    assert len(summarizer.rows(DELIVERIES)) == (4 if moment == "in the lake" else 3)
    assert summarizer.run() is Status.DONE
    assert [row[6] for row in loaded(RELIABILITY)] == [4]
    assert len(summarizer.rows(ATTEMPTS)) == 6


def test_only_one_run_is_under_way(summarizer: Summarizer, traffic: Traffic) -> None:
    with only_run(database_address()), pytest.raises(AnotherRun, match="another run is under way"):
        summarizer.run()
    assert summarizer.run() is Status.DONE


def test_a_run_that_has_lost_its_lock_lets_nothing_count(summarizer: Summarizer, traffic: Traffic) -> None: ...


def in_postgresql() -> Mapping[str, list[tuple[Any, ...]]]:
    """Return all summaries that were loaded."""
    return {table.name: loaded(table) for table in GOLD}


def told_apart(manifest: str, run: int) -> Any:
    """Return a manifest but for what names the run."""
    said = json.loads(manifest.replace(f"run={run}", "run"))
    return {**said, "pieces": [{**piece, "run": None} for piece in said["pieces"]]}


def with_map(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row as PostgreSQL gives it: its map, the last column, as a dictionary."""
    return (*row[:-1], dict(row[-1]))
