"""What a message looks like to filters, and how much work they may do (contract 3.1, 3.2, 3.6)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeAlias, TypeVar, cast

from subscriptions.filters.json_values import (
    MISSING,
    FilterFailed,
    Json,
    Missing,
    SortKey,
    parse_json,
    sort_key,
    text_of,
)
from subscriptions.filters.parse import parse_path
from subscriptions.filters.tree import BODY, HEADER, Path

MAX_WORK: Final = 16 * 2**20
"""Of all filters that look at the messages of one publish; a unit is a character walked through, some 0.3 µs."""
A_NODE: Final = 2
"""What evaluating one node of a filter costs beside what it reads."""
COMPARED: Final = 64
"""So many characters of a value are compared or searched, once it is walked through, in the time that one took."""
MAX_KEPT: Final = 4 * 2**20
"""What is made of messages is kept for other filters up to so much work: it takes many times the memory."""

MAX_READ: Final = 4 * 2**20
"""A filter that reads more characters fails: many terms that each read a large body would take seconds."""

Made = TypeVar("Made", str | None, SortKey)

KNOWN_PATHS: Final = 4096
SHORT: Final = 1024
"""Texts of up to so many characters are compared without being counted."""


class Work:
    """What the filters of one publish have done."""

    def __init__(self) -> None:
        self._done = 0

    @property
    def may_keep(self) -> bool:
        """Whether there is not yet much that is kept."""
        return self._done <= MAX_KEPT

    @property
    def is_used_up(self) -> bool:
        """Whether there may be no more of it."""
        return self._done > MAX_WORK

    def add(self, units: int) -> None:
        """Add what is about to be done.

        Raises:
            FilterFailed: it is too much.

        """
        self._done += units
        if self.is_used_up:
            raise FilterFailed("the filters that look at what was published together take too long")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of a body that should be JSON and cannot be read as such."""

    reason: str


def parse_body(body: bytes, *, is_json: bool) -> Json | Unreadable:
    """Return the body's value; a body that is not JSON is a string, undecodable bytes are null."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    try:
        return parse_json(text) if is_json else text
    except ValueError as broken:
        return Unreadable(f"the body is not JSON: {broken}")
    except RecursionError:
        return Unreadable("the body is nested too deep")


class Document:
    """A message, parsed when the first filter looks into it and then no more."""

    def __init__(self, headers: Sequence[tuple[str, str]], body: bytes, *, is_json: bool) -> None:
        self._headers = headers
        self._body = body
        self._is_json = is_json
        self._read = 0
        self._made: dict[object, object] = {}
        self.work = Work()
        """What all filters that look at it have done; those of a publish share one."""

    def begin(self) -> None:
        """Count what is read anew, for another filter."""
        self._read = 0

    def count(self, value: Json) -> None:
        """Count what is read: a text by its length; what has parts, all of which are walked through, as the body.

        Raises:
            FilterFailed: it is too much.

        """
        if isinstance(value, str):
            self._read += len(value)
        elif isinstance(value, dict | list):
            self._read += len(self._body)
        if self._read > MAX_READ:
            raise FilterFailed(f"the filter reads more than {MAX_READ} characters of the message")

    def made(self, make: Callable[[Json], Made], path: Path, value: Json) -> Made:
        """Return what `make` makes of the value at a path: what takes time is made once for all filters.

        Raises:
            FilterFailed: it cannot be made, or takes too long.

        """
        self.count(value)
        if not isinstance(value, dict | list):
            return make(value)
        if (make, path.steps) not in self._made:
            self.work.add(len(self._body))
            made = make(value)
            if not self.work.may_keep:
                return made
            self._made[make, path.steps] = made
        self.work.add(len(self._body) // COMPARED)
        return cast("Made", self._made[make, path.steps])

    @property
    def body(self) -> Json:
        """The body's value, or the body as a JSON string if it is not JSON; null if that cannot be decoded.

        Raises:
            FilterFailed: the body is not the JSON it should be, or nested too deep.

        """
        body = self._parsed_body
        if isinstance(body, Unreadable):
            raise FilterFailed(body.reason)
        return body

    @cached_property
    def headers(self) -> dict[str, list[str]]:
        """The values of each header, by its name in lower case."""
        values: dict[str, list[str]] = {}
        for name, value in self._headers:
            values.setdefault(name.lower(), []).append(value)
        return values

    @cached_property
    def _parsed_body(self) -> Json | Unreadable:
        return parse_body(self._body, is_json=self._is_json)


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
