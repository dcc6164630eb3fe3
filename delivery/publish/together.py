"""Do something for several publishes at once, so that what is wrong with one costs the others nothing."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from broker_project.core.db import is_away

Item = TypeVar("Item")
Result = TypeVar("Result")


def together(
    act: Callable[[Sequence[Item]], Sequence[Result | Exception]], items: Sequence[Item]
) -> list[Result | Exception]:
    """Return what `act` returns for each item, or the exception that the item ends with.

    If it fails for all at once, it is done one by one, unless the database is away.
    """
    try:
        return [*act(items)]
    except Exception as failure:  # noqa: BLE001 - its item gets it
        if len(items) == 1 or is_away(failure):
            return [failure] * len(items)
        return [result for item in items for result in together(act, [item])]
