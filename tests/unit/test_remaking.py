"""Which days are made again when others have changed."""

import datetime as dt
from typing import Final

import pytest

from analytics.pipeline.window import stale

DAY: Final = dt.date(2026, 3, 2)


def days(*after: int) -> list[dt.date]:
    return [DAY + dt.timedelta(days=number) for number in after]


@pytest.mark.parametrize(
    ("changed", "made", "remade"),
    [
        pytest.param([], [], [], id="nothing has changed"),
        pytest.param([5], [5], [6, 28, 30], id="a day was done again"),
        pytest.param([0], [0], [2, 5, 6, 28], id="four weeks are made of it"),
        pytest.param([40], [40], [], id="there is none after it"),
        pytest.param([5, 6], [5, 6], [28, 30], id="one after it was done again too"),
        pytest.param([5, 6], [6, 5], [6, 28, 30], id="one after it had been done before it was"),
        pytest.param([5, 6], [6, 5, 6], [28, 30], id="hours of one after it were done, some of them later"),
        pytest.param([5], [], [6, 28, 30], id="a run before changed it and was ended"),
        pytest.param([5], [6], [28, 30], id="likewise, and one after it was done in this run"),
        pytest.param([5, 6], [5], [6, 28, 30], id="likewise, one after it, and it was done in this run"),
    ],
)
def test_days_are_stale_that_were_made_before_one_of_the_four_weeks_before_changed(
    changed: list[int], made: list[int], remade: list[int]
) -> None:
    assert stale(days(0, 2, 5, 6, 28, 30), days(*changed), days(*made)) == days(*remade)
