"""To which addresses requests go: a table of networks that are refused, and a setting that allows some of them."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.egress import REFUSED, EgressPolicy, networks_in

PUBLIC = """
    1.1.1.1 8.8.8.8 93.184.215.14 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0 192.0.1.0 198.17.255.255
    198.20.0.0 223.255.255.255 126.255.255.255 128.0.0.0 168.63.129.15 2606:4700:4700::1111 2a00:1450:4001::1
    2001:200::1 2003::1 2620:fe::fe 2620:4f:7fff::1 2620:4f:8001::1
"""

REFUSED_KINDS = {
    "this host": "0.0.0.0 0.1.2.3 ::",
    "private network": "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.1 fc00::1 fdff::1",
    "carrier-grade NAT": "100.64.0.0 100.127.255.255",
    "loopback": "127.0.0.1 127.255.255.254 ::1",
    "link-local": "169.254.0.1 fe80::1 fe80::1%eth0",
    "reserved": """
        192.0.0.8 192.31.196.1 192.52.193.1 192.175.48.1 240.0.0.1 2001:1ff::1 2001:4:112::1 2620:4f:8000::1
        3ffe::1 4000::1 5f00::1 8000::1
    """,
    "documentation": "192.0.2.1 198.51.100.7 203.0.113.7 2001:db8::1 3fff::1",
    "6to4 relay": "192.88.99.1",
    "benchmark": "198.18.0.1 198.19.255.255 2001:2::1",
    "multicast": "224.0.0.1 239.255.255.255 ff02::1",
    "broadcast": "255.255.255.255",
    "cloud metadata": """
        169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254 fd20:ce::254
    """,
    "IPv4-compatible": "::7f00:1 ::8.8.8.8",
    "IPv4-mapped": "::ffff:127.0.0.1 ::ffff:8.8.8.8",
    "IPv4-translated": "::ffff:0:127.0.0.1",
    "NAT64": "64:ff9b::7f00:1 64:ff9b::8.8.8.8 64:ff9b:1::1",
    "discard-only": "100::1",
    "Teredo": "2001::1",
    "ORCHID": "2001:10::1 2001:20::1",
    "6to4": "2002:7f00:1::1 2002:808:808::1",
    "site-local": "fec0::1",
    "not an IP address": "127.1 example.com",
}
"""The addresses of each kind."""

EMBEDDING = "::ffff:0:0/96,::ffff:0:0:0/96,::/96,64:ff9b::/96,64:ff9b:1::/48,2002::/16,2001::/32"


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_address_is_allowed(address: str) -> None:
    assert EgressPolicy().refusal(address) == ""


@pytest.mark.parametrize("kind", REFUSED_KINDS)
def test_special_address_is_refused_with_its_kind(kind: str) -> None:
    addresses = REFUSED_KINDS[kind].split()
    assert {one: EgressPolicy().refusal(one) for one in addresses} == dict.fromkeys(addresses, kind)


def test_no_text_is_refused() -> None:
    assert EgressPolicy().refusal("") == "not an IP address"


@pytest.mark.parametrize("network", [network for network, _ in REFUSED], ids=str)
def test_both_ends_of_each_special_network_are_refused(network: object) -> None:
    ends = ip_network(str(network))
    assert all(EgressPolicy().refusal(str(one)) for one in (ends.network_address, ends.broadcast_address))


@given(st.ip_addresses(v=6))
def test_ipv6_outside_the_assigned_range_is_refused(address: object) -> None:
    if ip_address(str(address)) not in ip_network("2000::/3"):
        assert EgressPolicy().refusal(str(address))


@pytest.mark.parametrize(
    ("allowed", "address"),
    [
        ("127.0.0.0/8", "127.0.0.1"),
        ("10.20.0.0/16", "10.20.255.1"),
        ("::1/128", "::1"),
        ("::1", "::1"),
        ("fd12:3456::/32", "fd12:3456::7"),
        ("169.254.0.0/16", "169.254.1.1"),
        ("169.254.169.254", "169.254.169.254"),
        ("fd00:ec2::254/128", "fd00:ec2::254"),
        ("0.0.0.0/0", "10.0.0.1"),
        (" 10.1.0.0/16 , 127.0.0.1 ,", "127.0.0.1"),
    ],
)
def test_allowed_network_is_not_refused(allowed: str, address: str) -> None:
    assert EgressPolicy().refusal(address)
    assert EgressPolicy(networks_in(allowed)).refusal(address) == ""


@pytest.mark.parametrize(
    ("allowed", "address"),
    [
        ("127.0.0.0/8", "::1"),
        ("127.0.0.0/8", "::ffff:127.0.0.1"),
        ("127.0.0.0/8", "64:ff9b::7f00:1"),
        ("10.20.0.0/16", "10.21.0.1"),
        ("169.254.0.0/16", "169.254.169.254"),
        ("0.0.0.0/0", "169.254.169.254"),
        ("0.0.0.0/0", "168.63.129.16"),
        ("fc00::/7", "fd00:ec2::254"),
    ],
)
def test_allowed_network_does_not_allow_others_or_metadata(allowed: str, address: str) -> None:
    assert EgressPolicy(networks_in(allowed)).refusal(address)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("::ffff:10.0.0.1", "private network"),
        ("::ffff:0:10.0.0.1", "private network"),
        ("::10.0.0.1", "private network"),
        ("64:ff9b::a00:1", "private network"),
        ("64:ff9b::a9fe:a9fe", "cloud metadata"),
        ("64:ff9b:1::a00:1", "private network"),
        ("2002:a00:1::1", "private network"),
        ("2001:0:a00:1::f7f7:f7f7", "private network"),
        ("2001:0:808:808::f5ff:fffe", "private network"),
        ("::ffff:8.8.8.8", ""),
        ("64:ff9b::808:808", ""),
        ("64:ff9b:1::808:808", ""),
        ("2002:808:808::1", ""),
        ("2001:0:808:808::f7f7:f7f7", ""),
    ],
)
def test_embedded_ipv4_address_is_checked(address: str, kind: str) -> None:
    assert EgressPolicy(networks_in(EMBEDDING)).refusal(address) == kind


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "localhost", "127.0.0.0/8;::1", "fe80::1%eth0/64"])
def test_invalid_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=text.split("/", maxsplit=1)[0]):
        networks_in(text)
