"""When a backlog grows, of numbers that are counted to a limit, and of which some may be unknown."""

import pytest

from analytics.alert_rules import MIN_GROWN, AlertThresholds
from delivery.limits import MAX_DUE

RISING = [MIN_GROWN + 100 * minute for minute in range(4)]
THRESHOLDS = AlertThresholds(growing_minutes=3)


@pytest.mark.behaviour("11.8")
@pytest.mark.parametrize(
    ("due", "grows", "grows_on"),
    [
        (RISING, True, True),
        ([*RISING[:2], MAX_DUE, MAX_DUE], True, True),
        ([MAX_DUE] * 4, True, True),
        ([*RISING[:3], RISING[2]], False, False),
        ([MAX_DUE, MAX_DUE, MAX_DUE - 2, MAX_DUE - 1], False, False),
        ([number - MIN_GROWN for number in RISING], False, False),
        (RISING[1:], False, True),
        (RISING[3:], False, True),
        ([], False, False),
    ],
)
def test_a_backlog_grows_if_no_number_says_otherwise_and_begins_to_if_all_are_known(
    due: list[int], grows: bool, grows_on: bool
) -> None:
    assert THRESHOLDS.is_growing(due) == grows
    assert THRESHOLDS.is_growing(due, has_grown=True) == grows_on
