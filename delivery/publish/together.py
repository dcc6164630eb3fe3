"""Do something for several requests at once, so that what is wrong with one costs the others nothing."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from broker_project.core.db import is_away

Item = TypeVar("Item")
Result = TypeVar("Result")


class TakesLong(Exception):
    """It would keep the others waiting: it is done by itself after them."""


def together(
    act: Callable[[Sequence[Item]], Sequence[Result | Exception]], items: Sequence[Item]
) -> list[Result | Exception]:
    """Return what `act` returns for each item, or the exception that the item ends with.

    If it fails for all at once, it is done one by one. Once the database is away, all that is left ends with that: each
    would wait for it again (contract 11.5).
    """
    try:
        return [*act(items)]
    except Exception as failure:  # noqa: BLE001 - its item gets it
        if len(items) == 1 or is_away(failure):
            return [failure] * len(items)
    results: list[Result | Exception] = []
    for item in items:
        results += together(act, [item])
        if isinstance(results[-1], Exception) and is_away(results[-1]):
            return results + results[-1:] * (len(items) - len(results))
    return results


def in_slices(items: Sequence[Item], size_of: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Yield the items in their order, at a time as many as have `most` together, and at least one."""
    current: list[Item] = []
    size = 0
    for item in items:
        if current and size + size_of(item) > most:
            yield current
            current, size = [], 0
        current.append(item)
        size += size_of(item)
    if current:
        yield current
