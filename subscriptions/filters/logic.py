"""AND, OR and NOT of three values: true, false, and None for unknown, as in SQL (behaviour 3.3)."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from subscriptions.filters.documents import Document
from subscriptions.filters.values import FilterFailed

Test: TypeAlias = Callable[[Document], bool | None]
"""Raises `FilterFailed` where it cannot tell."""


def joined(tests: Sequence[Test], *, deciding: bool) -> Test:
    """Return AND (false decides) or OR (true decides); what fails or is unknown matters only where nothing decides."""

    def holds(document: Document) -> bool | None:
        unsure: list[FilterFailed | None] = []
        for test in tests:
            found = _tried(test, document)
            if found is deciding:
                return deciding
            if not isinstance(found, bool):
                unsure.append(found)
        for failure in filter(None, unsure):
            raise failure
        return None if unsure else not deciding

    return holds


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
