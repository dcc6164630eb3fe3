"""Ranges that people look at, and their steps."""

import datetime as dt

import pytest

from analytics.pipeline.job import DAY, HOUR
from analytics.ranges import LENGTHS, Range, latest

NOON = dt.datetime(2026, 5, 4, 12, tzinfo=dt.UTC)


def test_the_latest_range_ends_with_the_hour_under_way() -> None:
    assert latest(DAY, NOON + dt.timedelta(minutes=1)) == Range(NOON + HOUR - DAY, NOON + HOUR)


@pytest.mark.parametrize(("length", "step", "steps"), [("24h", "hour", 24), ("3d", "hour", 72), ("7d", "day", 8)])
def test_long_ranges_are_shown_day_by_day(length: str, step: str, steps: int) -> None:
    asked = latest(LENGTHS[length], NOON)
    assert (asked.step, len([*asked.steps()])) == (step, steps)


def test_the_first_step_of_days_holds_the_beginning_of_the_range() -> None:
    first, *_, last = latest(LENGTHS["7d"], NOON).steps()
    assert (first, last) == (dt.datetime(2026, 4, 27, tzinfo=dt.UTC), dt.datetime(2026, 5, 4, tzinfo=dt.UTC))
