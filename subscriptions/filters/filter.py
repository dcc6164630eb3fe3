"""A filter: parsed and compiled once, asked for every message (contract 3)."""

from threading import Lock
from typing import Final

from django.core.exceptions import ValidationError

from subscriptions.filters.compile import compile_node
from subscriptions.filters.document import Document
from subscriptions.filters.explain import Explanation, explain
from subscriptions.filters.parse import FilterSyntaxError, parse
from subscriptions.filters.tree import Node, equality_of

MAX_KEPT: Final = 2 * 2**20
"""Filters of so many characters together are kept; compiled they take up to forty times that."""
OVERHEAD: Final = 64
"""What a filter takes beside its text, in characters."""


class Filter:
    """What a subscription asks of messages."""

    __slots__ = ("_test", "canonical", "equality", "text", "tree")

    def __init__(self, text: str, tree: Node) -> None:
        self.text = text
        self.tree = tree
        self.canonical = str(tree)
        """The same for all filters that differ only in white space or the case of keywords (contract 6.3)."""
        self.equality = equality_of(tree)
        """A path with `->>` and the text without which the filter cannot be true, or None if there is no such."""
        self._test = compile_node(tree)

    def matches(self, document: Document) -> bool:
        """Tell whether a message qualifies; unknown does not.

        Raises:
            FilterFailed: it cannot be told.

        """
        document.begin()
        return self._test(document) is True

    def explain(self, document: Document) -> Explanation:
        """Return what the filter makes of a message, and each of its terms."""
        return explain(self.tree, document)


class Kept:
    """Filters by their text, until later ones take their room."""

    def __init__(self) -> None:
        self._filters: dict[str, Filter] = {}
        self._size = 0
        self._lock = Lock()

    def get(self, text: str) -> Filter | None:
        """Return a filter that is kept."""
        return self._filters.get(text)

    def add(self, one: Filter) -> None:
        """Keep a filter."""
        with self._lock:
            if one.text not in self._filters:
                self._filters[one.text] = one
                self._size += len(one.text) + OVERHEAD
            while self._size > MAX_KEPT:
                oldest = next(iter(self._filters))
                del self._filters[oldest]
                self._size -= len(oldest) + OVERHEAD


def parse_filter(text: str) -> Filter:
    """Return the filter that `text` is.

    Raises:
        FilterSyntaxError: it is none, or too large a one; says where.

    """
    return _kept.get(text) or Filter(text, parse(text))


def kept_filter(text: str) -> Filter:
    """Return the filter that `text` is and keep it, since it will be asked for again; raises as `parse_filter`."""
    found = _kept.get(text)
    if found is None:
        found = Filter(text, parse(text))
        _kept.add(found)
    return found


def validate_filter(text: str) -> None:
    """Raise `ValidationError` unless `text` is a filter, saying where it is not."""
    try:
        parse_filter(text)
    except FilterSyntaxError as wrong:
        raise ValidationError(f"{wrong}.", code="filter") from None


_kept: Final = Kept()
