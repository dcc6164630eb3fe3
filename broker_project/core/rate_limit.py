"""Rate limits counted in the memory of one process, and callers that have recently authenticated."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from threading import Lock
from typing import Final

SECOND: Final = 10**9
MINUTE: Final = 60 * SECOND
"""In nanoseconds, as the clock tells them. Once costs as much as flows back in a minute at a limit of one."""

REMEMBERED: Final = 10_000
"""However many there are, no more memory than this is spent on them: who was not seen for longest is forgotten."""

ONE_SITE_BITS: Final = 64
"""What one place gets of IPv6, and can have as many addresses in as it likes."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What somebody had spent at a moment, in nanoseconds times the limit."""

    amount: int = 0
    at: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """Where somebody stands with their limit; times in whole seconds, rounded up."""

    limit: int
    """How many times a minute."""
    left: int
    """How many times at once from now on."""
    full_in: int
    """When all of the limit is there again."""
    wait: int
    """0: it may be done. Else after so long, if nothing is done meanwhile."""


def spend(spent: Spent, limit: int, now: int) -> tuple[Spent, Rate]:
    """Return what is spent once it has been done again, and how that leaves things; what may not be done costs nothing.

    `now` is in nanoseconds of any clock that never goes back.
    """
    amount = _flown_back(spent, limit, now)
    if wait := _wait(amount, limit):
        return Spent(amount, now), _rate(amount, limit, wait)
    return Spent(amount + MINUTE, now), _rate(amount + MINUTE, limit, 0)


def look(spent: Spent, limit: int, now: int) -> Rate:
    """Return how things stand, with nothing done."""
    amount = _flown_back(spent, limit, now)
    return _rate(amount, limit, _wait(amount, limit))


def _flown_back(spent: Spent, limit: int, now: int) -> int:
    """Return what is still spent; never more than the limit, which may have been higher before."""
    return max(0, min(spent.amount - max(0, now - spent.at) * limit, limit * MINUTE))


def _wait(amount: int, limit: int) -> int:
    return max(0, _seconds(amount + MINUTE - limit * MINUTE, limit))


def _seconds(amount: int, limit: int) -> int:
    return -(-amount // (limit * SECOND))


def _rate(amount: int, limit: int, wait: int) -> Rate:
    return Rate(limit, (limit * MINUTE - amount) // MINUTE, _seconds(amount, limit), wait)


NOTHING: Final = Spent()


class RateLimits:
    """What each of many has spent; of all threads."""

    def __init__(self) -> None:
        self._spent: OrderedDict[Hashable, Spent] = OrderedDict()
        self._lock = Lock()

    def spend(self, name: Hashable, limit: int, now: int) -> Rate:
        """Count once more, if that is within the limit; return where that leaves this one."""
        with self._lock:
            self._spent[name], rate = spend(self._spent.get(name, NOTHING), limit, now)
            self._spent.move_to_end(name)
            if len(self._spent) > REMEMBERED:
                self._spent.popitem(last=False)
        return rate

    def look(self, name: Hashable, limit: int, now: int) -> Rate:
        """Return where this one stands."""
        return look(self._spent.get(name, NOTHING), limit, now)

    def forget(self) -> None:
        """Begin anew with everybody."""
        with self._lock:
            self._spent.clear()


class RecentTokens:
    """Whom this process has let in lately; of all threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, name: Hashable) -> bool:
        return name in self._known

    def add(self, name: Hashable) -> None:
        """Remember one."""
        with self._lock:
            self._known[name] = None
            self._known.move_to_end(name)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def discard(self, name: Hashable) -> None:
        """Forget one."""
        with self._lock:
            self._known.pop(name, None)

    def forget(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._known.clear()


def site_of(address: str) -> str:
    """Return the address that stands for one place: an IPv4 address, or the first of the network of an IPv6 address."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    return str(IPv6Address(int(known) >> ONE_SITE_BITS << ONE_SITE_BITS)) if isinstance(known, IPv6Address) else address
