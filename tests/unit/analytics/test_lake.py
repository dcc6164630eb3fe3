"""The lake: manifests, files and folders, and writers that are killed."""

import datetime as dt
import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from analytics.pipeline.job import Check, Window, whole
from analytics.pipeline.lake import TOUCHED, Lake
from analytics.pipeline.lake_files import LakeFiles
from analytics.pipeline.manifests import FOLDER, Manifest, Part, Piece, UnreadableManifest, day_of, path_of
from analytics.pipeline.tables import RELIABILITY
from analytics.runs import lake_problem

MIDNIGHT: Final = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
DAY: Final = MIDNIGHT.date()
OPERATIONS: Final = {"open", "os.mkdir", "os.rename", "os.remove"}
"""Audit events of Python that announce a change of a folder."""

HOUR = dt.timedelta(hours=1)
DAY_WINDOW = whole(DAY)
EMPTY = Manifest(DAY)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(LakeFiles.at(str(tmp_path / "lake")), pytest.fail)


def manifest(run: int) -> Manifest:
    """Return what counts after a run."""
    part = Part(RELIABILITY.path, folder_of(run), 1, RELIABILITY.columns)
    return Manifest(DAY).with_piece(Piece(DAY_WINDOW, run, {}, (), (part,)))


def folder_of(run: int) -> str:
    return f"{RELIABILITY.path}/dt={DAY}/hours=00-24/run={run}"


def written(lake: Lake, run: int) -> None:
    lake.storage.replace(f"{folder_of(run)}/part-0.parquet", "rows")


def do(lake: Lake, run: int) -> None:
    lake.mark(TOUCHED, DAY)
    written(lake, run)
    lake.commit(manifest(run))


def runs(lake: Lake) -> list[str]:
    return sorted(path.name for path in Path(lake.storage.files.base_path).rglob("run=*"))


def test_a_writer_killed_at_any_operation_leaves_the_old_or_the_new_day(lake: Lake) -> None:
    do(lake, 0)
    for nth in count():
        killed = killed_at(nth, lake, nth + 1)
        counts = lake.manifest(DAY)
        assert counts in (manifest(nth), manifest(nth + 1))
        lake.sweep(pytest.fail)
        assert runs(lake) == [f"run={piece.run}" for piece in counts.pieces]
        assert lake.storage.entries(TOUCHED) == lake.storage.entries("tmp") == []
        assert {*lake.storage.entries(FOLDER)} - {"touched"} == {f"dt={DAY}.json"}
        if not killed:
            break
        do(lake, nth + 1)
    assert nth > 5, "there are some"


def killed_at(nth: int, lake: Lake, run: int) -> bool:
    """Let a run do its day in a process that is killed at its nth operation, from 0; return whether it was killed."""
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


def test_a_day_with_a_damaged_manifest_keeps_its_files_and_stops_no_other(lake: Lake) -> None:
    written(lake, 1)
    lake.mark(TOUCHED, DAY)
    lake.mark(TOUCHED, DAY + dt.timedelta(days=1))
    lake.storage.replace(path_of(DAY), "")
    reports: list[str] = []
    lake.sweep(reports.append)
    assert runs(lake) == ["run=1"]
    assert lake.storage.entries(TOUCHED) == [f"dt={DAY}"]
    assert len(reports) == 1
    assert reports[0].startswith(f"manifests/dt={DAY}.json: damaged manifest")
    assert lake.readable_manifest(DAY, reports.append) == Manifest(DAY)
    lake.commit(manifest(2))
    lake.sweep(pytest.fail)
    assert runs(lake) == []


def test_unknown_marks_are_removed(lake: Lake) -> None:
    lake.storage.replace(f"{TOUCHED}/dt={DAY}.new", "")
    lake.sweep(pytest.fail)
    assert lake.storage.entries(TOUCHED) == []


def hour(number: int) -> Window:
    return Window(MIDNIGHT + number * HOUR, MIDNIGHT + (number + 1) * HOUR)


def piece(window: Window, run: int = 1) -> Piece:
    part = Part("gold/reliability", f"gold/reliability/dt=2026-03-02/{window}/run={run}", 3, "hour timestamp")
    return Piece(window, run, {"leaf": 3}, (Check("all rows", True, "3 of 3"),), (part,))


def test_a_manifest_is_read_as_it_was_written() -> None:
    daily = (Part("gold/budgets", "somewhere", 1, "day date"),)
    manifest = Manifest(DAY, daily=daily).with_piece(piece(hour(3))).with_piece(piece(hour(1)))
    assert Manifest.from_json(manifest.as_json()) == manifest
    assert [part.table for part in manifest.parts()] == ["gold/reliability", "gold/reliability", "gold/budgets"]


@pytest.mark.parametrize(
    ("known", "more", "counts"),
    [
        ([], hour(7), [hour(7)]),
        ([hour(7)], hour(6), [hour(6), hour(7)]),
        ([hour(6), hour(7)], hour(7), [hour(6), hour(7)]),
        ([hour(6), hour(7)], DAY_WINDOW, [DAY_WINDOW]),
        ([DAY_WINDOW], hour(7), [hour(7)]),
    ],
)
def test_a_window_replaces_pieces_that_overlap_it(known: list[Window], more: Window, counts: list[Window]) -> None:
    manifest = EMPTY
    for window in known:
        manifest = manifest.with_piece(piece(window))
    manifest = manifest.with_piece(piece(more, run=2))
    assert [one.window for one in manifest.pieces] == counts
    assert {one.run for one in manifest.pieces if one.window == more} == {2}


