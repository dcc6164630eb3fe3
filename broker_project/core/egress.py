"""Which addresses the broker may connect to: hosts in URLs, special networks, and the policy for requests."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

MAX_CHARACTERS: Final = 253
MAX_PORT: Final = 65_535

_AUTHORITY: Final = re.compile(r"(?:\[(?P<ip>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::(?P<port>.*))?")
_NAME: Final = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.?", re.I)
_NUMERIC: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?", re.IGNORECASE)
"""Names whose last label is a number. Some programs read them as addresses, and no host has such a name."""
_PORT: Final = re.compile(r"[0-9]{1,5}")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

RESERVED: Final = "reserved"
METADATA: Final = "cloud metadata"
"""Addresses of cloud metadata services, which give out credentials of the machine."""

MAPPED: Final = IPv6Network("::ffff:0:0/96")
TRANSLATED: Final = IPv6Network("::ffff:0:0:0/96")
COMPATIBLE: Final = IPv6Network("::/96")
NAT64: Final = IPv6Network("64:ff9b::/96")
LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_NOT_COMPATIBLE: Final = IPv6Network("::/127")
"""`::` and `::1`, which look like IPv4-compatible addresses and are not."""

NOT_ALLOWED: Final = "Address not allowed"
"""Beginning of the reason with which a request was not sent."""
UNREADABLE: Final = "not an IP address"
CACHED_ADDRESSES: Final = 16_384
"""Addresses whose verdicts are cached, so that a check costs one lookup."""


class InvalidHost(Exception):
    """A URL has no valid host or port; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Host:
    """The host of a URL."""

    name: str
    """Without brackets."""
    address: Address | None
    """The address if the host is one, or is `localhost`; None: DNS resolves it."""


def host_in(authority: str) -> Host:
    """Return the host of a URL's authority, `host[:port]` without the login; raise `InvalidHost` if it is invalid."""
    found = _AUTHORITY.fullmatch(authority)
    if not found:
        raise InvalidHost("Write the host as a name, as 192.0.2.1 or as [2001:db8::1], and ':' before a port.")
    port, address = found["port"], found["ip"]
    if port is not None and not (_PORT.fullmatch(port) and 1 <= int(port) <= MAX_PORT):
        raise InvalidHost(f"Give a port from 1 to {MAX_PORT} after the host's ':', or leave both out.")
    if address is None:
        return _named_host(found["name"])
    if "%" in address:
        raise InvalidHost("Remove the zone from the IPv6 address: addresses with a zone belong to one machine.")
    try:
        return Host(address, IPv6Address(address))
    except ValueError:
        raise InvalidHost("The text in brackets is not an IPv6 address.") from None


def _named_host(text: str) -> Host:
    if _NUMERIC.fullmatch(text):
        try:
            return Host(text, IPv4Address(text))
        except ValueError:
            raise InvalidHost(
                "Write an IPv4 address as four decimal numbers without leading zeros, 192.0.2.1."
            ) from None
    if len(text) > MAX_CHARACTERS or not _NAME.fullmatch(text):
        raise InvalidHost(
            "Use a host name of letters, digits, hyphens and single dots, with at most 63 characters between dots; "
            "write names in other scripts in their ASCII form, xn--…."
        )
    is_here = text.lower().rstrip(".").rpartition(".")[2] == "localhost"
    return Host(text, IPv4Address("127.0.0.1") if is_here else None)


_SPECIAL: Final = (
    (METADATA, "169.254.169.254"),  # AWS, Azure, Google, Oracle, DigitalOcean, OpenStack and others
    (METADATA, "169.254.169.253 169.254.169.123"),  # the resolver and the clock of AWS
    (METADATA, "169.254.170.2 169.254.170.23 fd00:ec2::23"),  # credentials of containers on AWS
    (METADATA, "fd00:ec2::253 fd00:ec2::254"),  # AWS
    (METADATA, "169.254.0.23"),  # Tencent
    (METADATA, "169.254.42.42 fd00:42::42"),  # Scaleway
    (METADATA, "100.100.100.200"),  # Alibaba
    (METADATA, "168.63.129.16"),  # Azure, on an address that looks public
    (METADATA, "192.0.0.192 fd00:c1::a9fe:a9fe"),  # Oracle
    (METADATA, "fd20:ce::254 fe80::a9fe:a9fe"),  # Google and others
    ("this host", "0.0.0.0/8 ::"),
    ("private network", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7"),
    ("carrier-grade NAT", "100.64.0.0/10"),
    ("loopback", "127.0.0.0/8 ::1"),
    ("link-local", "169.254.0.0/16 fe80::/10"),
    ("documentation", "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20"),
    (RESERVED, "192.0.0.0/24 240.0.0.0/4 2001::/23 3ffe::/16"),
    (RESERVED, "192.31.196.0/24 192.175.48.0/24 2620:4f:8000::/48"),  # AS112
    (RESERVED, "192.52.193.0/24"),  # AMT
    (RESERVED, "::/3 4000::/2 8000::/1"),  # everything outside 2000::/3, the only range that is assigned
    ("6to4 relay", "192.88.99.0/24"),
    ("benchmark", "198.18.0.0/15 2001:2::/48"),
    ("multicast", "224.0.0.0/4 ff00::/8"),
    ("broadcast", "255.255.255.255"),
    ("IPv4-mapped", str(MAPPED)),
    ("IPv4-translated", str(TRANSLATED)),
    ("IPv4-compatible", str(COMPATIBLE)),
    ("NAT64", f"{NAT64} {LOCAL_NAT64}"),
    ("discard-only", "100::/64"),
    ("Teredo", "2001::/32"),
    ("ORCHID", "2001:10::/28 2001:20::/28"),
    ("6to4", str(SIX_TO_FOUR)),
    ("site-local", "fec0::/10"),
)
"""Networks of each kind."""

REFUSED: Final[tuple[tuple[Network, str], ...]] = tuple(
    sorted(
        ((ip_network(text), kind) for kind, networks in _SPECIAL for text in networks.split()),
        key=lambda network: -network[0].prefixlen,
    )
)
"""The narrowest network that contains an address names its kind; it comes first."""


def kind_of(address: Address) -> str:
    """Return why an address cannot be an endpoint on the internet; empty if it can."""
    return next((kind for network, kind in REFUSED if address in network), "")


def embedded_in(address: Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses to which packets for an IPv6 address may be forwarded.

    Of local NAT64 prefixes only the 96-bit form is known. For other forms the result is an address that is refused.
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
    """Return the networks of a list such as `10.1.0.0/16, ::1`; raise `ValueError` for bits behind a prefix too."""
    return tuple(ip_network(entry.strip()) for entry in text.split(",") if entry.strip())


class EgressPolicy:
    """Which addresses requests may be sent to; safe to use from several threads."""

    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        self._allowed = tuple(allowed)
        self.refusal = lru_cache(CACHED_ADDRESSES)(self._refusal)
        """Returns the reason why an address is refused; empty if it is allowed."""

    def _refusal(self, text: str) -> str:
        try:
            address = ip_address(text)
        except ValueError:
            return UNREADABLE
        reached = (address, *embedded_in(address))
        return next((kind for each in reached if (kind := kind_of(each)) and not self._allows(each, kind)), "")

    def _allows(self, address: Address, kind: str) -> bool:
        """Tell whether a setting allows the address. A metadata service must be allowed by its exact address."""
        is_metadata = kind == METADATA
        return any(address in network and (not is_metadata or network.num_addresses == 1) for network in self._allowed)
