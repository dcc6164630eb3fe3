"""Reading JSON without losing the text of its parts: a batch's bodies are stored as they were sent (contract 2.5)."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_BLANK: Final = re.compile(r"[ \t\n\r]*")


class NotAsExpected(ValueError):
    """The text is not JSON, or not of the shape that is read."""


def _refuse_constant(name: str) -> Any:
    raise NotAsExpected(f"{name} is not a JSON value")


_DECODER: Final = json.JSONDecoder(parse_int=float, parse_constant=_refuse_constant)
"""Makes a float of any number: none is ever needed here, and one of 5,000 digits costs nothing."""


class JsonCursor:
    """Walks through a JSON text once; whoever walks takes each value, or walks into it, before going on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._skip_blanks()

    def members(self) -> Iterator[str]:
        """Walk into the object that comes next: yield each member's name, standing before its value."""
        names: set[str] = set()
        for _ in self._parts("{", "}"):
            name, _ = self.value()
            if not isinstance(name, str):
                raise self._wrong("a member's name")
            if name in names:
                raise NotAsExpected(f"the member {name!r} stands twice")
            names.add(name)
            self._take(":")
            yield name

    def elements(self) -> Iterator[None]:
        """Walk into the array that comes next: yield standing before each element."""
        return self._parts("[", "]")

    def value(self) -> tuple[Any, str]:
        """Take the value that comes next: what it is, every number a float, and its text as it stands there."""
        begin = self._at
        try:
            value, self._at = _DECODER.raw_decode(self._text, begin)
        except RecursionError:
            raise NotAsExpected(f"the value at character {begin} is nested too deep") from None
        except json.JSONDecodeError as broken:
            raise NotAsExpected(f"{broken.msg} at character {broken.pos}") from None
        text = self._text[begin : self._at]
        self._skip_blanks()
        return value, text

    def end(self) -> None:
        """Make sure that nothing comes next."""
        if self._at < len(self._text):
            raise self._wrong("the end")

    def _parts(self, opening: str, closing: str) -> Iterator[None]:
        self._take(opening)
        if self._comes(closing):
            self._take(closing)
            return
        while True:
            yield
            if self._comes(closing):
                self._take(closing)
                return
            self._take(",")

    def _comes(self, sign: str) -> bool:
        return self._text.startswith(sign, self._at)

    def _take(self, sign: str) -> None:
        if not self._comes(sign):
            raise self._wrong(repr(sign))
        self._at += 1
        self._skip_blanks()

    def _skip_blanks(self) -> None:
        if self._text[self._at : self._at + 1].isspace() and (blank := _BLANK.match(self._text, self._at)):
            self._at = blank.end()

    def _wrong(self, expected: str) -> NotAsExpected:
        return NotAsExpected(f"{expected} is missing at character {self._at}")
