"""Who of those that poll has a seat to wait on, where there are not enough for all (behaviour 9.1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.mailbox.long_poll import seats_beside, who_gives_up_a_seat

SHOP, BANK, POST = 1, 2, 3
SEATS = 5
MANY = st.integers(1, SEATS + 2)
"""More subscribers than there are seats."""
TAKEN = st.lists(MANY, min_size=SEATS, max_size=SEATS)


@pytest.mark.parametrize(
    ("taken", "newcomer", "given_up"),
    [
        ([SHOP, SHOP, SHOP], BANK, 2),
        ([SHOP, BANK, SHOP], BANK, None),  # then the bank would have two of three, and the shop come back for one
        ([SHOP, SHOP, SHOP, BANK], BANK, 2),
        ([BANK, SHOP, BANK, SHOP], POST, 3),  # who came last, of those that have the most
        ([BANK, SHOP, BANK, SHOP], SHOP, None),
        ([SHOP, BANK], POST, None),
        ([SHOP], SHOP, None),
        ([], SHOP, None),
    ],
)
def test_a_seat_is_given_up_for_whoever_has_fewer_even_with_it(
    taken: list[int], newcomer: int, given_up: int | None
) -> None:
    assert who_gives_up_a_seat(taken, newcomer) == given_up


@given(TAKEN, st.lists(MANY, max_size=50))
def test_whoever_has_no_seat_is_refused_only_where_nobody_has_two(taken: list[int], newcomers: list[int]) -> None:
    for newcomer in newcomers:
        given_up = who_gives_up_a_seat(taken, newcomer)
        if given_up is None:
            assert newcomer in taken or len({*taken}) == SEATS
        else:
            taken = [*taken[:given_up], *taken[given_up + 1 :], newcomer]


@given(TAKEN, st.permutations([*range(1, SEATS + 3)] * 10))
def test_seats_come_to_rest_however_often_everybody_comes_again(taken: list[int], newcomers: list[int]) -> None:
    for newcomer in newcomers:
        if (given_up := who_gives_up_a_seat(taken, newcomer)) is not None:
            taken = [*taken[:given_up], *taken[given_up + 1 :], newcomer]
    assert {who_gives_up_a_seat(taken, newcomer) for newcomer in range(1, SEATS + 3)} == {None}


@pytest.mark.parametrize(("threads", "seats"), [(128, 48), (1_000, 48), (64, 24), (32, 12), (2, 0)])
def test_polls_leave_most_threads_of_a_web_process_to_others(threads: int, seats: int) -> None:
    assert seats_beside(threads) == seats
