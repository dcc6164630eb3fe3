"""From the text of a filter to its tree; every refusal says where (behaviour 3.1, 3.5)."""

from collections.abc import Iterable
from typing import Final, cast

from lark import Lark, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from subscriptions.filters.operands import Placed
from subscriptions.filters.parse import Part, TreeMaker
from subscriptions.filters.positions import FilterSyntaxError, Position, place_of
from subscriptions.filters.tree import Node, Path

MAX_BYTES: Final = 4096
OTHER_QUOTES: Final = '\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2032\u2033`\u00b4"'
"""What editors and chats make of quotes: curly, low, reversed, primes, accents; and the double one."""
DOUBLED: Final = "a quote within a text is doubled: 'it''s'"
SHOWN: Final = 20
"""So many characters of what was not expected are shown."""

SIGNS: Final = {
    "$END": "the end",
    "ARROW": "an arrow",
    "COMPARISON": "a comparison",
    "INDEX": "an index",
    "KEY": "a text in quotes",
    "LPAR": "'('",
    "MESSAGE": "$$",
    "QMARK": "'?'",
    "RPAR": "')'",
    "COMMA": "','",
}
"""What the grammar's signs are called; keywords bear their own names."""


def parse(text: str) -> Node:
    """Return the tree of a filter.

    Raises:
        FilterSyntaxError: it is not a filter, or too large a one.

    """
    _check_characters(text)
    part = cast("Part", _parsed(text, "filter"))
    return part.node


def parse_path(text: str) -> Path:
    """Return the path that `text` is; raise `FilterSyntaxError` if it is none."""
    placed = cast("Placed[Path]", _parsed(text, "path"))
    return placed.value


def _parsed(text: str, start: str) -> object:
    try:
        return _GRAMMAR.parse(text, start)
    except UnexpectedInput as unexpected:
        raise _refusal(text, unexpected) from None


def _check_characters(text: str) -> None:
    """Refuse what cannot be stored, and what is too long to be read."""
    if (at := text.find("\0")) >= 0:
        raise FilterSyntaxError("A NUL character cannot stand in a filter", _position(text, at))
    try:
        size = len(text.encode())
    except UnicodeEncodeError as broken:
        raise FilterSyntaxError("Half a surrogate pair is no character", _position(text, broken.start)) from None
    if size > MAX_BYTES:
        raise FilterSyntaxError(f"A filter has at most {MAX_BYTES} bytes, this one {size}", _position(text, len(text)))


def _refusal(text: str, unexpected: UnexpectedInput) -> FilterSyntaxError:
    """Return what is wrong, in words for those who wrote the filter."""
    if isinstance(unexpected, UnexpectedToken):
        if unexpected.token.type == "$END":
            return FilterSyntaxError(_expected(unexpected.accepts, "the end"), _end_of(text))
        met = repr(str(unexpected.token)[:SHOWN])
        hint = _hint(text, unexpected.token.start_pos or 0)
        return FilterSyntaxError(_expected(unexpected.accepts, met) + hint, place_of(unexpected.token))
    if not isinstance(unexpected, UnexpectedCharacters):
        return FilterSyntaxError("This is no filter", _end_of(text))
    hint = _hint(text, unexpected.pos_in_stream or 0)
    return FilterSyntaxError(_misread(unexpected) + hint, Position(unexpected.line, unexpected.column))


def _hint(text: str, at: int) -> str:
    """Return how quotes are written where a word begins right behind one."""
    return f"; {DOUBLED}" if text[at : at + 1].isalnum() and text[at - 1 : at] == "'" else ""


def _misread(unexpected: UnexpectedCharacters) -> str:
    sign = unexpected.char
    if sign == "'":
        return f"This quote is not closed, or does not belong here; {DOUBLED}"
    if sign in OTHER_QUOTES:
        return f"{sign} is not a quote here; use the straight single one: '"
    return _expected(unexpected.allowed, repr(sign))


def _expected(signs: Iterable[str], met: str) -> str:
    names = sorted({SIGNS.get(sign, sign.lstrip("_").upper()) for sign in signs})
    return f"Expected {', '.join(names[:-1])}{' or ' * (len(names) > 1)}{names[-1]}, met {met}"


def _end_of(text: str) -> Position:
    return _position(text, len(text))


def _position(text: str, at: int) -> Position:
    return Position(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


_GRAMMAR: Final = Lark.open(
    "grammar.lark", rel_to=__file__, parser="lalr", start=["filter", "path"], transformer=TreeMaker()
)
