"""Throttling: who may ask once more, counted in the memory of this process for as many as it remembers."""

from collections import OrderedDict
from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address
from threading import Lock
from typing import Final

from broker_project.core.rates import Rate, Spent, look, spend
from subscriptions.credentials.tokens import bearer_in

REMEMBERED: Final = 10_000
"""However many there are, no more memory than this is spent on them: who was not seen for longest is forgotten."""
NOTHING: Final = Spent()
ONE_SITE_BITS: Final = 64
"""What one place gets of IPv6, and can have as many addresses in as it likes."""


class Meters:
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


class Acquaintances:
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


welcome: Final = Acquaintances()
"""Tokens that have been good lately, by their hashes: what others get wrong at the same address is not held against
them."""


def welcomed(authorization: str) -> int | None:
    """Return what stands for the bearer token in this header if it has been good lately, else None."""
    guess = hash(bearer_in(authorization))
    return guess if guess in welcome else None


def site_of(address: str) -> str:
    """Return the address that stands for one place: an IPv4 address, or the first of the network of an IPv6 address."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    return str(IPv6Address(int(known) >> ONE_SITE_BITS << ONE_SITE_BITS)) if isinstance(known, IPv6Address) else address
