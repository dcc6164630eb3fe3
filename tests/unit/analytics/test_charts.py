"""Ranges and charts."""

import datetime as dt
import json

import pytest

from analytics.admin.charts import OTHERS, greatest_first, in_order, lines, stacked_bars
from analytics.pipeline.job import DAY, HOUR
from analytics.windows import RANGES, Range, latest

NOON = dt.datetime(2026, 5, 4, 12, tzinfo=dt.UTC)

THREE_HOURS = Range(NOON, NOON + 3 * HOUR)


def test_the_latest_range_ends_with_the_hour_under_way() -> None:
    assert latest(DAY, NOON + dt.timedelta(minutes=1)) == Range(NOON + HOUR - DAY, NOON + HOUR)


@pytest.mark.parametrize(("length", "step", "steps"), [("24h", "hour", 24), ("3d", "hour", 72), ("7d", "day", 8)])
def test_long_ranges_are_shown_day_by_day(length: str, step: str, steps: int) -> None:
    asked = latest(RANGES[length], NOON)
    assert (asked.step, len([*asked.steps()])) == (step, steps)


def test_the_first_step_of_days_holds_the_beginning_of_the_range() -> None:
    first, *_, last = latest(RANGES["7d"], NOON).steps()
    assert (first, last) == (dt.datetime(2026, 4, 27, tzinfo=dt.UTC), dt.datetime(2026, 5, 4, tzinfo=dt.UTC))


def test_bars_have_a_value_for_every_step() -> None:
    data = json.loads(stacked_bars("t", THREE_HOURS, {"a": {NOON + HOUR: 5}}).data)
    assert data["labels"] == ["04 May 12:00", "04 May 13:00", "04 May 14:00"]
    assert data["datasets"][0]["data"] == [0, 5, 0]


def test_a_line_is_broken_where_there_is_no_value() -> None:
    data = json.loads(lines("t", THREE_HOURS, {"p50": {NOON: 1.5}}, logarithmic_unit="ms").data)
    assert data["datasets"][0]["data"] == [1.5, None, None]


def test_lines_are_told_apart_by_more_than_their_colour() -> None:
    data = json.loads(lines("t", THREE_HOURS, {"p50": {}, "p95": {}, "p99": {}}).data)
    assert len({str(one["borderDash"]) for one in data["datasets"]}) == 3


def test_the_greatest_series_comes_first_and_the_rest_last() -> None:
    found = {(NOON, OTHERS): 20, (NOON, "small"): 1, (NOON, "middle"): 8, (NOON, "big"): 5, (NOON + HOUR, "big"): 5}
    assert [*greatest_first(found).items()] == [
        ("big", {NOON: 5, NOON + HOUR: 5}),
        ("middle", {NOON: 8}),
        ("small", {NOON: 1}),
        (OTHERS, {NOON: 20}),
    ]


def test_a_series_that_no_order_names_is_drawn_all_the_same() -> None:
    assert in_order({(NOON, "NEW"): 2, (NOON, "B"): 1}, ["A", "B"]) == {"B": {NOON: 1}, "NEW": {NOON: 2}}
