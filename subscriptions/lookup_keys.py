"""The terms that filters are indexed by, and the ranges of the index with a message's candidates (contract 2.2)."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from subscriptions.filters import Document, FilterFailed, FilterSyntaxError, parse_filter, text_at
from subscriptions.names import REACHED_KIND, patterns_of

MAX_TERM_BYTES: Final = 1024
"""An index entry of PostgreSQL has at most 2,700 bytes; a filter with a longer term is evaluated for each message."""
NO_TERM: Final = ""
PART: Final = "\x01"
"""Sorts before all characters of a path."""
PAST: Final = "\x02"
"""Sorts right after `PART`."""
END: Final = "\U0010ffff"
"""Sorts after every path."""

MAX_LOOKUPS: Final = 4096
MAX_RANGES: Final = 16_384
"""Sizes of the caches; a range that is made twice is looked up twice."""
SHORT: Final = 512
"""Characters of a range's texts up to which it is cached."""


class Span(NamedTuple):
    """The terms from `low` on and before `high`."""

    low: str
    high: str


def term_of(filter_text: str) -> str:
    """Return the term that the filter is indexed by; `NO_TERM` if it has none, or none that is short enough."""
    try:
        equality = parse_filter(filter_text).equality if filter_text else None
    except FilterSyntaxError:
        return NO_TERM
    if equality is None or not _is_storable(*equality):
        return NO_TERM
    digest = hashlib.md5(filter_text.encode(), usedforsecurity=False).hexdigest()  # what PostgreSQL has built in
    return PART.join((*equality, digest))


def path_of(term: str) -> str:
    """Return the path of a term, "" for `NO_TERM`."""
    return term.partition(PART)[0]


def spans_of(paths: Sequence[str], values: Mapping[str, str | None]) -> Iterator[Span]:
    """Yield the spans of candidates: all terms of other paths than these sorted ones, and of these the message's value.

    If a path is missing in `values`, its value could not be read: all its terms. If its value is None: no term.
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
    """Return whether the database can store such a term."""
    if len(path) + len(constant) > MAX_TERM_BYTES or "\0" in constant or not path.isprintable():
        return False
    try:
        return len((path + constant).encode()) <= MAX_TERM_BYTES
    except UnicodeEncodeError:
        return False


class Addressed(Protocol):
    """A message, as far as it decides which subscriptions get it."""

    @property
    def event_type_id(self) -> int:
        """The event type, which exists."""

    @property
    def event_type(self) -> str:
        """Its name."""

    @property
    def kind(self) -> str:
        """Its kind: patterns reach TOPIC only."""

    @property
    def filter_string(self) -> str | None:
        """The header `FILTER_STRING`, compared literally."""

    @property
    def document(self) -> Document:
        """The headers and the body, parsed at most once and only if a filter asks for them."""


class Key(NamedTuple):
    """A subscription's events: an event type, or 0 and a pattern."""

    event_type_id: int
    event_pattern: str


@dataclass(frozen=True, slots=True, eq=False)
class KeyRange:
    """One range of the index; shared by all messages that need it, and compared by identity."""

    key: Key
    columns: tuple[str, ...]
    """Event type, pattern, header filter and the span's two ends, each as PostgreSQL writes it in an array."""


@dataclass(slots=True, eq=False)
class Lookup:
    """Where a message's candidates are."""

    keys: tuple[Key, ...]
    ranges: tuple[KeyRange, ...]
    was_plain: bool = False
    """Whether there were some last time, not too many, and all without filter, mailbox and ordering keys."""


Known = Mapping[Key, tuple[str, ...]]
"""The sorted paths by which a key's subscriptions are looked up, as far as they are known."""


def lookup_of(message: Addressed, known: Known) -> Lookup:
    """Return where the candidates are; looks into the message only if its event type has known paths."""
    filter_string = message.filter_string or ""
    make = _plain if len(filter_string) <= SHORT else _plain.__wrapped__
    plain = make(message.event_type_id, message.event_type, message.kind, filter_string)
    if known.keys().isdisjoint(plain.keys):
        return plain
    document = message.document
    values: dict[str, str | None] = {}
    for path in dict.fromkeys(path for key in plain.keys for path in known.get(key, ())):
        try:
            values[path] = text_at(document, path)
        except (FilterFailed, FilterSyntaxError):
            continue
    return _lookup(plain.keys, filter_string, known, values)


@lru_cache(MAX_LOOKUPS)
def _plain(event_type_id: int, event_type: str, kind: str, filter_string: str) -> Lookup:
    patterns = patterns_of(event_type) if kind == REACHED_KIND else ()
    keys = (Key(event_type_id, ""), *(Key(0, pattern) for pattern in patterns))
    return _lookup(keys, filter_string, {}, {})


def _lookup(keys: tuple[Key, ...], filter_string: str, known: Known, values: Mapping[str, str | None]) -> Lookup:
    ranges = (
        (_range if len(header) + len(span.low) + len(span.high) <= SHORT else _range.__wrapped__)(key, header, span)
        for key in keys
        for span in spans_of(known.get(key, ()), values)
        for header in {"", filter_string}
    )
    return Lookup(keys, tuple(ranges))


@lru_cache(MAX_RANGES)
def _range(key: Key, filter_string: str, span: Span) -> KeyRange:
    texts = (key.event_pattern, filter_string, *span)
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return KeyRange(key, (str(key.event_type_id), *(f'"{text}"' for text in quoted)))
