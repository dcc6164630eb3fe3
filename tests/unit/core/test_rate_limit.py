"""Rate limits: a burst, then an even pace, and which callers are counted together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.rate_limit import (
    MINUTE,
    REMEMBERED,
    SECOND,
    Rate,
    RateLimits,
    RecentTokens,
    Spent,
    look,
    site_of,
    spend,
)

LIMITS = st.integers(1, 10_000_000)
NOW = 7 * SECOND


def spent_all(limit: int, now: int = NOW) -> Spent:
    """Return what is spent after as many times at once as the limit allows."""
    return Spent(limit * MINUTE, now)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 19, 20, 60, 601])
def test_a_limit_is_just_that_number(limit: int) -> None:
    spent, allowed = Spent(), 0
    for _ in range(limit + 5):
        spent, rate = spend(spent, limit, NOW)
        allowed += not rate.wait
    assert allowed == limit
    assert spent == spent_all(limit)


def test_what_is_left_is_told_each_time() -> None:
    spent, first = spend(Spent(), 2, NOW)
    spent, second = spend(spent, 2, NOW)
    _, third = spend(spent, 2, NOW)
    assert [first, second, third] == [Rate(2, 1, 30, 0), Rate(2, 0, 60, 0), Rate(2, 0, 60, 30)]


@given(LIMITS, st.integers(0, 10**12))
def test_after_the_wait_it_may_be_done_and_not_a_second_earlier(limit: int, now: int) -> None:
    _, refused = spend(spent_all(limit, now), limit, now)
    assert 1 <= refused.wait <= 60
    assert look(spent_all(limit, now), limit, now + refused.wait * SECOND).wait == 0
    assert look(spent_all(limit, now), limit, now + (refused.wait - 1) * SECOND).wait > 0


@given(LIMITS, st.integers(0, 10**12))
def test_a_minute_brings_all_of_it_back(limit: int, now: int) -> None:
    assert look(spent_all(limit, now), limit, now + MINUTE) == Rate(limit, limit, 0, 0)


@given(st.integers(1, 1000), st.lists(st.integers(0, 3 * SECOND), max_size=200))
def test_no_more_is_allowed_than_the_limit_and_what_has_flown_back(limit: int, pauses: list[int]) -> None:
    spent, now, allowed = Spent(), 0, 0
    for pause in pauses:
        now += pause
        spent, rate = spend(spent, limit, now)
        allowed += not rate.wait
    assert allowed <= limit + now * limit // MINUTE


@given(LIMITS, LIMITS)
def test_a_limit_that_was_lowered_or_raised_counts_at_once(before: int, after: int) -> None:
    lowered = look(spent_all(before), after, NOW)
    assert lowered.wait <= 60
    assert lowered.left == max(0, after - before)


def test_a_clock_that_seems_to_go_back_takes_nothing() -> None:
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
def test_one_place_is_an_address_or_a_network_of_ipv6(one: str, other: str, *, together: bool) -> None:
    assert (site_of(one) == site_of(other)) == together


def test_as_many_are_counted_as_are_remembered() -> None:
    meters = RateLimits()
    for name in range(REMEMBERED + 1):
        assert meters.spend(name, 1, 0).wait == 0
    assert meters.look(0, 1, 0).wait == 0
    assert [meters.look(name, 1, 0).wait for name in range(1, REMEMBERED + 1)] == [60] * REMEMBERED


def test_who_comes_again_is_not_the_first_to_be_forgotten() -> None:
    known = RecentTokens()
    for name in range(REMEMBERED):
        known.add(name)
    known.add(0)
    known.add("new")
    assert 0 in known
    assert 1 not in known
    assert "new" in known
