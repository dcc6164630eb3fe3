"""Who is counted together, and how many are remembered."""

import pytest

from broker_project.core.rate_limit import REMEMBERED, RateLimits, RecentTokens, site_of


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
