"""The host of a URL, as one sees it and as libcurl takes it: a name of DNS, or an IP address in its only spelling.

Programs read a host such as `0x7f.1` as an address, each in a way of its own: what is written so is refused.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from broker_project.core.egress import Address

MOST_CHARACTERS: Final = 253
MOST_PORT: Final = 65_535
LOOPBACK: Final = IPv4Address("127.0.0.1")

_AUTHORITY: Final = re.compile(r"(?:\[(?P<ip>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::(?P<port>.*))?")
_NAME: Final = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.?", re.I)
_NUMERIC: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?", re.IGNORECASE)
"""Whose last label is a number: an address to whoever reads it as one, and to nobody the name of a host."""
_PORT: Final = re.compile(r"[0-9]{1,5}")


class BrokenHost(Exception):
    """No request can be sent there; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Host:
    """Whom a URL names."""

    name: str
    """Without brackets."""
    address: Address | None
    """Of one that is an address itself, or is so on every machine; None: DNS says it."""


def host_in(authority: str) -> Host:
    """Return the host in what stands between `//` and the path of a URL, after the login.

    Raises:
        BrokenHost: there is none, or its port is none.

    """
    found = _AUTHORITY.fullmatch(authority)
    if not found:
        raise BrokenHost("Write the host as a name, as 192.0.2.1 or as [2001:db8::1], and ':' before a port.")
    _check_port(found["port"])
    return _of_brackets(found["ip"]) if found["ip"] is not None else _of_name(found["name"])


def _check_port(port: str | None) -> None:
    if port is not None and not (_PORT.fullmatch(port) and 1 <= int(port) <= MOST_PORT):
        raise BrokenHost(f"Give a port from 1 to {MOST_PORT} after the host's ':', or leave both out.")


def _of_brackets(text: str) -> Host:
    if "%" in text:
        raise BrokenHost("Leave the zone out of the IPv6 address: such an address is this machine's alone.")
    try:
        return Host(text, IPv6Address(text))
    except ValueError:
        raise BrokenHost("What stands in brackets is no IPv6 address.") from None


def _of_name(text: str) -> Host:
    if _NUMERIC.fullmatch(text):
        return Host(text, _plain_address(text))
    if len(text) > MOST_CHARACTERS or not _NAME.fullmatch(text):
        raise BrokenHost(
            "Give a host name of letters, digits, hyphens and single dots, at most 63 characters between two dots; "
            "one in another script in its ASCII form, xn--…."
        )
    is_here = text.lower().rstrip(".").rpartition(".")[2] == "localhost"
    return Host(text, LOOPBACK if is_here else None)


def _plain_address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise BrokenHost("Write an IPv4 address as four decimal numbers without leading zeros, 192.0.2.1.") from None
