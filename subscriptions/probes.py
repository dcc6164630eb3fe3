"""Where in the index of subscriptions the candidates of a message are (behaviour 2.2)."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

from subscriptions.filter_terms import Span, spans_of
from subscriptions.filters import Document, FilterFailed, FilterSyntaxError
from subscriptions.patterns import patterns_of


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


class Asked(NamedTuple):
    """All that decides where a message's candidates are; messages that are alike in it have the same ones."""

    keys: tuple[Key, ...]
    filter_string: str | None
    values: tuple[tuple[str, str | None], ...]
    """What the message has at the known paths; those that cannot be read are missing."""


class Probe(NamedTuple):
    """One range of the index."""

    key: Key
    filter_string: str
    span: Span


Known = Mapping[Key, tuple[str, ...]]
"""The sorted paths by which filters of a key's subscriptions are looked up, as far as they are known."""


def asked_of(message: Addressed, known: Known) -> Asked:
    """Return what decides where the candidates are; reads the message only if paths are known."""
    keys = _keys(message.event_type_id, message.event_type, message.kind)
    paths = [path for key in keys for path in known.get(key, ())]
    return Asked(keys, message.filter_string, tuple(_values(dict.fromkeys(paths), message.document)) if paths else ())


def probes_of(asked: Asked, known: Known) -> list[Probe]:
    """Return every range in which there may be candidates."""
    values, filter_strings = dict(asked.values), {"", asked.filter_string or ""}
    return [
        Probe(key, filter_string, span)
        for key in asked.keys
        for span in spans_of(known.get(key, ()), values)
        for filter_string in filter_strings
    ]


@lru_cache(maxsize=4096)
def _keys(event_type_id: int, event_type: str, kind: str) -> tuple[Key, ...]:
    patterns = patterns_of(event_type) if kind == "TOPIC" else ()
    return (Key(event_type_id, ""), *(Key(0, pattern) for pattern in patterns))


def _values(paths: Iterable[str], document: Document) -> Iterator[tuple[str, str | None]]:
    for path in paths:
        try:
            yield path, document.text_at(path)
        except (FilterFailed, FilterSyntaxError):
            continue
