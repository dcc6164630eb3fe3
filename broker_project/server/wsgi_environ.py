"""Build the WSGI environment of a request: header variables, and the client's address behind trusted proxies.

`X-Forwarded-For` and `X-Forwarded-Proto` are read here and nowhere else. Without a trusted proxy they are ignored.
"""

import io
import ipaddress
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django.conf import settings

from broker_project.core.egress import Address, Network

MAX_ADDRESSES: Final = 1024
"""That are remembered, since parsing one takes as long as all the rest."""
MAX_HOPS: Final = 20
"""Proxies behind each other that are looked at."""

FILTER_STRING: Final = "filter_string"
"""The only header with an underscore in its name that is passed on."""
AMBIGUOUS: Final = "broker.ambiguous_headers"
"""The WSGI variables for which two header names with different values were sent."""


class Origin(NamedTuple):
    """The client's address, empty if unknown, and the scheme, `http` or `https`, of a request behind proxies."""

    address: str
    scheme: str


def environ_of(scope: Any, headers: Iterable[tuple[str, str]], body: bytes) -> dict[str, Any]:
    """Return the WSGI variables of a request whose body has been read."""
    server_name, _, server_port = scope.server.rpartition(":")
    # These exact names: a proxy does not overwrite the spelling with underscores.
    forwarded_for, proto = (",".join(scope.headers.get_all(f"x-forwarded-{name}")) for name in ("for", "proto"))
    origin = origin_of(scope.client, scope.scheme, forwarded_for, proto, settings.PROXIES)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "SERVER_NAME": server_name,
        "SERVER_PORT": server_port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "REMOTE_ADDR": origin.address,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": origin.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        AMBIGUOUS: set(),
    }
    _add_headers(environ, headers)
    environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE", "")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    environ["CONTENT_LENGTH"] = str(len(body))
    return environ


def _add_headers(environ: dict[str, Any], headers: Iterable[tuple[str, str]]) -> None:
    """Join headers that were sent twice; note where two names with different values share a variable.

    Names with underscores are dropped, as most proxies do, because WSGI cannot tell them from names with hyphens.
    """
    sent_as: dict[str, str] = {}
    for name, value in headers:
        if "_" in name and name != FILTER_STRING:
            continue
        variable = "HTTP_" + name.upper().replace("-", "_")
        if sent_as.setdefault(variable, name) == name:
            joint = "; " if name == "cookie" else ","
            environ[variable] = f"{environ[variable]}{joint}{value}" if variable in environ else value
        elif environ[variable] != value:
            environ[AMBIGUOUS].add(variable)


def origin_of(peer: str, scheme: str, forwarded_for: str, forwarded_proto: str, proxies: Sequence[Network]) -> Origin:
    """Return the origin of a request from `peer`.

    Each proxy appends the address it was called from, so the right-most address that is not a trusted proxy counts.
    Addresses to the left of it can have been written by anyone.
    """
    client = address_of(peer)
    if client is None or not _is_in(proxies, client):
        return Origin(str(client or ""), scheme)
    for text in reversed(forwarded_for.split(",")[-MAX_HOPS:]):
        caller = address_of(text)
        if caller is None:
            break
        client = caller
        if not _is_in(proxies, client):
            break
    proto = forwarded_proto.rpartition(",")[2].strip().lower()
    return Origin(str(client), proto if proto in ("http", "https") else scheme)


def address_of(text: str) -> Address | None:
    """Return the address in `address`, `address:port` or `[address]:port`; None if there is none."""
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        return _parsed(bare)
    except ValueError:
        return None


@lru_cache(MAX_ADDRESSES)
def _parsed(text: str) -> Address:
    address = ipaddress.ip_address(text)
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def _is_in(networks: Sequence[Network], address: Address) -> bool:
    return any(address in network for network in networks)
