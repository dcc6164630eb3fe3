"""What a filter can be looked up by, and where the candidates of a message stand in the index (contract 2.2)."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from subscriptions.filters import Document, FilterFailed, FilterSyntaxError, Work, parse_filter, text_at
from subscriptions.names import REACHED_KIND, patterns_of

MAX_TERM_BYTES: Final = 1024
"""An index entry of PostgreSQL has at most 2,700 bytes; a filter with a longer term is evaluated for each message."""
NO_TERM: Final = ""
PART: Final = "\x01"
"""Sorts before all that stands in a path."""
PAST: Final = "\x02"
"""Sorts right after `PART`."""
END: Final = "\U0010ffff"
"""Sorts after every path."""

ASKED: Final = 4096
PROBES: Final = 16_384
"""So many are kept; one that is made twice is looked up twice."""
SHORT: Final = 512
"""Those with texts of more characters are not kept."""


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


class Addressed(Protocol):
    """What decides who gets a message."""

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
    """What a subscription is for: an event type, or 0 and a pattern."""

    event_type_id: int
    event_pattern: str


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One range of the index; made once for all messages that ask for it, and told apart by identity."""

    key: Key
    columns: tuple[str, ...]
    """Event type, pattern, header filter and the span's two ends, each as PostgreSQL writes it within an array."""
    by_header: bool
    """Whether subscriptions with a header filter are there, or those without one."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Where a message's candidates are."""

    keys: tuple[Key, ...]
    probes: tuple[Probe, ...]


Known = Mapping[Key, tuple[str, ...]]
"""The sorted paths by which filters of a key's subscriptions are looked up, as far as they are known."""


def lookup_keys_of(message: Addressed, known: Known, work: Work) -> Asked:
    """Return where the candidates are; looks into the message only if its event type has known paths."""
    filter_string = message.filter_string or ""
    make = _plain if len(filter_string) <= SHORT else _plain.__wrapped__
    plain = make(message.event_type_id, message.event_type, message.kind, filter_string)
    if known.keys().isdisjoint(plain.keys):
        return plain
    paths = dict.fromkeys(path for key in plain.keys for path in known.get(key, ()))
    message.document.work = work
    values = dict(_values(paths, message.document))
    return _asked(plain.keys, filter_string, known, values)


@lru_cache(ASKED)
def _plain(event_type_id: int, event_type: str, kind: str, filter_string: str) -> Asked:
    patterns = patterns_of(event_type) if kind == REACHED_KIND else ()
    keys = (Key(event_type_id, ""), *(Key(0, pattern) for pattern in patterns))
    return _asked(keys, filter_string, {}, {})


def _asked(keys: tuple[Key, ...], filter_string: str, known: Known, values: Mapping[str, str | None]) -> Asked:
    probes = (
        (_probe if len(header) + len(span.low) + len(span.high) <= SHORT else _probe.__wrapped__)(key, header, span)
        for key in keys
        for span in spans_of(known.get(key, ()), values)
        for header in {"", filter_string}
    )
    return Asked(keys, tuple(probes))


@lru_cache(PROBES)
def _probe(key: Key, filter_string: str, span: Span) -> Probe:
    columns = (str(key.event_type_id), *map(_quoted, (key.event_pattern, filter_string, *span)))
    return Probe(key, columns, bool(filter_string))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _values(paths: Iterable[str], document: Document) -> Iterator[tuple[str, str | None]]:
    """Yield what the message has at these paths; one that cannot be read is left out."""
    for path in paths:
        try:
            yield path, text_at(document, path)
        except (FilterFailed, FilterSyntaxError):
            continue
