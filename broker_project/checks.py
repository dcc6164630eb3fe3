"""What `manage.py check --deploy` says about settings that are possible, and open a door."""

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
"""An empty one is that of a socket in the file system."""
MAX_PROXIES: Final = 2**16
"""Addresses in a network of proxies: more is not a network in which there are only proxies."""


def secret_keys_are_long(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn of a key that could be guessed, or that a change of keys has left as it was."""
    found: list[checks.CheckMessage] = []
    if len(settings.SECRET_KEY) < MIN_CHARACTERS:
        text = f"BROKER_SECRET_KEY has fewer than {MIN_CHARACTERS} characters: who guesses it reads and signs all."
        found.append(_warning("W001", text, "Set a random one: openssl rand -base64 48"))
    if settings.SECRET_KEY in settings.SECRET_KEY_FALLBACKS:
        text = "BROKER_SECRET_KEY stands among BROKER_SECRET_KEY_FALLBACKS too: it has not been changed."
        found.append(_warning("W002", text, "Set a new one, and name the former in the fallbacks."))
    return found


def addresses_are_for_production(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn of callbacks without TLS, and of development that others can reach."""
    found: list[checks.CheckMessage] = []
    if settings.PUBLIC_URL and urlsplit(settings.PUBLIC_URL).scheme != "https":
        text = "BROKER_PUBLIC_URL is not https: endpoints send replies, whose addresses are keys, for all to read."
        found.append(_warning("W003", text, "Put TLS in front, and set it to https:// and the host name."))
    public = sorted({host for host in settings.ALLOWED_HOSTS if not _is_loopback(host)})
    if settings.DEVELOPMENT and public:
        text = f"BROKER_DEVELOPMENT is on for {', '.join(public)}: logins and keys travel without TLS."
        found.append(_warning("W004", text, "Set it to 0, or leave other hosts than 127.0.0.1 and localhost out."))
    return found


def proxies_are_few(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn where anybody could say to be somebody else."""
    wide = [str(network) for network in settings.PROXIES if network.num_addresses > MAX_PROXIES]
    text = f"BROKER_PROXIES has {', '.join(wide)}: whoever is there can pass for any address."
    return [_warning("W005", text, "Name the addresses of the proxies alone.")] if wide else []


def redis_asks_for_a_password(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn of a Redis on another machine that takes orders from anybody."""
    address = urlsplit(settings.REDIS_URL)
    if address.scheme == "unix" or address.password or _is_loopback(address.hostname or ""):
        return []
    text = "REDIS_URL has no password, and is another machine: whoever reaches it can give workers tasks."
    return [_warning("W006", text, "Set requirepass or an ACL, and redis://:password@host:port/0.")]


def endpoints_are_not_our_own_stores(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn where a subscription could send requests to this machine, or to PostgreSQL and Redis."""
    reached = sorted({name for name, address in _our_own() if _may_be_reached(address)})
    text = f"BROKER_ALLOWED_NETWORKS lets endpoints be {', '.join(reached)}: whoever may subscribe reaches it."
    hint = "Allow the networks of your endpoints alone."
    return [_warning("W007", text, hint)] if reached else []


CHECKS: Final = (
    secret_keys_are_long,
    addresses_are_for_production,
    proxies_are_few,
    redis_asks_for_a_password,
    endpoints_are_not_our_own_stores,
)


def _warning(number: str, text: str, hint: str) -> checks.CheckMessage:
    return checks.Warning(text, hint=hint, id=f"broker_project.{number}")


def _is_loopback(host: str) -> bool:
    bare = host.strip("[]").lower()
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(bare).is_loopback
    return bare in LOOPBACK_NAMES


def _our_own() -> Iterator[tuple[str, str]]:
    """Yield what is the broker's own by name, each with an address of it."""
    yield from (("this machine", address) for address in ("127.0.0.1", "::1"))
    stores = {
        "PostgreSQL": settings.DATABASES["default"].get("HOST") or "",
        "Redis": urlsplit(settings.REDIS_URL).hostname or "",
    }
    for name, host in stores.items():
        # What begins with a slash is a folder with a socket in it.
        if host and not unquote(host).startswith("/"):
            yield from ((name, address) for address in _addresses_of(host))


def _addresses_of(host: str) -> set[str]:
    """Return what a name leads to; nothing where nobody knows it."""
    with contextlib.suppress(OSError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    return set()


def _may_be_reached(address: str) -> bool:
    """Tell whether a setting, and not only the internet, leads there."""
    bare = address.partition("%")[0]
    return bool(kind_of(ipaddress.ip_address(bare))) and not settings.REACH.refusal(bare)
