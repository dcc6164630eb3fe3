"""Where something stands in a filter's text, and what is wrong there."""

from typing import NamedTuple

from lark import Token


class Position(NamedTuple):
    """A place in a filter's text; both count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class FilterSyntaxError(ValueError):
    """A text is not a filter; says why, and where."""

    def __init__(self, message: str, position: Position) -> None:
        super().__init__(f"{message} ({position})")
        self.message = message
        self.position = position


def place_of(token: Token) -> Position:
    """Return where a token begins."""
    return Position(token.line or 1, token.column or 1)
