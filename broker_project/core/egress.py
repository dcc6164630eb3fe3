"""The networks that are nobody's endpoint on the internet, each with what it is called.

A table of our own: `ipaddress.is_global` counts several of them as public in the Python we run on. Sources: IANA's
special-purpose registries for IPv4 and IPv6, and what providers of clouds document.
"""

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PRIVATE: Final = "private network"
RESERVED: Final = "reserved"
DOCUMENTATION: Final = "documentation"
BENCHMARK: Final = "benchmark"
MULTICAST: Final = "multicast"
LINK_LOCAL: Final = "link-local"
LOOPBACK: Final = "loopback"
METADATA: Final = "cloud metadata"
"""Where the credentials of a machine in a cloud are had for the asking."""

MAPPED: Final = IPv6Network("::ffff:0:0/96")
TRANSLATED: Final = IPv6Network("::ffff:0:0:0/96")
COMPATIBLE: Final = IPv6Network("::/96")
NAT64: Final = IPv6Network("64:ff9b::/96")
LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
TEREDO: Final = IPv6Network("2001::/32")
SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_NOT_COMPATIBLE: Final = IPv6Network("::/127")
"""The two that look like IPv4-compatible ones and are not: `::` and `::1`."""

_NAMED: Final[Mapping[str, str]] = {
    # What is narrower stands first: it says more.
    "169.254.169.254": METADATA,  # AWS, Azure, Google, Oracle, DigitalOcean, OpenStack and others
    "169.254.169.253": METADATA,  # the resolver of AWS
    "169.254.169.123": METADATA,  # the clock of AWS
    "169.254.170.2": METADATA,  # credentials of containers on AWS
    "169.254.170.23": METADATA,
    "169.254.0.23": METADATA,  # Tencent
    "169.254.42.42": METADATA,  # Scaleway
    "100.100.100.200": METADATA,  # Alibaba
    "168.63.129.16": METADATA,  # Azure's own, on an address that looks public
    "192.0.0.192": METADATA,  # Oracle
    "fd00:ec2::23": METADATA,
    "fd00:ec2::253": METADATA,
    "fd00:ec2::254": METADATA,
    "fd00:c1::a9fe:a9fe": METADATA,
    "fd20:ce::254": METADATA,  # Google
    "fd00:42::42": METADATA,
    "fe80::a9fe:a9fe": METADATA,
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": PRIVATE,
    "100.64.0.0/10": "carrier-grade NAT",
    "127.0.0.0/8": LOOPBACK,
    "169.254.0.0/16": LINK_LOCAL,
    "172.16.0.0/12": PRIVATE,
    "192.0.2.0/24": DOCUMENTATION,
    "192.0.0.0/24": RESERVED,
    "192.31.196.0/24": RESERVED,  # AS112
    "192.52.193.0/24": RESERVED,  # AMT
    "192.88.99.0/24": "6to4 relay",
    "192.168.0.0/16": PRIVATE,
    "192.175.48.0/24": RESERVED,  # AS112
    "198.18.0.0/15": BENCHMARK,
    "198.51.100.0/24": DOCUMENTATION,
    "203.0.113.0/24": DOCUMENTATION,
    "224.0.0.0/4": MULTICAST,
    "255.255.255.255": "broadcast",
    "240.0.0.0/4": RESERVED,
    "::": "this host",
    "::1": LOOPBACK,
    str(MAPPED): "IPv4-mapped",
    str(TRANSLATED): "IPv4-translated",
    str(COMPATIBLE): "IPv4-compatible",
    str(NAT64): "NAT64",
    str(LOCAL_NAT64): "NAT64",
    "100::/64": "discard-only",
    str(TEREDO): "Teredo",
    "2001:2::/48": BENCHMARK,
    "2001:10::/28": "ORCHID",
    "2001:20::/28": "ORCHID",
    "2001::/23": RESERVED,
    "2001:db8::/32": DOCUMENTATION,
    str(SIX_TO_FOUR): "6to4",
    "2620:4f:8000::/48": RESERVED,  # AS112
    "3ffe::/16": RESERVED,
    "3fff::/20": DOCUMENTATION,
    "fc00::/7": PRIVATE,
    "fe80::/10": LINK_LOCAL,
    "fec0::/10": "site-local",
    "ff00::/8": MULTICAST,
    # The rest of what is not 2000::/3, of which alone addresses are given out.
    "::/3": RESERVED,
    "4000::/2": RESERVED,
    "8000::/1": RESERVED,
}

REFUSED: Final[tuple[tuple[Network, str], ...]] = tuple((ip_network(text), kind) for text, kind in _NAMED.items())
"""In this order: the first that has an address says what that is."""


def kind_of(address: Address) -> str:
    """Return what an address is called that nobody's endpoint on the internet has; empty: it may be one."""
    return next((kind for network, kind in REFUSED if address in network), "")


def embedded_in(address: Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that packets to an IPv6 address may be passed on to.

    Of a NAT64 prefix of one's own the form with 96 bits is known; another one gives what is refused.
    """
    if not isinstance(address, IPv6Address) or address in _NOT_COMPATIBLE:
        return
    if any(address in network for network in (MAPPED, TRANSLATED, COMPATIBLE, NAT64, LOCAL_NAT64)):
        yield IPv4Address(int(address) & 0xFFFFFFFF)
    elif address in SIX_TO_FOUR:
        yield IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    elif address.teredo:
        yield from address.teredo


def networks_in(text: str) -> tuple[Network, ...]:
    """Return the networks in a list separated by commas, such as `10.1.0.0/16, fd12::/16, 127.0.0.1`.

    Raises:
        ValueError: one of them is none, or has bits beyond its prefix; the text names it.

    """
    return tuple(ip_network(one.strip()) for one in text.split(",") if one.strip())
