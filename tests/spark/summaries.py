"""Runs of the application in this process, on the session that all tests share, and what they leave behind."""

import datetime as dt
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from django.db import connection
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from analytics.pipeline.application import Status, summarize_all
from analytics.pipeline.extraction import register
from analytics.pipeline.job import Job, Vocabulary, Window
from analytics.pipeline.lake.lake import Lake
from analytics.pipeline.lake.manifests import Manifest, path_of
from analytics.pipeline.lake.places import Place
from analytics.pipeline.load import column_names
from analytics.pipeline.reports import Reports
from analytics.pipeline.run_lock import only_run
from analytics.pipeline.tables import GOLD, Table
from analytics.pipeline.window import WindowRun
from analytics.vocabulary import vocabulary
from tests.spark.traffic import DAY

WHOLE_DAY = Window(dt.datetime(2026, 3, 2, tzinfo=dt.UTC), dt.datetime(2026, 3, 3, tzinfo=dt.UTC))
Row = tuple[Any, ...]


def hour(number: int) -> Window:
    """Return an hour of the day."""
    start = WHOLE_DAY.start + dt.timedelta(hours=number)
    return Window(start, start + dt.timedelta(hours=1))


def database_address() -> str:
    """Return where this test's database is."""
    there = connection.settings_dict
    return make_conninfo(
        dbname=there["NAME"],
        user=there["USER"],
        password=there["PASSWORD"],
        host=there["HOST"],
        port=there["PORT"],
    )


def job(lake: Path, *windows: Window, run: int = 1, master: str = "local[1]", slice_rows: int = 100_000) -> Job:
    """Return what a run is to do."""
    return Job(
        run=run,
        windows=windows or (WHOLE_DAY,),
        lake=str(lake),
        master=master,
        memory="1g",
        vocabulary=vocabulary(),
        objective=0.999,
        slice_rows=slice_rows,
    )


class Told(io.StringIO):
    """A stream for reports that remembers them, and lets a test step in when a text comes by."""

    def __init__(self, on_report: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self._on_report = on_report

    def write(self, text: str) -> int:
        written = super().write(text)
        self._on_report(text)
        return written

    def windows(self) -> list[dict[str, Any]]:
        """Return what was told of windows."""
        reports = [json.loads(line) for line in self.getvalue().splitlines()]
        return [report for report in reports if "window" in report]


@dataclass
class Summarizer:
    """Summarizes with one lake."""

    spark: SparkSession
    folder: Path
    runs: int = 0
    told: Told = field(default_factory=Told)
    words: Vocabulary = field(default_factory=vocabulary)

    def run(self, *windows: Window, told: Told | None = None) -> Status:
        """Do what the application does, on the session there is."""
        self.runs += 1
        self.told = told or Told()
        register(self.spark, database_address())
        reports = Reports(self.told, io.StringIO())
        with only_run(database_address()) as still:
            asked = replace(job(self.folder, *windows, run=self.runs), vocabulary=self.words)
            return summarize_all(WindowRun(asked, self.lake, database_address(), still, reports.progress), reports)

    @property
    def lake(self) -> Lake:
        """The lake."""
        return Lake(Place.at(str(self.folder)), self.spark)

    def manifest(self) -> Manifest:
        """Return what counts of the day."""
        return manifest_of(self.folder)

    def rows(self, table: Table) -> list[Row]:
        """Return what the lake has of the day."""
        return rows_of(self.folder, table)

    def gold(self) -> Mapping[str, list[Row]]:
        """Return all summaries of the day in the lake."""
        return {table.name: self.rows(table) for table in GOLD}


def manifest_of(folder: Path) -> Manifest:
    """Return what counts of the day in a lake."""
    text = Place.at(str(folder)).text(path_of(DAY))
    return Manifest.from_json(text) if text else Manifest(DAY)


def rows_of(folder: Path, table: Table) -> list[Row]:
    """Return what a lake has of the day, as whoever has no Spark reads it; in some order that is always the same."""
    parts = [part.folder for part in manifest_of(folder).parts() if part.table == table.path]
    rows = [row for part in parts for row in ds.dataset(folder / part, format="parquet").to_table().to_pylist()]
    return sorted((tuple(row.values()) for row in rows), key=repr)


def loaded(table: Table) -> list[Row]:
    """Return the rows of a summary in PostgreSQL, without their ids."""
    names = ", ".join(f'"{name}"' for name in column_names(table))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM analytics_{table.name}")
        return sorted(cursor.fetchall(), key=repr)


def all_loaded() -> Mapping[str, list[Row]]:
    """Return all summaries in PostgreSQL."""
    return {table.name: loaded(table) for table in GOLD}
