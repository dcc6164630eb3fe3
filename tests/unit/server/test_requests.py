"""Where a request comes from, and how much room uploads have."""

import ipaddress

import pytest

from broker_project.server.proxies import MAX_HOPS, Origin, address_of, origin_of
from broker_project.server.uploads import Claim, Room

PROXIES = tuple(ipaddress.ip_network(one) for one in ("10.0.0.5", "10.1.0.0/16", "fd00::/8"))

MOST, MAX_EACH = 10, 6


@pytest.mark.parametrize(
    ("peer", "said_for", "address"),
    [
        ("198.51.100.7:40000", "", "198.51.100.7"),
        ("198.51.100.7:40000", "203.0.113.9", "198.51.100.7"),
        ("10.0.0.5:40000", "", "10.0.0.5"),
        ("10.0.0.5:40000", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.5:40000", "203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("10.0.0.5:40000", "1.1.1.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("10.0.0.5:40000", "10.1.9.9,10.1.2.3", "10.1.9.9"),
        ("10.0.0.5:40000", "203.0.113.9, unknown", "10.0.0.5"),
        ("10.0.0.5:40000", "203.0.113.9, unknown, 10.1.2.3", "10.1.2.3"),
        ("10.0.0.5:40000", "203.0.113.9:5000", "203.0.113.9"),
        ("10.0.0.5:40000", "[2001:db8::9]:5000", "2001:db8::9"),
        ("10.0.0.5:40000", "::ffff:203.0.113.9", "203.0.113.9"),
        ("[::ffff:10.0.0.5]:40000", "203.0.113.9", "203.0.113.9"),
        ("[fd00::1]:40000", "2001:db8::9", "2001:db8::9"),
        ("10.0.0.5:40000", "203.0.113.9" + ",10.1.2.3" * MAX_HOPS, "10.1.2.3"),
        ("", "203.0.113.9", ""),
    ],
)
def test_the_last_address_that_is_no_proxy_of_ours_counts(peer: str, said_for: str, address: str) -> None:
    assert origin_of(peer, "http", said_for, "", PROXIES).address == address


@pytest.mark.parametrize(
    ("peer", "said", "scheme"),
    [
        ("198.51.100.7:40000", "https", "http"),
        ("10.0.0.5:40000", "https", "https"),
        ("10.0.0.5:40000", "HTTPS", "https"),
        ("10.0.0.5:40000", "https, http", "http"),
        ("10.0.0.5:40000", "", "http"),
        ("10.0.0.5:40000", "gopher", "http"),
    ],
)
def test_only_a_proxy_of_ours_says_that_there_was_tls(peer: str, said: str, scheme: str) -> None:
    assert origin_of(peer, "http", "", said, PROXIES).scheme == scheme


def test_without_proxies_nothing_that_is_said_counts() -> None:
    assert origin_of("10.0.0.5:1", "http", "203.0.113.9", "https", ()) == Origin("10.0.0.5", "http")


@pytest.mark.parametrize("text", ["", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "::g", "1.2.3.4, 5"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert address_of(text) is None


@pytest.fixture
def room() -> Room:
    return Room(MOST, MAX_EACH)


def test_one_has_a_share_and_leaves_the_rest_to_others(room: Room) -> None:
    one, same, other = Claim(room, "one"), Claim(room, "one"), Claim(room, "other")
    assert [one.take(4), same.take(2), same.take(1), one.take(1)] == [True, True, False, False]
    assert [other.take(4), other.take(1)] == [True, False]


def test_what_is_given_back_is_there_again_for_everybody(room: Room) -> None:
    one, other = Claim(room, "one"), Claim(room, "other")
    assert [one.take(6), other.take(4)] == [True, True]
    one.release()
    one.release()
    assert [other.take(2), Claim(room, "third").take(4), Claim(room, "one").take(1)] == [True, True, False]


def test_a_claim_that_is_refused_takes_nothing(room: Room) -> None:
    refused = Claim(room, "one")
    assert refused.take(7) is False
    refused.release()
    assert Claim(room, "one").take(6)
