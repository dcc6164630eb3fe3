"""How often something may be done: so many times a minute.

A bucket that holds a minute's worth and fills evenly: who has been silent for a minute may come with all of it at once,
and who has spent it gets one back after the other. Reckoned in whole numbers, so that every limit means just itself.
"""

from dataclasses import dataclass
from typing import Final

SECOND: Final = 10**9
MINUTE: Final = 60 * SECOND
"""In nanoseconds, as the clock tells them. Once costs as much as flows back in a minute at a limit of one."""


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
