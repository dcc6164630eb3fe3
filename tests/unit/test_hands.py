"""What a line has in hand and takes next (behaviour 4.2, 4.6, 11.1)."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhook.parts import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer
from tests.hands import aside, fresh, in_hand


def taken(hand: Buffer[Outgoing], *, aside_next: bool = False) -> list[int]:
    """Take everything as a line does; return the ids."""
    order = []
    while delivery := hand.take(aside_next=aside_next):
        order.append(delivery.id)
        aside_next = not delivery.is_aside
    return order


@pytest.mark.behaviour("4.6")
@pytest.mark.parametrize(
    ("head", "new", "stuck", "aside_next", "order"),
    [
        (None, [], [], False, []),
        (None, [1, 2, 3], [], False, [1, 2, 3]),
        (None, [1, 2, 3], [], True, [1, 2, 3]),
        (None, [], [7, 8], False, [7, 8]),
        (None, [1, 2, 3], [7, 8, 9], False, [1, 7, 2, 8, 3, 9]),
        (None, [1, 2, 3], [7, 8, 9], True, [7, 1, 8, 2, 9, 3]),
        (None, [1, 2, 3, 4], [7], False, [1, 7, 2, 3, 4]),
        (None, [1], [7, 8, 9], False, [1, 7, 8, 9]),
        (5, [1, 2], [7], False, [5, 7, 1, 2]),
    ],
)
def test_the_head_first_then_new_and_stuck_in_turn(
    head: int | None, new: Sequence[int], stuck: Sequence[int], aside_next: bool, order: list[int]
) -> None:
    hand = Buffer(head=in_hand(head) if head else None, fresh=fresh(*new), aside=aside(*stuck))
    assert taken(hand, aside_next=aside_next) == order


@given(
    new=st.integers(0, 30),
    stuck=st.integers(0, 30),
    has_head=st.booleans(),
    aside_next=st.booleans(),
)
def test_nothing_is_lost_and_each_kind_keeps_its_order(new: int, stuck: int, has_head: bool, aside_next: bool) -> None:
    hand = Buffer(
        head=in_hand(1000) if has_head else None,
        fresh=fresh(*range(new)),
        aside=aside(*range(100, 100 + stuck)),
    )
    order = taken(hand, aside_next=aside_next)
    assert [number for number in order if number < 100] == [*range(new)]
    assert [number for number in order if 100 <= number < 1000] == [*range(100, 100 + stuck)]
    assert [position for position, number in enumerate(order) if number == 1000] == ([0] if has_head else [])
    both = order[has_head : has_head + 2 * min(new, stuck)]
    kinds = [number >= 100 for number in both]
    assert all(kind != following for kind, following in itertools.pairwise(kinds))
    assert len(hand) == 0


@pytest.mark.behaviour("11.1")
@pytest.mark.parametrize(("size", "left_when_low"), [(1, 0), (2, 0), (5, 2), (10, 4), (499, 199), (500, 200)])
def test_a_hand_is_low_at_two_fifths_of_its_page(size: int, left_when_low: int) -> None:
    hand = Buffer(fresh=fresh(*range(size)), more=True)
    while not hand.is_low:
        hand.take(aside_next=False)
    assert len(hand) == left_when_low


def test_a_hand_that_holds_everything_is_never_low() -> None:
    hand = Buffer(fresh=fresh(1, 2, 3))
    for _ in range(4):
        assert not hand.is_low
        hand.take(aside_next=False)


@pytest.mark.parametrize(
    ("deliveries", "more", "is_starved"), [(0, True, True), (0, False, False), (1, True, False), (1, False, False)]
)
def test_a_hand_is_starved_where_there_is_work_but_none_in_it(deliveries: int, more: bool, is_starved: bool) -> None:
    hand = Buffer(fresh=fresh(*range(deliveries)), more=more)
    hand.take(aside_next=False)
    assert hand.is_starved == is_starved


def test_a_hand_counts_its_bytes() -> None:
    hand = Buffer(head=in_hand(1, size=5), fresh=[in_hand(2, size=7)], aside=[in_hand(3, is_aside=True, size=11)])
    assert (hand.bytes, hand.take(aside_next=False), hand.bytes) == (23, in_hand(1, size=5), 18)


@given(st.integers(0, 100), st.lists(st.integers(0, 60)))
def test_a_budget_gives_out_no_more_than_it_has(limit: int, sizes: list[int]) -> None:
    budget = BodyBudget(limit)
    granted: list[int] = []
    for size in sizes:
        fits = sum(granted) + size <= limit
        assert budget.take(size) == fits
        if fits:
            granted.append(size)
        elif granted:
            budget.give_back(granted.pop())
