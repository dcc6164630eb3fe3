"""The origin of a request behind proxies, and the upload quota."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator

import pytest

from broker_project.core.fair_share import FairShare
from broker_project.server.uploads import NO_ROOM, Upload
from broker_project.server.wsgi_environ import MAX_HOPS, address_of, origin_of

PROXIES = tuple(ipaddress.ip_network(one) for one in ("10.0.0.5", "10.1.0.0/16", "fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
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
def test_right_most_address_that_is_not_a_trusted_proxy_counts(peer: str, forwarded_for: str, address: str) -> None:
    assert origin_of(peer, "http", forwarded_for, "", PROXIES).address == address


@pytest.mark.parametrize(
    ("peer", "forwarded_proto", "scheme"),
    [
        ("198.51.100.7:40000", "https", "http"),
        ("10.0.0.5:40000", "https", "https"),
        ("10.0.0.5:40000", "HTTPS", "https"),
        ("10.0.0.5:40000", "https, http", "http"),
        ("10.0.0.5:40000", "", "http"),
        ("10.0.0.5:40000", "gopher", "http"),
    ],
)
def test_only_trusted_proxies_set_the_scheme(peer: str, forwarded_proto: str, scheme: str) -> None:
    assert origin_of(peer, "http", "", forwarded_proto, PROXIES).scheme == scheme


def test_forwarded_headers_are_ignored_without_trusted_proxies() -> None:
    assert origin_of("10.0.0.5:1", "http", "203.0.113.9", "https", ()) == ("10.0.0.5", "http")


@pytest.mark.parametrize("text", ["", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "::g", "1.2.3.4, 5"])
def test_text_without_an_address_gives_none(text: str) -> None:
    assert address_of(text) is None


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


def received(quota: FairShare, body: bytes) -> Upload:
    upload = Upload({"transfer-encoding": "chunked"}, quota, "one")
    asyncio.run(upload.receive(chunks(body)))
    return upload


def test_a_refused_or_released_body_takes_nothing_of_the_quota() -> None:
    quota = FairShare(10, 6)
    kept, refused = received(quota, b"1234"), received(quota, b"123")
    assert (kept.body, kept.refusal, refused.body, refused.refusal) == (b"1234", None, b"", NO_ROOM)
    for upload in (kept, refused) * 2:
        upload.release()
    assert [quota.take(caller, size) for caller, size in (("one", 6), ("one", 1), ("other", 4))] == [True, False, True]
