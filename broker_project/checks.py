"""Checks of `manage.py check --deploy`: settings that are valid and insecure."""

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.core import checks

from broker_project.core.egress import kind_of
from broker_project.environment import MIN_CHARACTERS

LOOPBACK_NAMES: Final = frozenset({"", "localhost"})
"""An empty host means a Unix socket."""
MAX_PROXIES: Final = 2**16
"""Addresses in a network of proxies. A larger network has other machines than proxies."""


check: Final = checks.register(checks.Tags.security, deploy=True)


@check
def secret_keys_are_long(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn of a secret key that is short, or that is one of its own fallbacks."""
    found: list[checks.CheckMessage] = []
    if len(settings.SECRET_KEY) < MIN_CHARACTERS:
        text = (
            f"BROKER_SECRET_KEY has fewer than {MIN_CHARACTERS} characters: anyone who guesses it can sign everything."
        )
        found.append(_warning("W001", text, "Set a random key: openssl rand -base64 48"))
    if settings.SECRET_KEY in settings.SECRET_KEY_FALLBACKS:
        text = "BROKER_SECRET_KEY is also in BROKER_SECRET_KEY_FALLBACKS: it has not been changed."
        found.append(_warning("W002", text, "Set a new key, and keep the former one in the fallbacks."))
    return found


@check
def addresses_are_for_production(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn of callbacks without TLS, and of development mode on a public host."""
    found: list[checks.CheckMessage] = []
    if settings.PUBLIC_URL and urlsplit(settings.PUBLIC_URL).scheme != "https":
        text = "BROKER_PUBLIC_URL is not https: callback URLs contain tokens, which travel unencrypted."
        found.append(
            _warning("W003", text, "Put TLS in front of the broker and set the URL to https:// and the host name.")
        )
    public = sorted({host for host in settings.ALLOWED_HOSTS if not _is_loopback(host)})
    if settings.DEVELOPMENT and public:
        text = f"BROKER_DEVELOPMENT is on for {', '.join(public)}: logins and keys travel unencrypted."
        found.append(_warning("W004", text, "Set it to 0, or allow only 127.0.0.1 and localhost."))
    return found


@check
def proxies_are_few(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn of trusted proxy networks that contain other machines."""
    wide = [str(network) for network in settings.PROXIES if network.num_addresses > MAX_PROXIES]
    text = f"BROKER_PROXIES has {', '.join(wide)}: every machine there can claim any client address."
    return [_warning("W005", text, "Name only the addresses of the proxies.")] if wide else []


@check
def redis_asks_for_a_password(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn of a Redis on another machine without a password."""
    address = urlsplit(settings.REDIS_URL)
    if address.scheme == "unix" or address.password or _is_loopback(address.hostname or ""):
        return []
    text = "REDIS_URL has no password and is on another machine: anyone who reaches it can send tasks to workers."
    return [_warning("W006", text, "Set requirepass or an ACL, and use redis://:password@host:port/0.")]


@check
def endpoints_are_not_our_own_stores(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn if endpoints may be on this machine, or be PostgreSQL or Redis."""
    special = [(name, address) for name, address in _own_servers() if kind_of(ipaddress.ip_address(address))]
    reached = sorted({name for name, address in special if not settings.EGRESS_POLICY.refusal(address)})
    text = (
        f"BROKER_ALLOWED_NETWORKS allows endpoints on {', '.join(reached)}: every subscriber can send requests there."
    )
    hint = "Allow only the networks of your endpoints."
    return [_warning("W007", text, hint)] if reached else []


def _warning(number: str, text: str, hint: str) -> checks.CheckMessage:
    return checks.Warning(text, hint=hint, id=f"broker_project.{number}")


def _is_loopback(host: str) -> bool:
    bare = host.strip("[]").lower()
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(bare).is_loopback
    return bare in LOOPBACK_NAMES


def _own_servers() -> Iterator[tuple[str, str]]:
    """Yield the name and an address, without its zone, of each server of the broker."""
    yield from (("this machine", address) for address in ("127.0.0.1", "::1"))
    stores = {
        "PostgreSQL": settings.DATABASES["default"].get("HOST") or "",
        "Redis": urlsplit(settings.REDIS_URL).hostname or "",
    }
    for name, host in stores.items():
        # A host that begins with a slash is a folder with a Unix socket.
        if host and not unquote(host).startswith("/"):
            with contextlib.suppress(OSError):  # the name does not resolve
                yield from ((name, str(found[4][0]).partition("%")[0]) for found in socket.getaddrinfo(host, None))
