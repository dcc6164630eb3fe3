"""What a message looks like to filters: an object with `Header` and `Body` (behaviour 3.1, 3.2)."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Final, TypeAlias, TypeVar, cast

from subscriptions.filters.bodies import Unreadable, parse_body
from subscriptions.filters.parsing import parse_path
from subscriptions.filters.printing import text_of
from subscriptions.filters.tree import Path
from subscriptions.filters.values import MISSING, FilterFailed, Json, Missing, SortKey, sort_key
from subscriptions.filters.work import COMPARED, Work

KNOWN_PATHS: Final = 4096
MOST_READ: Final = 4 * 2**20
"""A filter that reads more characters fails: many terms that each read a large body would take seconds."""
SHORT: Final = 1024
"""Texts of up to so many characters are compared without being counted."""

Made = TypeVar("Made", str | None, SortKey)


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
        if self._read > MOST_READ:
            raise FilterFailed(f"the filter reads more than {MOST_READ} characters of the message")

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

    def text_at(self, path: str) -> str | None:
        """Return what a path with `->>`, in its canonical text, gives; None for null.

        Raises:
            FilterFailed: what is there cannot be read.

        """
        self.begin()
        return _text_reader_of(path)(self)

    @cached_property
    def _parsed_body(self) -> Json | Unreadable:
        return parse_body(self._body, is_json=self._is_json)


Reader: TypeAlias = Callable[[Document], Json | Missing]
TextReader: TypeAlias = Callable[[Document], str | None]
KeyReader: TypeAlias = Callable[[Document], SortKey | None]

WHOLE: Final[dict[str | int, Reader]] = {"Header": lambda one: one.headers, "Body": lambda one: one.body}


def reader(path: Path) -> Reader:
    """Return what reads the JSON value at `path`; it gives `MISSING` where there is nothing."""
    if not path.steps:
        return lambda document: {"Header": document.headers, "Body": document.body}
    first, *steps = path.steps
    if first not in WHOLE:
        return lambda _document: MISSING
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


def _element(value: Json | Missing, step: str | int) -> Json | Missing:
    """Return an element of a list; counted from the end if negative. A lone scalar is a list of one, to jsonb."""
    if value is MISSING or not isinstance(step, int):
        return MISSING
    elements = value if isinstance(value, list) else [value]
    return elements[step] if -len(elements) <= step < len(elements) else MISSING


@lru_cache(KNOWN_PATHS)
def _text_reader_of(path: str) -> TextReader:
    return text_reader(parse_path(path))
