"""What counts of a day of the lake."""

import datetime as dt

import pytest

from analytics.pipeline.job import Window
from analytics.pipeline.lake.manifests import DamagedManifest, Manifest, Part, Piece, UnknownManifest, day_of
from analytics.pipeline.reports import Check

MIDNIGHT = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
DAY = Window(MIDNIGHT, MIDNIGHT + 24 * HOUR)
EMPTY = Manifest(MIDNIGHT.date())


def hour(number: int) -> Window:
    return Window(MIDNIGHT + number * HOUR, MIDNIGHT + (number + 1) * HOUR)


def piece(window: Window, run: int = 1) -> Piece:
    part = Part("gold/reliability", f"gold/reliability/dt=2026-03-02/{window}/run={run}", 3, "hour timestamp")
    return Piece(window, run, {"leaf": 3}, (Check("all rows", True, "3 of 3"),), (part,))


def test_it_is_read_as_it_was_written() -> None:
    daily = (Part("gold/budgets", "somewhere", 1, "day date"),)
    manifest = EMPTY.with_piece(piece(hour(3))).with_piece(piece(hour(1))).with_daily(daily)
    assert Manifest.from_json(manifest.as_json()) == manifest
    assert [part.table for part in manifest.parts()] == ["gold/reliability", "gold/reliability", "gold/budgets"]


@pytest.mark.parametrize(
    ("known", "more", "counts"),
    [
        ([], hour(7), [hour(7)]),
        ([hour(7)], hour(6), [hour(6), hour(7)]),
        ([hour(6), hour(7)], hour(7), [hour(6), hour(7)]),
        ([hour(6), hour(7)], DAY, [DAY]),
        ([DAY], hour(7), [hour(7)]),
    ],
)
def test_a_window_replaces_what_was_known_of_its_time(known: list[Window], more: Window, counts: list[Window]) -> None:
    manifest = EMPTY
    for window in known:
        manifest = manifest.with_piece(piece(window))
    manifest = manifest.with_piece(piece(more, run=2))
    assert [one.window for one in manifest.pieces] == counts
    assert {one.run for one in manifest.pieces if one.window == more} == {2}


@pytest.mark.parametrize(
    ("known", "window", "rows"),
    [
        ([], DAY, {}),
        ([hour(6), hour(7)], DAY, {"gold/reliability": 6}),
        ([hour(6), hour(7)], hour(7), {"gold/reliability": 3}),
        ([DAY], hour(7), {}),
    ],
)
def test_rows_are_those_of_what_lies_in_a_window(known: list[Window], window: Window, rows: dict[str, int]) -> None:
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
        ([DAY], [*range(24)]),
    ],
)
def test_the_whole_hours_of_its_windows_are_known(windows: list[Window], hours: list[int]) -> None:
    manifest = EMPTY
    for window in windows:
        manifest = manifest.with_piece(piece(window))
    assert manifest.hours == {MIDNIGHT + number * HOUR for number in hours}


def test_one_of_another_version_is_not_guessed_at() -> None:
    later = EMPTY.as_json().replace('"version": 1', '"version": 2')
    with pytest.raises(UnknownManifest, match="version 2, where 1 is known"):
        Manifest.from_json(later)


@pytest.mark.parametrize("text", ["", "\0\0", "[]", "{}", '{"version": 1, "day": "2026-03-02"}', EMPTY.as_json()[:-9]])
def test_one_that_was_written_in_part_is_damaged(text: str) -> None:
    with pytest.raises(DamagedManifest, match="summarizing the whole day replaces it"):
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
def test_a_name_tells_the_day_it_is_of(name: str, is_of_the_day: bool) -> None:
    assert day_of(name) == (EMPTY.day if is_of_the_day else None)