@pytest.mark.parametrize(
    ("known", "window", "rows"),
    [
        ([], DAY_WINDOW, {}),
        ([hour(6), hour(7)], DAY_WINDOW, {"gold/reliability": 6}),
        ([hour(6), hour(7)], hour(7), {"gold/reliability": 3}),
        ([DAY_WINDOW], hour(7), {}),
    ],
)
def test_rows_are_those_of_pieces_in_the_window(known: list[Window], window: Window, rows: dict[str, int]) -> None:
    manifest = EMPTY
    for one in known:
        manifest = manifest.with_piece(piece(one))
    assert manifest.rows_in(window) == rows


@pytest.mark.parametrize(
    ("windows", "hours"),
    [
        ([], []),
        ([hour(7), hour(3)], [3, 7]),
        ([hour(2), Window(MIDNIGHT + 3 * HOUR, MIDNIGHT + 4.9 * HOUR)], [2, 3]),
        ([Window(MIDNIGHT + 4.1 * HOUR, MIDNIGHT + 7 * HOUR)], [5, 6]),
        ([Window(MIDNIGHT + 4.1 * HOUR, MIDNIGHT + 4.9 * HOUR)], []),
        ([DAY_WINDOW], [*range(24)]),
    ],
)
def test_the_complete_hours_of_a_manifest_are_known(windows: list[Window], hours: list[int]) -> None:
    manifest = EMPTY
    for window in windows:
        manifest = manifest.with_piece(piece(window))
    assert manifest.hours == {MIDNIGHT + number * HOUR for number in hours}


def test_a_manifest_of_another_version_is_refused() -> None:
    later = EMPTY.as_json().replace('"version": 1', '"version": 2')
    with pytest.raises(UnreadableManifest, match="version 2, where 1 is known"):
        Manifest.from_json(later)


@pytest.mark.parametrize("text", ["", "\0\0", "[]", "{}", '{"version": 1, "day": "2026-03-02"}', EMPTY.as_json()[:-9]])
def test_a_partly_written_manifest_is_damaged(text: str) -> None:
    with pytest.raises(UnreadableManifest, match="summarizing the whole day replaces it"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("name", "is_of_the_day"),
    [
        ("dt=2026-03-02", True),
        ("dt=2026-03-02.json", True),
        ("dt=2026-03-02.new", False),
        ("dt=2026-03-02.json.new", False),
        ("dt=2026-03-99", False),
        (".dt=2026-03-02.json.crc", False),
        ("touched", False),
    ],
)
def test_a_name_contains_its_day(name: str, is_of_the_day: bool) -> None:
    assert day_of(name) == (EMPTY.day if is_of_the_day else None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a lake [of] {days}, 100% *"


def test_a_file_has_its_latest_content(folder: Path) -> None:
    storage = LakeFiles.at(str(folder))
    assert storage.text("manifests/dt=2026-03-02.json") is None
    for text in ("old", "new"):
        storage.replace("manifests/dt=2026-03-02.json", text)
    assert storage.text("manifests/dt=2026-03-02.json") == "new"
    assert storage.entries("manifests") == ["dt=2026-03-02.json"]
    storage.files.delete_file("manifests/dt=2026-03-02.json")
    assert storage.entries("manifests") == []
    assert storage.entries("nowhere") == []


def test_folders_are_found_at_their_depth_and_removed(folder: Path) -> None:
    storage = LakeFiles.at(str(folder))
    for run in ("hours=00-24/run=1", "hours=00-24/run=2", "hours=07-08/run=3"):
        storage.replace(f"gold/volume/dt=2026-03-02/{run}/part-0.parquet", "12345")
    storage.replace("gold/volume/dt=2026-03-02/hours=00-24/run=1/_SUCCESS", "")
    day = "gold/volume/dt=2026-03-02"
    folders = {f"{day}/hours={name}" for name in ("00-24/run=1", "00-24/run=2", "07-08/run=3")}
    assert storage.folders(day, 2) == folders
    assert storage.size(f"{day}/hours=00-24/run=1") == 5
    storage.files.delete_dir(f"{day}/hours=00-24/run=2")
    assert storage.folders(day, 2) == {f"{day}/hours=00-24/run=1", f"{day}/hours=07-08/run=3"}
    assert storage.folders("gold/latency/dt=2026-03-02", 2) == set()


@pytest.mark.parametrize(
    ("address", "root", "spark"),
    [
        ("/a b/lake", "/a b/lake", "file:///a b/lake"),
        ("file:///a%20b/lake", "/a b/lake", "file:///a b/lake"),
        ("file:///lake/", "/lake", "file:///lake"),
    ],
)
def test_spark_and_arrow_use_the_same_folder(address: str, root: str, spark: str) -> None:
    storage = LakeFiles.at(address)
    assert (str(storage.folder), storage.address) == (root, spark)


def test_patterns_are_escaped_in_paths_that_spark_reads() -> None:
    storage = LakeFiles.at("/a [b] {c} *?")
    assert storage.url("x") == "file:///a [b] {c} *?/x"
    assert storage.url_to_read("x") == r"file:///a \[b\] \{c\} \*\?/x"


def test_the_lake_is_created_for_its_owner_only(tmp_path: Path) -> None:
    lake = tmp_path / "made" / "on the way"
    assert lake_problem(str(lake)) == ""
    assert (lake.is_dir(), lake.stat().st_mode & 0o777) == (True, 0o700)
    assert lake_problem(str(lake)) == ""


@pytest.mark.parametrize("lake", ["/proc/lake", "/dev/null/lake", "/dev/null"])
def test_a_lake_that_cannot_be_created_is_reported(lake: str) -> None:
    problem = lake_problem(lake)
    assert problem.startswith(f"The lake {lake} cannot be written to: ")
    assert problem.endswith("BROKER_LAKE says where it is.")


def test_object_stores_are_not_checked() -> None:
    assert lake_problem("s3a://bucket/lake") == ""
