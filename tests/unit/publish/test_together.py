"""What is done for several requests at once, and one by one if that fails."""

from collections.abc import Sequence

import pytest
from django.db import OperationalError

from delivery.publish.together import together


@pytest.mark.behaviour("2.1")
def test_what_fails_together_is_done_one_by_one() -> None:
    def act(items: Sequence[int]) -> Sequence[int]:
        if 2 in items:
            raise ValueError(items)
        return items

    first, second, third = together(act, [1, 2, 3])
    assert (first, third) == (1, 3)
    assert isinstance(second, ValueError)


@pytest.mark.behaviour("11.5")
def test_an_outage_that_one_meets_is_not_waited_for_by_those_after_it() -> None:
    asked: list[Sequence[int]] = []
    outage = OperationalError("the database did not answer in time")

    def act(items: Sequence[int]) -> Sequence[int]:
        asked.append(items)
        if len(items) > 1:
            raise ValueError(items)
        if items == [2]:
            raise outage
        return items

    assert together(act, [1, 2, 3, 4]) == [1, outage, outage, outage]
    assert asked == [[1, 2, 3, 4], [1], [2]]
