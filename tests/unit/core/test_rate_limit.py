"""Rate limits: a burst, then an even pace, and which callers are counted together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.fair_share import FairShare
from broker_project.core.rate_limit import (
    MAX_CALLERS,
    MINUTE,
    SECOND,
    Rate,
    RateLimiter,
    RecentTokens,
    Spent,
    client_prefix,
    look,
    spend,
)

LIMITS = st.integers(1, 10_000_000)
NOW = 7 * SECOND


def spent_all(limit: int, now: int = NOW) -> Spent:
    """Return what is spent after as many requests as the limit allows at once."""
    return Spent(limit * MINUTE, now)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 19, 20, 60, 601])
def test_limit_allows_exactly_that_many_at_once(limit: int) -> None:
    spent, allowed = Spent(), 0
    for _ in range(limit + 5):
        spent, rate = spend(spent, limit, NOW)
        allowed += not rate.wait
    assert allowed == limit
    assert spent == spent_all(limit)


def test_each_request_reports_what_is_left() -> None:
    spent, first = spend(Spent(), 2, NOW)
    spent, second = spend(spent, 2, NOW)
    _, third = spend(spent, 2, NOW)
    assert [first, second, third] == [Rate(2, 1, 30, 0), Rate(2, 0, 60, 0), Rate(2, 0, 60, 30)]


@given(LIMITS, st.integers(0, 10**12))
def test_wait_ends_when_the_next_request_is_allowed(limit: int, now: int) -> None:
    _, refused = spend(spent_all(limit, now), limit, now)
    assert 1 <= refused.wait <= 60
    assert look(spent_all(limit, now), limit, now + refused.wait * SECOND).wait == 0
    assert look(spent_all(limit, now), limit, now + (refused.wait - 1) * SECOND).wait > 0


@given(LIMITS, st.integers(0, 10**12))
def test_full_limit_is_back_after_a_minute(limit: int, now: int) -> None:
    assert look(spent_all(limit, now), limit, now + MINUTE) == Rate(limit, limit, 0, 0)


@given(st.integers(1, 1000), st.lists(st.integers(0, 3 * SECOND), max_size=200))
def test_burst_and_refill_bound_all_requests(limit: int, pauses: list[int]) -> None:
    spent, now, allowed = Spent(), 0, 0
    for pause in pauses:
        now += pause
        spent, rate = spend(spent, limit, now)
        allowed += not rate.wait
    assert allowed <= limit + now * limit // MINUTE


@given(LIMITS, LIMITS)
def test_changed_limit_applies_at_once(before: int, after: int) -> None:
    lowered = look(spent_all(before), after, NOW)
    assert lowered.wait <= 60
    assert lowered.left == max(0, after - before)


def test_clock_going_back_costs_nothing() -> None:
    spent, _ = spend(Spent(), 5, NOW)
    assert look(spent, 5, NOW - SECOND).left == 4


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("", "", True),
        ("unix", "", False),
    ],
)
def test_clients_of_one_ipv6_network_are_counted_together(one: str, other: str, *, together: bool) -> None:
    assert (client_prefix(one) == client_prefix(other)) == together


def test_oldest_caller_is_forgotten_first() -> None:
    limiter = RateLimiter()
    for name in range(MAX_CALLERS + 1):
        assert limiter.spend(name, 1, 0).wait == 0
    assert limiter.look(0, 1, 0).wait == 0
    assert [limiter.look(name, 1, 0).wait for name in range(1, MAX_CALLERS + 1)] == [60] * MAX_CALLERS


def test_returning_token_is_not_forgotten() -> None:
    tokens = RecentTokens()
    for name in range(MAX_CALLERS):
        tokens.add(name)
    tokens.add(0)
    tokens.add("new")
    assert 0 in tokens
    assert 1 not in tokens
    assert "new" in tokens


@pytest.mark.behaviour("11.1")
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


@pytest.mark.behaviour("11.1")
def test_what_is_given_back_can_be_taken_by_others() -> None:
    shared = FairShare(4, 3)
    assert [shared.take("one", 3), shared.take("one"), shared.take("other", 2)] == [True, False, False]
    shared.give_back("one", 2)
    assert [shared.take("other", 2), shared.take("other")] == [True, True]
