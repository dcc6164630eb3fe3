"""What is compared is measured by turns, and really beside what it is compared with."""

from functools import partial

import pytest

from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.receipts import NANOSECONDS, Receipts
from benchmarks.scenarios.retries import lulls
from benchmarks.throughput import compared


def failed_at(*seconds: float) -> Receipts:
    """Return receipts with requests that were answered 500 at these moments."""
    receipts = Receipts()
    receipts.failed_at.extend(int(moment * NANOSECONDS) for moment in seconds)
    return receipts


@pytest.mark.parametrize(
    ("moments", "idle"),
    [
        ((10.5, 11.5, 12.5), []),
        ((10.5, 10.6, 12.5), [2]),
        ((9.9, 10.5, 11.5, 13.0), [3]),
        ((), [1, 2, 3]),
    ],
)
def test_something_has_to_be_tried_again_in_each_part_of_the_time(moments: tuple[float, ...], idle: list[int]) -> None:
    said = [f"nothing was tried again apart in part {part} of 3 of the time" for part in idle]
    assert lulls(failed_at(*moments), 10.0, 13.0, 3) == said


def test_variants_are_measured_forth_and_back_and_compared_with_the_first() -> None:
    rates = {"one": [100.0, 120.0], "other": [50.0, 60.0]}
    order: list[str] = []

    def measure(what: str) -> Outcome:
        order.append(what)
        return Outcome([Figure("some", "delivered", rates[what].pop(0), "/s")], [f"{what} was wrong"], "")

    outcome = compared("some", {what: partial(measure, what) for what in rates}, at_least(0.9))
    assert order == ["one", "other", "other", "one"]
    assert [(one.figure, round(one.value, 1)) for one in outcome.figures] == [
        ("delivered, one", 110.0),
        ("delivered, other", 55.0),
        ("spread, one", 18.2),
        ("spread, other", 18.2),
        ("other / one", 0.5),
    ]
    assert sorted(outcome.problems) == ["one was wrong"] * 2 + ["other was wrong"] * 2
