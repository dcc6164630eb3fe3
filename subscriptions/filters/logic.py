"""AND, OR and NOT of three values: true, false, and None for unknown, as in SQL (behaviour 3.3)."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from subscriptions.filters.document import Document
from subscriptions.filters.json_values import FilterFailed

Test: TypeAlias = Callable[[Document], bool | None]
"""Raises `FilterFailed` where it cannot tell."""


def joined(tests: Sequence[Test], *, deciding: bool, passing_over: bool = False) -> Test:
    """Return AND (false decides) or OR (true decides); what fails or is unknown matters only where nothing decides.

    `passing_over` failures, it is unknown where a part is.
    """

    def holds(document: Document) -> bool | None:
        unsure: list[FilterFailed | None] = []
        for test in tests:
            found = _tried(test, document)
            if found is deciding:
                return deciding
            if not isinstance(found, bool):
                unsure.append(found)
        if not (passing_over and None in unsure):
            _raise_first(unsure)
        return None if unsure else not deciding

    return holds


def _raise_first(unsure: Sequence[FilterFailed | None]) -> None:
    for failure in filter(None, unsure):
        raise failure


def _tried(test: Test, document: Document) -> bool | FilterFailed | None:
    try:
        return test(document)
    except FilterFailed as failed:
        return failed


def opposite(test: Test) -> Test:
    """Return NOT; the opposite of unknown is unknown."""

    def holds(document: Document) -> bool | None:
        found = test(document)
        return None if found is None else not found

    return holds
