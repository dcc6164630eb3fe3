"""What a line takes in hand of what waits."""

import pytest

from delivery.limits import MAX_LINE_BYTES
from delivery.worker.buffer import BodyBudget
from delivery.worker.pages import ASIDE, FRESH, HEAD, MOST_DELIVERIES, GroupRow, PageRequest, Row, page_of

PLENTY = 64 * MAX_LINE_BYTES


def row(number: int, part: int, size: int = 10) -> Row:
    return Row(1, part, number, number, 1, 0, None, False, 0, size)


def taken(waiting: list[Row], budget: int = PLENTY, **wanted: int | bool) -> list[int]:
    line = PageRequest(**{"line_id": 1, "epoch": 1, "head_id": None, "capacity": 500, **wanted})  # type: ignore[arg-type]
    return [one.id for one in page_of(waiting, line, BodyBudget(budget)).taken]


@pytest.mark.behaviour("4.6", "4.2")
@pytest.mark.parametrize(
    ("capacity", "aside_next", "expected"),
    [
        (4, False, [1, 11, 2, 12]),
        (4, True, [11, 1, 12, 2]),
        (1, False, [1]),
        (1, True, [11]),
    ],
)
def test_a_page_however_short_begins_with_those_whose_turn_it_is(
    capacity: int, aside_next: bool, expected: list[int]
) -> None:
    waiting = [*(row(n, FRESH) for n in (1, 2, 3)), *(row(n, ASIDE) for n in (11, 12, 13))]
    assert taken(waiting, capacity=capacity, aside_next=aside_next) == expected


@pytest.mark.behaviour("4.2")
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([MAX_LINE_BYTES, 1], [0]),
        ([2 * MAX_LINE_BYTES, 1], [0]),
        ([MAX_LINE_BYTES // 2, MAX_LINE_BYTES // 2, 1], [0, 1]),
        ([1, 1, 1], [0, 1, 2]),
    ],
)
def test_a_page_holds_at_most_1_mib_but_always_one(sizes: list[int], expected: list[int]) -> None:
    assert taken([row(number, FRESH, size) for number, size in enumerate(sizes)]) == expected


@pytest.mark.behaviour("6.3", "11.1")
@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [(1, 500), (2, 250), (200, 2), (MOST_DELIVERIES, 1), (3 * MOST_DELIVERIES, 1)],
)
def test_a_page_of_groups_is_as_long_as_they_have_deliveries_but_always_one(endpoints: int, expected: int) -> None:
    waiting = [GroupRow(1, FRESH, number, number, [1] * endpoints, 10, 0, 0, False, None) for number in range(500)]
    page = page_of(waiting, PageRequest(1, 1, None, 500), BodyBudget(PLENTY))
    assert (len(page.taken), page.more) == (expected, True)


@pytest.mark.behaviour("4.7", "4.8")
def test_the_head_comes_first_and_once() -> None:
    assert taken([row(5, HEAD), row(1, FRESH), row(5, FRESH), row(9, ASIDE)]) == [5, 1, 9]


@pytest.mark.behaviour("11.1")
def test_a_process_that_holds_too_much_takes_nothing_and_knows_that_there_is_more() -> None:
    page = page_of([row(1, FRESH, MAX_LINE_BYTES)], PageRequest(1, 1, None, 500), BodyBudget(MAX_LINE_BYTES - 1))
    assert (page.taken, page.more) == ([], True)


@pytest.mark.behaviour("11.1")
def test_large_bodies_leave_room_for_small_ones() -> None:
    budget = BodyBudget(8 * MAX_LINE_BYTES)
    while budget.take(MAX_LINE_BYTES):
        pass
    assert [budget.take(64 * 1024) for _ in range(16)] == [True] * 16


@pytest.mark.behaviour("4.13")
@pytest.mark.parametrize(("busy", "more"), [([], True), ([7, 8, 9], True), ([1, 2], False), ([1, 2, 3], False)])
def test_what_has_been_taken_already_is_no_part_of_a_page(busy: list[int], *, more: bool) -> None:
    line = PageRequest(1, 1, None, capacity=2, busy=busy)
    page = page_of([row(number, FRESH) for number in (1, 2, 3)], line, BodyBudget(PLENTY))
    assert ([one.id for one in page.taken], page.more) == ([one for one in (1, 2, 3) if one not in busy][:2], more)
    assert line.rows == 2 + len(busy)


@pytest.mark.behaviour("4.11", "4.13")
def test_what_a_strand_has_taken_is_not_taken_by_another_though_it_is_not_marked_yet() -> None:
    waiting = [row(5, HEAD), row(1, FRESH), row(2, FRESH), row(11, ASIDE), row(12, ASIDE)]
    line = PageRequest(1, 1, head_id=5, capacity=500, busy=[5, 1, 12])
    assert [one.id for one in page_of(waiting, line, BodyBudget(PLENTY)).taken] == [2, 11]
