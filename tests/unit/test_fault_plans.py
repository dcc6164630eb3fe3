"""What is broken at random: the same by the same seed, and never two things at once that touch the same."""

import itertools

from tests.faults.everything.breakages import BREAKAGES
from tests.faults.everything.plans import Step, steps

MANY = 500


def planned(seed: int) -> list[Step]:
    return [*itertools.islice(steps(seed), MANY)]


def test_the_same_seed_breaks_the_same() -> None:
    assert planned(7) == planned(7)
    assert planned(7) != planned(8)


def test_everything_is_broken_at_some_time_alone_and_beside_something_else() -> None:
    alone: set[str] = set()
    beside: set[str] = set()
    for one in planned(1):
        (alone if len(one.faults) == 1 else beside).update(fault.breakage.name for fault in one.faults)
    assert alone == {breakage.name for breakage in BREAKAGES}
    assert alone - beside == set()


def test_two_at_once_touch_nothing_in_common() -> None:
    pairs = [one.faults for one in planned(1) if len(one.faults) > 1]
    assert len(pairs) > MANY // 10
    assert not any(first.breakage.touches & second.breakage.touches for first, second in pairs)


def test_most_faults_are_brief_and_some_take_as_long_as_in_their_own_case() -> None:
    faults = [fault for one in planned(1) for fault in one.faults]
    long = [fault for fault in faults if fault.seconds == fault.breakage.seconds > 10]
    assert 0 < len(long) < len(faults) // 5
    assert all(0 < one.after < 10 for one in planned(1))
