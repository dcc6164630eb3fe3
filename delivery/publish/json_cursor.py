"""Read JSON and keep the text of its parts: a batch's bodies are stored as they were sent (contract 2.5)."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from broker_project.core.json import refuse_constant

_BLANK: Final = re.compile(r"[ \t\n\r]*")


class NotAsExpected(ValueError):
    """The text is not JSON, or does not have the expected shape."""


GRAMMAR: Final = json.JSONDecoder(parse_int=float, parse_constant=refuse_constant)
"""Reads every number as a float: their values are not used, and one of 5,000 digits costs nothing."""


class JsonCursor:
    """Walks through a JSON text once; the caller takes each value, or walks into it, before the next."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._skip_blanks()

    def members(self) -> Iterator[str]:
        """Walk into the next object; yield each member's name, with its value next."""
        names: set[str] = set()
        for _ in self._parts("{", "}"):
            name, _ = self.value()
            if not isinstance(name, str):
                raise self._wrong("a member's name")
            if name in names:
                raise NotAsExpected(f"the member {name[:100]!r} stands twice")
            names.add(name)
            self._take(":")
            yield name

    def elements(self) -> Iterator[None]:
        """Walk into the next array; yield with each element next."""
        return self._parts("[", "]")

    def value(self) -> tuple[Any, str]:
        """Take the next value: return it, with numbers as floats, and its text."""
        begin = self._at
        try:
            value, self._at = GRAMMAR.raw_decode(self._text, begin)
        except RecursionError:
            raise NotAsExpected(f"the value at character {begin} is nested too deep") from None
        except json.JSONDecodeError as broken:
            raise NotAsExpected(f"{broken.msg} at character {broken.pos}") from None
        except ValueError as broken:
            raise NotAsExpected(str(broken)) from None
        text = self._text[begin : self._at]
        self._skip_blanks()
        return value, text

    def end(self) -> None:
        """Raise `NotAsExpected` unless the text ends here."""
        if self._at < len(self._text):
            raise self._wrong("the end")

    def _parts(self, opening: str, closing: str) -> Iterator[None]:
        self._take(opening)
        is_first = True
        while not self._has_taken(closing):
            if not is_first:
                self._take(",")
            is_first = False
            yield

    def _has_taken(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += 1
        self._skip_blanks()
        return True

    def _take(self, sign: str) -> None:
        if not self._has_taken(sign):
            raise self._wrong(repr(sign))

    def _skip_blanks(self) -> None:
        if self._text[self._at : self._at + 1].isspace() and (blank := _BLANK.match(self._text, self._at)):
            self._at = blank.end()

    def _wrong(self, expected: str) -> NotAsExpected:
        return NotAsExpected(f"{expected} is missing at character {self._at}")
