"""Do something for several requests at once, so that what is wrong with one costs the others nothing."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import InterfaceError, OperationalError

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
    except (InterfaceError, OperationalError) as outage:
        return [outage] * len(items)
    except Exception as failure:  # noqa: BLE001 - its item gets it
        if len(items) == 1:
            return [failure]
        return [result for item in items for result in together(act, [item])]
