"""What a message looks like to filters: an object with `Header` and `Body` (behaviour 3.1, 3.2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

from subscriptions.filters.parsing import parse_path
from subscriptions.filters.printing import text_of
from subscriptions.filters.tree import Path
from subscriptions.filters.values import MISSING, FilterFailed, Json, Missing, parse_json

KNOWN_PATHS: Final = 4096


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of a body that should be JSON and cannot be read as such."""

    reason: str


class Document:
    """A message, parsed when the first filter looks into it and then no more."""

    def __init__(self, headers: Sequence[tuple[str, str]], body: bytes, *, is_json: bool) -> None:
        self._headers = headers
        self._body = body
        self._is_json = is_json

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
        return text_reader(_path(path))(self)

    @cached_property
    def _parsed_body(self) -> Json | Unreadable:
        try:
            text = self._body.decode()
        except UnicodeDecodeError:
            return None
        try:
            return parse_json(text) if self._is_json else text
        except ValueError as broken:
            return Unreadable(f"the body is not JSON: {broken}")
        except RecursionError:
            return Unreadable("the body is nested too deep")


Reader: TypeAlias = Callable[[Document], Json | Missing]
TextReader: TypeAlias = Callable[[Document], str | None]

WHOLE: Final[dict[str | int, Reader]] = {
    "Header": lambda document: document.headers,
    "Body": lambda document: document.body,
}


def reader(path: Path) -> Reader:
    """Return what reads the JSON value at `path`; it gives `MISSING` where there is nothing."""
    if not path.steps:
        return lambda document: {"Header": document.headers, "Body": document.body}
    first, *steps = path.steps
    whole = WHOLE.get(first, _nothing)

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
        if isinstance(value, str):
            return value
        return None if value is MISSING else text_of(value)

    return read_text


def _element(value: Json | Missing, step: str | int) -> Json | Missing:
    """Return an element of a list; counted from the end if negative. A lone scalar is a list of one, to jsonb."""
    if value is MISSING or not isinstance(step, int):
        return MISSING
    elements = value if isinstance(value, list) else [value]
    return elements[step] if -len(elements) <= step < len(elements) else MISSING


def _nothing(_document: Document) -> Missing:
    return MISSING


@lru_cache(KNOWN_PATHS)
def _path(text: str) -> Path:
    return parse_path(text)
