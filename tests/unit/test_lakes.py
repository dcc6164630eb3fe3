"""What counts of a lake, whatever happens to who keeps it; none of this takes Spark."""

import datetime as dt
import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import pytest
from pyspark.sql import SparkSession

from analytics.pipeline.job import Window
from analytics.pipeline.lake.lake import TOUCHED, Lake
from analytics.pipeline.lake.manifests import FOLDER, Manifest, Part, Piece, path_of
from analytics.pipeline.lake.places import Place
from analytics.pipeline.tables import RELIABILITY

MIDNIGHT: Final = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
DAY: Final = MIDNIGHT.date()
OPERATIONS: Final = {"open", "os.mkdir", "os.rename", "os.remove"}
"""What changes a folder, by the names of Python's audit events, each told before it is done."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(Place.at(str(tmp_path / "lake")), cast("SparkSession", None))


def manifest(run: int) -> Manifest:
    """Return what counts after a run."""
    part = Part(RELIABILITY.path, folder_of(run), 1, RELIABILITY.columns)
    return Manifest(DAY).with_piece(Piece(Window(MIDNIGHT, MIDNIGHT + dt.timedelta(days=1)), run, {}, (), (part,)))


def folder_of(run: int) -> str:
    return f"{RELIABILITY.path}/dt={DAY}/hours=00-24/run={run}"


def written(lake: Lake, run: int) -> None:
    """Write what a run makes."""
    lake.place.replace(f"{folder_of(run)}/part-0.parquet", "rows")


def do(lake: Lake, run: int) -> None:
    """Do the day again."""
    lake.touch(DAY)
    written(lake, run)
    lake.keep(manifest(run))


def runs(lake: Lake) -> list[str]:
    return sorted(path.name for path in Path(lake.place.root).rglob("run=*"))


def test_one_that_is_killed_at_any_operation_leaves_the_old_or_the_new(lake: Lake) -> None:
    do(lake, 0)
    for nth in count():
        killed = killed_at(nth, lake, nth + 1)
        counts = lake.manifest(DAY)
        assert counts in (manifest(nth), manifest(nth + 1))
        lake.sweep(pytest.fail)
        assert runs(lake) == [f"run={piece.run}" for piece in counts.pieces]
        assert lake.place.entries(TOUCHED) == lake.place.entries("tmp") == []
        assert {*lake.place.entries(FOLDER)} - {"touched"} == {f"dt={DAY}.json"}
        if not killed:
            break
        do(lake, nth + 1)
    assert nth > 5, "there are some"


def killed_at(nth: int, lake: Lake, run: int) -> bool:
    """Let a run do its day in a process that is killed at its nth operation, from 0; say whether it had so many."""
    child = os.fork()
    if child == 0:
        operations = count()

        def kill(event: str, _: tuple[Any, ...]) -> None:
            if event in OPERATIONS and next(operations) == nth:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        do(lake, run)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def test_a_day_whose_manifest_is_damaged_keeps_what_it_has_and_stops_no_other(lake: Lake) -> None:
    written(lake, 1)
    lake.touch(DAY)
    lake.touch(DAY + dt.timedelta(days=1))
    lake.place.replace(path_of(DAY), "")
    told: list[str] = []
    lake.sweep(told.append)
    assert runs(lake) == ["run=1"]
    assert lake.place.entries(TOUCHED) == [f"dt={DAY}"]
    assert len(told) == 1
    assert told[0].startswith(f"manifests/dt={DAY}.json: damaged manifest")
    assert lake.known(DAY, told.append) == Manifest(DAY)
    lake.keep(manifest(2))
    lake.sweep(pytest.fail)
    assert runs(lake) == []


def test_marks_that_are_none_are_removed(lake: Lake) -> None:
    lake.place.replace(f"{TOUCHED}/dt={DAY}.new", "")
    lake.sweep(pytest.fail)
    assert lake.place.entries(TOUCHED) == []
