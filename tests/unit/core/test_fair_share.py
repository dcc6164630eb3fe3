"""Amounts that are shared out: a limit for all, and a share for each owner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.fair_share import FairShare

pytestmark = pytest.mark.behaviour("11.1")


@given(
    limit=st.integers(1, 100),
    share=st.integers(1, 100),
    acts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40), st.booleans())),
)
def test_neither_the_limit_nor_a_share_is_exceeded(limit: int, share: int, acts: list[tuple[int, int, bool]]) -> None:
    shared, taken = FairShare(limit, share), [(0, 0)]
    for owner, amount, takes in acts:
        if takes:
            of_owner = sum(held for whose, held in taken if whose == owner)
            has_room = sum(held for _, held in taken) + amount <= limit and of_owner + amount <= share
            assert shared.take(owner, amount) == has_room
            taken += [(owner, amount)] * has_room
        elif len(taken) > 1:
            shared.give_back(*taken.pop())
    in_use = sum(held for _, held in taken)
    assert (shared.wait_until_unused(0), shared.is_full) == (in_use == 0, in_use >= limit)


def test_what_is_given_back_can_be_taken_by_others() -> None:
    shared = FairShare(4, 3)
    assert [shared.take("one", 3), shared.take("one"), shared.take("other", 2)] == [True, False, False]
    shared.give_back("one", 2)
    assert [shared.take("other", 2), shared.take("other")] == [True, True]
