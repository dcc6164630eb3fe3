"""Where a request comes from: what proxies say of it counts only if they are ours.

`X-Forwarded-For` and `X-Forwarded-Proto` are read once, where a request comes in; everything behind asks the address
and the scheme that the request has then. From anybody else they are words like any other header.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_HOPS: Final = 20
"""Nobody has so many proxies, one behind the other."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks, and how: their address, empty if it is not known, and `http` or `https`."""

    address: str
    scheme: str


def origin_of(peer: str, scheme: str, said_for: str, said_scheme: str, proxies: Sequence[Network]) -> Origin:
    """Return where a request over a connection of `peer` comes from, given what it says itself.

    Of several addresses the last one counts that is not a proxy's own: each proxy adds at the end whom it heard.
    """
    nearest = address_of(peer)
    if nearest is None or not _is_one_of(proxies, nearest):
        return Origin(str(nearest or ""), scheme)
    said = said_scheme.rpartition(",")[2].strip().lower()
    return Origin(str(_first_stranger(nearest, said_for, proxies)), said if said in ("http", "https") else scheme)


def address_of(text: str) -> Address | None:
    """Return an address, out of `address`, `address:port` or `[address]:port`; None if it is none."""
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def _first_stranger(nearest: Address, said_for: str, proxies: Sequence[Network]) -> Address:
    """Return the address nearest to us that is no proxy's; what comes before it anybody can have written."""
    here = nearest
    for text in reversed(said_for.split(",")[-MAX_HOPS:]):
        further = address_of(text)
        if further is None:
            return here
        here = further
        if not _is_one_of(proxies, here):
            return here
    return here


def _is_one_of(networks: Sequence[Network], address: Address) -> bool:
    return any(address in network for network in networks)
