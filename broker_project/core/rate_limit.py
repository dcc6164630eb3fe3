"""Rate limits counted in the memory of one process, and callers that have recently authenticated."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from threading import Lock
from typing import Final

SECOND: Final = 10**9
MINUTE: Final = 60 * SECOND
"""In nanoseconds. A request costs as much as a limit of one request per minute gives back in a minute."""

MAX_CALLERS: Final = 10_000
"""Callers that are remembered; the one that was not seen for longest is forgotten."""

IPV6_NETWORK_BITS: Final = 64
"""The size of network that one site gets, in which it can use any number of addresses."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a caller had spent at a moment: nanoseconds times its limit."""

    amount: int = 0
    at: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """The state of a caller's limit. Times are whole seconds, rounded up."""

    limit: int
    """Requests per minute."""
    left: int
    """Requests that may be sent at once."""
    full_in: int
    """When the whole limit is available again."""
    wait: int
    """When the next request is allowed; 0: now."""


def spend(spent: Spent, limit: int, now: int, cost: int = MINUTE) -> tuple[Spent, Rate]:
    """Count one request if the limit allows it; a refused request costs nothing.

    `now` is in nanoseconds of a clock that never goes back. What is spent is at most the limit, which may have been
    higher before.
    """
    amount = max(0, min(spent.amount - max(0, now - spent.at) * limit, limit * MINUTE))
    wait = max(0, _seconds(amount + MINUTE - limit * MINUTE, limit))
    if not wait:
        amount += cost
    return Spent(amount, now), Rate(limit, (limit * MINUTE - amount) // MINUTE, _seconds(amount, limit), wait)


def look(spent: Spent, limit: int, now: int) -> Rate:
    """Return the state of a limit without counting a request."""
    return spend(spent, limit, now, cost=0)[1]


def _seconds(amount: int, limit: int) -> int:
    """Return the seconds in which a limit gives this amount back, rounded up."""
    return -(-amount // (limit * SECOND))


class RateLimiter:
    """What each caller has spent; safe to use from several threads."""

    def __init__(self) -> None:
        self._spent: OrderedDict[Hashable, Spent] = OrderedDict()
        self._lock = Lock()

    def spend(self, caller: Hashable, limit: int, now: int) -> Rate:
        """Count one request of a caller if its limit allows it."""
        with self._lock:
            self._spent[caller], rate = spend(self._spent.get(caller, Spent()), limit, now)
            _keep_recent(self._spent, caller)
        return rate

    def look(self, caller: Hashable, limit: int, now: int) -> Rate:
        """Return the state of a caller's limit."""
        return look(self._spent.get(caller, Spent()), limit, now)


class RecentTokens:
    """Tokens that this process has accepted recently; safe to use from several threads."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, token: Hashable) -> bool:
        return token in self._tokens

    def add(self, token: Hashable) -> None:
        """Remember a token."""
        with self._lock:
            self._tokens[token] = None
            _keep_recent(self._tokens, token)

    def discard(self, token: Hashable) -> None:
        """Forget a token."""
        with self._lock:
            self._tokens.pop(token, None)


def _keep_recent(entries: "OrderedDict[Hashable, Spent] | OrderedDict[Hashable, None]", key: Hashable) -> None:
    """Make `key` the newest entry, and drop the oldest one if there are too many."""
    entries.move_to_end(key)
    if len(entries) > MAX_CALLERS:
        entries.popitem(last=False)


def client_prefix(address: str) -> str:
    """Return what clients are counted by: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    if isinstance(known, IPv6Address):
        return str(IPv6Address(int(known) >> IPV6_NETWORK_BITS << IPV6_NETWORK_BITS))
    return address
