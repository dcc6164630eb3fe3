"""What the books say of how long answers wait to be stored decides what a fault may have come upon."""

import pytest

from tests.faults.exchanges import SETTLE_SECONDS, Exchange, Fault
from tests.faults.settling import MOST_SECONDS, stored_within

BROKEN = [Fault(10.0, 20.0), Fault(30.0, 30.5)]


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        ([], SETTLE_SECONDS),
        ([(1.0, 1.2)], SETTLE_SECONDS),
        ([(1.0, 1.2), (2.0, 3.5), (5.0, 5.9)], 3.0),
        ([(1.0, 9.9)], MOST_SECONDS),
        ([(9.0, 10.1)], SETTLE_SECONDS),
        ([(12.0, 13.0)], SETTLE_SECONDS),
        ([(19.9, 24.0)], SETTLE_SECONDS),
        ([(29.0, 31.0)], SETTLE_SECONDS),
        ([(20.1, 22.1), (19.9, 24.0)], 4.0),
    ],
)
def test_what_waited_longest_while_nothing_was_broken_counts_twice(
    waits: list[tuple[float, float]], seconds: float
) -> None:
    assert stored_within(waits, BROKEN) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("answered_at", "settling", "may_be"), [(8.9, 1.0, False), (8.9, 1.2, True), (None, 1.0, True)]
)
def test_what_was_answered_so_long_before_a_fault_may_not_have_been_stored(
    answered_at: float | None, settling: float, may_be: bool
) -> None:
    request = Exchange(1, "dlv_1", 1, flagged=False, altered=False, at=8.0, status=200, answered_at=answered_at)
    assert request.may_be_unsettled_at(Fault(10.0, 10.1, settling)) is may_be
