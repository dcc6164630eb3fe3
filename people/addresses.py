"""Who counts as one: an IPv4 address, or the network of 2^64 IPv6 addresses that a single connection has."""

import ipaddress
from typing import Final

from django.http import HttpRequest

OF_ONE_CONNECTION: Final = 64
"""Bits of an IPv6 address that providers hand out; the others its owner changes as they like."""


def address_of(request: HttpRequest) -> str | None:
    """Return the address that tries of a request count for; None if it has none."""
    return counted_as(request.META.get("REMOTE_ADDR", ""))


def counted_as(address: str) -> str | None:
    """Return the address that stands for all its owner has; None for what is none."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(known, ipaddress.IPv4Address):
        return str(known)
    return str(ipaddress.ip_network((known, OF_ONE_CONNECTION), strict=False).network_address)
