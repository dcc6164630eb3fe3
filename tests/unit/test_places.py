"""Files and folders of a lake, without Spark."""

from pathlib import Path

import pytest

from analytics.pipeline.lake.places import Place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a lake [of] {days}, 100% *"


def test_a_file_says_what_was_written_last(folder: Path) -> None:
    place = Place.at(str(folder))
    assert place.text("manifests/dt=2026-03-02.json") is None
    for text in ("old", "new"):
        place.replace("manifests/dt=2026-03-02.json", text)
    assert place.text("manifests/dt=2026-03-02.json") == "new"
    assert place.entries("manifests") == ["dt=2026-03-02.json"]
    place.forget("manifests/dt=2026-03-02.json")
    assert place.entries("manifests") == []
    assert place.entries("nowhere") == []


def test_what_an_interrupted_replacement_leaves_is_removed(folder: Path) -> None:
    place = Place.at(str(folder))
    place.replace("manifests/dt=2026-03-02.json", "old")
    (folder / "tmp/dt=2026-03-02.json").write_text("ne")
    assert place.entries("manifests") == ["dt=2026-03-02.json"]
    place.clear()
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["dt=2026-03-02.json"]


def test_folders_are_found_at_their_depth_and_removed(folder: Path) -> None:
    place = Place.at(str(folder))
    for run in ("hours=00-24/run=1", "hours=00-24/run=2", "hours=07-08/run=3"):
        place.replace(f"gold/volume/dt=2026-03-02/{run}/part-0.parquet", "12345")
    place.replace("gold/volume/dt=2026-03-02/hours=00-24/run=1/_SUCCESS", "")
    day = "gold/volume/dt=2026-03-02"
    assert place.folders(day, 2) == {
        f"{day}/hours=00-24/run=1",
        f"{day}/hours=00-24/run=2",
        f"{day}/hours=07-08/run=3",
    }
    assert place.size(f"{day}/hours=00-24/run=1") == 5
    place.remove(f"{day}/hours=00-24/run=2")
    assert place.folders(day, 2) == {f"{day}/hours=00-24/run=1", f"{day}/hours=07-08/run=3"}
    assert place.folders("gold/latency/dt=2026-03-02", 2) == set()


@pytest.mark.parametrize(
    ("address", "root", "spark"),
    [
        ("/a b/lake", "/a b/lake", "file:///a b/lake"),
        ("file:///a%20b/lake", "/a b/lake", "file:///a b/lake"),
        ("file:///lake/", "/lake", "file:///lake"),
    ],
)
def test_spark_and_arrow_mean_the_same_place(address: str, root: str, spark: str) -> None:
    place = Place.at(address)
    assert (place.root, place.address) == (root, spark)


def test_what_spark_takes_for_a_pattern_is_quoted_where_it_reads() -> None:
    place = Place.at("/a [b] {c} *?")
    assert place.written("x") == "file:///a [b] {c} *?/x"
    assert place.read("x") == r"file:///a \[b\] \{c\} \*\?/x"


def test_a_place_that_is_no_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(OSError, match="Not a directory"):
        Place.at(str(tmp_path / "lake")).replace("manifests/x", "")
