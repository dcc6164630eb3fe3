"""What a filter can be looked up by: the one `path = 'constant'` without which it cannot be true, as a sortable text.

A term is `path ␁ constant ␁ digest of the filter`: sorted byte by byte, all terms of a path are neighbours, and all of
a path and constant among them. The digest ties a term to its filter, so that the database can tell a stale one.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from subscriptions.filters import FilterSyntaxError, parse_filter

MAX_TERM_BYTES: Final = 1024
"""An index entry of PostgreSQL has at most 2,700 bytes; a filter with a longer term is evaluated for each message."""
NO_TERM: Final = ""
PART: Final = "\x01"
"""Sorts before all that stands in a path."""
PAST: Final = "\x02"
"""Sorts right after `PART`."""
END: Final = "\U0010ffff"
"""Sorts after every path."""


class Span(NamedTuple):
    """The terms from `low` on and before `high`."""

    low: str
    high: str


def term_of(filter_text: str) -> str:
    """Return what the filter can be looked up by; `NO_TERM` where there is nothing, or nothing short enough."""
    try:
        equality = parse_filter(filter_text).equality if filter_text else None
    except FilterSyntaxError:
        return NO_TERM
    if equality is None or not _is_storable(*equality):
        return NO_TERM
    digest = hashlib.md5(filter_text.encode(), usedforsecurity=False).hexdigest()  # what PostgreSQL has built in
    return PART.join((*equality, digest))


def path_of(term: str) -> str:
    """Return the path of a term, "" of `NO_TERM`."""
    return term.partition(PART)[0]


def spans_of(paths: Sequence[str], values: Mapping[str, str | None]) -> Iterator[Span]:
    """Yield where the candidates are: all terms of other paths than these sorted ones, and of these what has the value.

    A path whose value is missing in `values` could not be read: all its terms; one whose value is None has none.
    """
    for low, high in itertools.pairwise((None, *paths, None)):
        yield Span(low + PAST if low else "", high + PART if high else END)
    for path in paths:
        value = values.get(path)
        if path not in values:
            yield Span(path + PART, path + PAST)
        elif value is not None and _is_storable(path, value):
            yield Span(path + PART + value + PART, path + PART + value + PAST)


def _is_storable(path: str, constant: str) -> bool:
    """Tell whether the database could hold such a term."""
    if len(path) + len(constant) > MAX_TERM_BYTES or "\0" in constant or not path.isprintable():
        return False
    try:
        return len((path + constant).encode()) <= MAX_TERM_BYTES
    except UnicodeEncodeError:
        return False
