"""What a line takes from the waiting deliveries, and sends next."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.limits import MAX_LINE_BYTES, MAX_PAGE_DELIVERIES, MAX_PROCESS_BYTES
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import (
    DEFERRED,
    FRESH,
    HEAD,
    MIN_KEPT,
    BodyBudget,
    Buffer,
    GroupRow,
    PageRequest,
    RateLimiter,
    Row,
    page_of,
)
from tests.support.factories import DESTINATION, deferred_deliveries, fresh_deliveries, outgoing


def taken_from_buffer(hand: Buffer[Outgoing], *, deferred_next: bool = False) -> list[int]:
    """Take everything as a line does; return the ids."""
    order = []
    while delivery := hand.take(deferred_next=deferred_next):
        order.append(delivery.id)
        deferred_next = not delivery.is_deferred
    return order


@pytest.mark.behaviour("4.6")
@pytest.mark.parametrize(
    ("head", "new", "stuck", "deferred_next", "order"),
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
def test_the_head_goes_first_then_fresh_and_deferred_in_turn(
    head: int | None, new: Sequence[int], stuck: Sequence[int], deferred_next: bool, order: list[int]
) -> None:
    hand = Buffer(
        heads=[outgoing(head)] if head else (), fresh=fresh_deliveries(*new), deferred=deferred_deliveries(*stuck)
    )
    assert taken_from_buffer(hand, deferred_next=deferred_next) == order


@pytest.mark.behaviour("11.1")
@pytest.mark.parametrize(
    ("size", "level", "left_when_low"),
    [(1, 0.4, 0), (2, 0.4, 0), (5, 0.4, 2), (10, 0.4, 4), (499, 0.4, 199), (500, 0.4, 200), (10, 0.0, 0), (10, 0.9, 9)],
)
def test_a_hand_is_low_at_its_share_of_its_page(size: int, level: float, left_when_low: int) -> None:
    hand = Buffer(fresh=fresh_deliveries(*range(size)), more=True)
    hand.refill_level = level
    while not hand.is_low:
        hand.take(deferred_next=False)
    assert len(hand) == left_when_low


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


def row(number: int, part: int, size: int = 10) -> Row:
    return Row(1, part, number, number, 1, 0, None, False, 0, size, None, "", 0, 1)


def taken_from_page(waiting: list[Row], budget: int = MAX_PROCESS_BYTES, **wanted: int | bool) -> list[int]:
    line = PageRequest(**{"line_id": 1, "epoch": 1, "capacity": 500, **wanted})  # type: ignore[arg-type]
    return [one.id for one in page_of(waiting, line, BodyBudget(budget)).taken]


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
    assert taken_from_page([row(number, FRESH, size) for number, size in enumerate(sizes)]) == expected


@pytest.mark.behaviour("4.2")
def test_a_page_holds_as_many_bytes_as_its_line_may() -> None:
    assert taken_from_page([row(number, FRESH, 10) for number in range(5)], max_bytes=30) == [0, 1, 2]


@pytest.mark.behaviour("6.3", "11.1")
@pytest.mark.parametrize(
    ("endpoints", "expected"), [(1, 500), (2, 250), (200, 2), (MAX_PAGE_DELIVERIES, 1), (3 * MAX_PAGE_DELIVERIES, 1)]
)
def test_a_page_of_groups_is_as_long_as_they_have_deliveries_but_always_one(endpoints: int, expected: int) -> None:
    waiting = [GroupRow(1, FRESH, number, number, [1] * endpoints, 10, 0, 0, False, None) for number in range(500)]
    page = page_of(waiting, PageRequest(1, 1, 500), BodyBudget(MAX_PROCESS_BYTES))
    assert (len(page.taken), page.more) == (expected, True)


@pytest.mark.behaviour("4.7", "4.8")
def test_the_head_comes_first_and_once() -> None:
    assert taken_from_page([row(5, HEAD), row(1, FRESH), row(5, FRESH), row(9, DEFERRED)]) == [5, 1, 9]


@pytest.mark.behaviour("11.1")
def test_large_bodies_leave_room_for_small_ones() -> None:
    budget = BodyBudget(8 * MAX_LINE_BYTES)
    while budget.take(MAX_LINE_BYTES):
        pass
    assert [budget.take(64 * 1024) for _ in range(16)] == [True] * 16


@pytest.mark.behaviour("4.13")
@pytest.mark.parametrize(("busy", "more"), [([], True), ([7, 8, 9], True), ([1, 2], False), ([1, 2, 3], False)])
def test_a_page_leaves_out_busy_deliveries(busy: list[int], *, more: bool) -> None:
    line = PageRequest(1, 1, capacity=2, busy=busy)
    page = page_of([row(number, FRESH) for number in (1, 2, 3)], line, BodyBudget(MAX_PROCESS_BYTES))
    assert ([one.id for one in page.taken], page.more) == ([one for one in (1, 2, 3) if one not in busy][:2], more)


@pytest.mark.behaviour("4.11", "4.13")
def test_slots_do_not_take_unmarked_deliveries_of_others() -> None:
    waiting = [row(5, HEAD), row(1, FRESH), row(2, FRESH), row(11, DEFERRED), row(12, DEFERRED)]
    line = PageRequest(1, 1, heads=[5], capacity=500, busy=[5, 1, 12])
    assert [one.id for one in page_of(waiting, line, BodyBudget(MAX_PROCESS_BYTES)).taken] == [2, 11]


@pytest.mark.behaviour("1.4")
def test_a_process_remembers_of_any_number_of_subscriptions_only_whose_time_has_not_come() -> None:
    rate_limiter, late = RateLimiter(), replace(DESTINATION, spacing=1.0)
    rate_limiter.learn(late, 90_000.0, 0.0)
    for number in range(2, 20_000):
        rate_limiter.learn(replace(late, subscription_id=number), 1.0, float(number))
    assert len(rate_limiter) <= MIN_KEPT
    assert rate_limiter.wait(late, 20_000.0) == 70_000.0
