"""A filter: parsed and compiled once, asked for every message (behaviour 3)."""

from functools import lru_cache
from typing import Final

from django.core.exceptions import ValidationError

from subscriptions.filters.compiling import compile_node
from subscriptions.filters.documents import Document
from subscriptions.filters.explaining import Explanation, explain
from subscriptions.filters.parsing import parse
from subscriptions.filters.positions import FilterSyntaxError
from subscriptions.filters.tree import Node
from subscriptions.filters.walking import equality_of

KEPT: Final = 16_384
"""So many filters are kept compiled, some kilobytes each."""


class Filter:
    """What a subscription asks of messages."""

    __slots__ = ("_test", "canonical", "equality", "text", "tree")

    def __init__(self, text: str, tree: Node) -> None:
        self.text = text
        self.tree = tree
        self.canonical = str(tree)
        """The same for all filters that differ only in white space or the case of keywords (behaviour 6.3)."""
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


@lru_cache(KEPT)
def parse_filter(text: str) -> Filter:
    """Return the filter that `text` is.

    Raises:
        FilterSyntaxError: it is none, or too large a one; says where.

    """
    return Filter(text, parse(text))


def validate_filter(text: str) -> None:
    """Raise `ValidationError` unless `text` is a filter, saying where it is not."""
    try:
        parse_filter(text)
    except FilterSyntaxError as wrong:
        raise ValidationError(f"{wrong}.", code="filter") from None
