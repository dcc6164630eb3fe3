"""What a message looks like to filters, and how much work they may do (contract 3.1, 3.2, 3.6)."""

from collections.abc import Callable, Sequence
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
"""Units of evaluating one node of a filter, in addition to what it reads."""
COMPARED: Final = 64
"""Characters of a value, once walked through, that are compared in the time of a unit."""
SEARCHED: Final = 4
"""Elements of an array that are searched in the time of a unit."""
MAX_KEPT_WORK: Final = 4 * 2**20
"""Up to this work, derived values are kept for other filters: they take many times the message's memory."""
MAX_READ: Final = 4 * 2**20
"""Characters that one filter may read: many terms that each read a large body would take seconds."""
KNOWN_PATHS: Final = 4096
SHORT: Final = 1024
"""Texts up to this length are compared without being counted."""

Derived = TypeVar("Derived", str | None, SortKey)


class Work:
    """The work done by the filters of one publish."""

    def __init__(self) -> None:
        self.done = 0
        self.limit = MAX_WORK

    def share(self, publishes: int) -> None:
        """Let it be at most the part that each of several publishes has together with the others."""
        self.limit = MAX_WORK // publishes

    @property
    def is_used_up(self) -> bool:
        """Whether no more work may be done."""
        return self.done > self.limit

    def add(self, units: int) -> None:
        """Count work that is about to be done; raise `FilterFailed` if it is too much."""
        self.done += units
        if self.is_used_up:
            raise FilterFailed("the filters that look at what was published together take too long")


class Document:
    """A message, whose body is parsed when the first filter looks into it."""

    def __init__(self, headers: Sequence[tuple[str, str]], body: bytes, *, is_json: bool) -> None:
        self._headers = headers
        self._body = body
        self._is_json = is_json
        self._read = 0
        self._derived: dict[object, object] = {}
        self.work = Work()
        """Of all filters that look at it; the messages of a publish share one."""

    def begin(self) -> None:
        """Start counting what is read, for another filter."""
        self._read = 0

    def count(self, value: Json) -> None:
        """Count a value that is read, arrays and objects as the whole body; raise `FilterFailed` if it is too much."""
        if isinstance(value, str):
            self._read += len(value)
        elif isinstance(value, dict | list):
            self._read += len(self._body)
        if self._read > MAX_READ:
            raise FilterFailed(f"the filter reads more than {MAX_READ} characters of the message")

    def derived(self, derive: Callable[[Json], Derived], path: Path, value: Json) -> Derived:
        """Return `derive(value)`, kept for all filters if the value is no scalar; raise `FilterFailed` if it cannot."""
        self.count(value)
        if not isinstance(value, dict | list):
            return derive(value)
        if (derive, path.steps) not in self._derived:
            self.work.add(len(self._body))
            result = derive(value)
            if self.work.done > MAX_KEPT_WORK:
                return result
            self._derived[derive, path.steps] = result
        self.work.add(len(self._body) // COMPARED)
        return cast("Derived", self._derived[derive, path.steps])

    @property
    def body(self) -> Json:
        """The value of a JSON body, else its text, null if that is not UTF-8; raise `FilterFailed` for broken JSON."""
        body = self._parsed_body
        if isinstance(body, FilterFailed):
            raise FilterFailed(*body.args)
        return body

    @cached_property
    def headers(self) -> dict[str, list[str]]:
        """The values of each header, by its name in lower case."""
        values: dict[str, list[str]] = {}
        for name, value in self._headers:
            values.setdefault(name.lower(), []).append(value)
        return values

    @cached_property
    def _parsed_body(self) -> Json | FilterFailed:
        try:
            text = self._body.decode()
            return parse_json(text) if self._is_json else text
        except UnicodeDecodeError:
            return None
        except ValueError as broken:
            return FilterFailed(f"the body is not JSON: {broken}")
        except RecursionError:
            return FilterFailed("the body is nested too deep")


Reader: TypeAlias = Callable[[Document], Json | Missing]

WHOLE: Final[dict[str | int, Reader]] = {
    HEADER: lambda document: document.headers,
    BODY: lambda document: document.body,
}


def reader(path: Path) -> Reader:
    """Return the function that reads the JSON value at `path`; `MISSING` if nothing is there.

    An index counts from the end if it is negative. A scalar is an array of one, as in jsonb.
    """
    if not path.steps:
        return lambda document: {HEADER: document.headers, BODY: document.body}
    first, *steps = path.steps
    whole = WHOLE[first]

    def read(document: Document) -> Json | Missing:
        value = whole(document)
        for step in steps:
            if isinstance(value, dict):
                value = value.get(step, MISSING)
            elif value is MISSING or not isinstance(step, int):
                return MISSING
            else:
                elements = value if isinstance(value, list) else [value]
                value = elements[step] if -len(elements) <= step < len(elements) else MISSING
        return value

    return read


def text_reader(path: Path) -> Callable[[Document], str | None]:
    """Return the function that reads the text that `->>` gives at `path`; None for null, JSON's and SQL's."""
    read = reader(path)

    def read_text(document: Document) -> str | None:
        value = read(document)
        if isinstance(value, str) and len(value) <= SHORT:
            return value
        if value is MISSING:
            return None
        text = document.derived(text_of, path, value)
        document.work.add(len(text or "") // COMPARED)
        return text

    return read_text


def key_reader(path: Path) -> Callable[[Document], SortKey | None]:
    """Return the function that reads a sort key of the JSON value at `path`; None for SQL's null."""
    read = reader(path)

    def read_key(document: Document) -> SortKey | None:
        value = read(document)
        return None if value is MISSING else document.derived(sort_key, path, value)

    return read_key


_text_reader_of = lru_cache(KNOWN_PATHS)(lambda path: text_reader(parse_path(path)))


def text_at(document: Document, path: str) -> str | None:
    """Return the text at a path with `->>` in its canonical text, None for null; raise `FilterFailed` if unreadable."""
    document.begin()
    return _text_reader_of(path)(document)
