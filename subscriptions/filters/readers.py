"""What reads a value of a message: the JSON at a path, its text, or what it is sorted by (behaviour 3.3)."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

from subscriptions.filters.document import Document
from subscriptions.filters.json_values import MISSING, Json, Missing, SortKey, sort_key
from subscriptions.filters.parsing import parse_path
from subscriptions.filters.printing import text_of
from subscriptions.filters.tree import BODY, HEADER, Path
from subscriptions.filters.work import COMPARED

KNOWN_PATHS: Final = 4096
SHORT: Final = 1024
"""Texts of up to so many characters are compared without being counted."""

Reader: TypeAlias = Callable[[Document], Json | Missing]
TextReader: TypeAlias = Callable[[Document], str | None]
KeyReader: TypeAlias = Callable[[Document], SortKey | None]

WHOLE: Final[dict[str | int, Reader]] = {HEADER: lambda one: one.headers, BODY: lambda one: one.body}


def reader(path: Path) -> Reader:
    """Return what reads the JSON value at `path`; it gives `MISSING` where there is nothing."""
    if not path.steps:
        return lambda document: {HEADER: document.headers, BODY: document.body}
    first, *steps = path.steps
    whole = WHOLE[first]

    def read(document: Document) -> Json | Missing:
        value = whole(document)
        for step in steps:
            value = value.get(step, MISSING) if isinstance(value, dict) else _element(value, step)
        return value

    return read


def text_reader(path: Path) -> TextReader:
    """Return what reads the text that `->>` gives at `path`; None for null, JSON's and SQL's."""
    read = reader(path)

    def read_text(document: Document) -> str | None:
        value = read(document)
        if isinstance(value, str) and len(value) <= SHORT:
            return value
        if value is MISSING:
            return None
        text = document.made(text_of, path, value)
        document.work.add(len(text or "") // COMPARED)
        return text

    return read_text


def key_reader(path: Path) -> KeyReader:
    """Return what reads a sort key of the JSON value at `path`; None for SQL's null."""
    read = reader(path)

    def read_key(document: Document) -> SortKey | None:
        value = read(document)
        if value is MISSING:
            return None
        return document.made(sort_key, path, value)

    return read_key


def text_at(document: Document, path: str) -> str | None:
    """Return what a path with `->>`, in its canonical text, gives; None for null.

    Raises:
        FilterFailed: what is there cannot be read.

    """
    document.begin()
    return _text_reader_of(path)(document)


def _element(value: Json | Missing, step: str | int) -> Json | Missing:
    """Return an element of a list; counted from the end if negative. A lone scalar is a list of one, to jsonb."""
    if value is MISSING or not isinstance(step, int):
        return MISSING
    elements = value if isinstance(value, list) else [value]
    return elements[step] if -len(elements) <= step < len(elements) else MISSING


@lru_cache(KNOWN_PATHS)
def _text_reader_of(path: str) -> TextReader:
    return text_reader(parse_path(path))
