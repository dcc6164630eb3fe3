"""How a sender's strands are shared out among endpoints: `delivery.worker.buffer`, and the order in a group."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from delivery.worker.buffer import HANGING_SECONDS, FairShare
from delivery.worker.queue import Endpoint, GroupInHand
from tests.hands import CONTENT, DESTINATION


def crowds(strands: int, waiting: Mapping[int, int]) -> FairShare:
    """Return so many strands, of which so many have waited for each subscription since 10 s."""
    made = FairShare(strands)
    for subscription_id, count in waiting.items():
        for _ in range(count):
            made.join(subscription_id, 10.0)
    return made


@pytest.mark.behaviour("6.4")
@pytest.mark.parametrize(
    ("waiting", "first_id", "order"),
    [
        ({}, None, [3, 2, 1]),
        ({3: 4}, None, [3, 2, 1]),
        ({3: 5}, None, [2, 1, 3]),
        ({3: 5, 2: 6}, None, [1, 3, 2]),
        ({3: 8, 2: 5, 1: 5}, None, [2, 1, 3]),
        ({3: 5, 2: 5, 1: 5}, None, [3, 2, 1]),
        ({3: 5}, 1, [1, 2, 3]),
        ({3: 5, 1: 5}, 3, [3, 2, 1]),
        ({3: 5}, 99, [2, 1, 3]),
    ],
)
def test_endpoints_go_as_shuffled_but_those_last_that_have_their_share_of_the_strands(
    waiting: Mapping[int, int], first_id: int | None, order: Sequence[int]
) -> None:
    endpoints = [Endpoint(one, replace(DESTINATION, subscription_id=one)) for one in (1, 2, 3)]
    group = GroupInHand(7, CONTENT, endpoints, first_id, 0, uncertain=False, cycles=0, size=2, is_aside=False)
    found = group.in_turn(lambda listed: listed.reverse(), crowds(16, waiting))
    assert [one.delivery_id for one in found] == order
    assert [one.delivery_id for one in endpoints] == [1, 2, 3]


@pytest.mark.behaviour("6.4", "6.6")
@pytest.mark.parametrize("strands", [1, 2, 3, 16, 100])
@pytest.mark.parametrize("endpoints", [2, 3, 5, 16])
def test_where_all_but_one_hang_a_strand_is_left_for_that_one(strands: int, endpoints: int) -> None:
    waiting = FairShare(strands)
    for one in range(1, endpoints):
        while not waiting.place(one, endpoints):
            waiting.join(one, 0.0)
    assert waiting.place(endpoints, endpoints) == 0
    taken = (endpoints - 1) * max(1, strands // endpoints)
    assert taken < strands or endpoints > strands


@pytest.mark.behaviour("6.6")
@pytest.mark.parametrize(
    ("strands", "waiting", "full"),
    [
        (16, 7, False),
        (16, 8, True),
        (16, 9, True),
        (3, 1, False),
        (3, 2, True),
        (2, 1, True),
        (1, 0, False),
        (1, 1, True),
    ],
)
def test_half_of_the_strands_wait_for_one_that_has_not_answered_and_no_more(
    strands: int, waiting: int, full: bool
) -> None:
    assert crowds(strands, {1: waiting}).are_full(1) is full
    assert not crowds(strands, {1: waiting}).are_full(2)


@pytest.mark.behaviour("6.6")
@pytest.mark.parametrize(("answered", "full"), [(True, False), (False, True)])
def test_all_may_wait_for_one_that_has_answered_since_the_first_of_them_began(answered: bool, full: bool) -> None:
    waiting = crowds(4, {1: 2})
    waiting.join(1, 11.0)
    waiting.leave(1, 10.0, 12.0, answered=answered)
    assert waiting.are_full(1) is full
    waiting.leave(1, 10.0, 12.1, answered=False)
    for _ in range(2):
        waiting.join(1, 13.0)
    waiting.leave(1, 11.0, 14.0, answered=False)
    assert waiting.are_full(1), "none of those that wait began before its last answer"


@pytest.mark.behaviour("6.6")
def test_it_hangs_once_half_of_them_have_waited_for_a_second() -> None:
    waiting = crowds(4, {1: 2, 2: 1, 3: 0})
    assert waiting.hanging(10.0 + HANGING_SECONDS - 0.01) == {}
    assert waiting.hanging(10.0 + 3 * HANGING_SECONDS) == {1: 3 * HANGING_SECONDS}
    waiting.leave(1, 10.0, 13.0, answered=True)
    assert waiting.hanging(20.0) == {}
