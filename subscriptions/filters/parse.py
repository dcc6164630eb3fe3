"""From the text of a filter to its tree; every error says where (contract 3.1, 3.5)."""

from collections.abc import Iterable
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args

from subscriptions.filters.json_values import FilterFailed, levels, parse_json, sort_key
from subscriptions.filters.like import compile_like
from subscriptions.filters.tree import (
    HEADER,
    PARTS,
    All,
    Comparison,
    Constant,
    HasKey,
    IsNull,
    Like,
    Node,
    Not,
    OneOf,
    Path,
    Some,
)

MAX_DEPTH: Final = 20
"""Parentheses and negations inside each other; arrays and objects inside each other in a constant."""
LARGEST_INDEX: Final = 2**31 - 1

Value_co = TypeVar("Value_co", covariant=True)
Operand: TypeAlias = Path | Constant

MAX_NODES: Final = 200

MAX_BYTES: Final = 4096
OTHER_QUOTES: Final = '\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2032\u2033`\u00b4"'
"""What editors and chats make of quotes: curly, low, reversed, primes, accents; and the double one."""
DOUBLED: Final = "a quote within a text is doubled: 'it''s'"
SHOWN: Final = 20
"""So many characters of what was not expected are shown."""


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


@dataclass(frozen=True, slots=True)
class Placed(Generic[Value_co]):
    """An operand and where it stands."""

    value: Value_co
    at: Position


def step(name: Token) -> str | int:
    """Return a key or an index as it stands in the text."""
    if name.startswith("'"):
        return unquoted(name)
    if len(name) > len(str(-LARGEST_INDEX)) or abs(int(name)) > LARGEST_INDEX:
        raise FilterSyntaxError(f"An index is at most {LARGEST_INDEX}", place_of(name))
    return int(name)


def unquoted(quoted: Token) -> str:
    """Return what stands between quotes."""
    return quoted[1:-1].replace("''", "'")


def without_case(steps: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the steps with the name of a header, if they lead to one, in lower case (contract 3.2)."""
    match steps:
        case (whole, str(name), *rest) if whole == HEADER:
            return (HEADER, name.lower(), *rest)
    return steps


def check_part(name: str | int, at: Position) -> None:
    """Refuse what no message has right behind `$$`: it would be null for every one."""
    if name not in PARTS:
        raise FilterSyntaxError(f"$$ has only {' and '.join(map(repr, PARTS))}", at)


def check_json(*sides: Placed[Operand] | Placed[Constant]) -> None:
    """Refuse constants that are not JSON: beside a JSON value they must be."""
    for side in sides:
        if isinstance(side.value, Constant):
            problem = _problem_of(side.value.text)
            if problem:
                raise FilterSyntaxError(
                    f"Beside -> a constant is JSON, as '5' or '\"open\"'; this is not: {problem}", side.at
                )


def _problem_of(text: str) -> str:
    try:
        value = parse_json(text)
        if levels(value) > MAX_DEPTH:
            return "nested too deep"
        sort_key(value)
    except JSONDecodeError as broken:
        return broken.msg
    except (ValueError, FilterFailed) as refused:
        return str(refused)
    except RecursionError:
        return "nested too deep"
    return ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the tree, where it begins, and how big it is."""

    node: Node
    at: Position
    nodes: int
    depth: int = 0

    def __post_init__(self) -> None:
        if self.nodes > MAX_NODES:
            raise FilterSyntaxError(f"A filter has at most {MAX_NODES} nodes; here begins more", self.at)
        if self.depth > MAX_DEPTH:
            raise FilterSyntaxError(f"A filter is nested at most {MAX_DEPTH} deep; here it is deeper", self.at)


@v_args(inline=True)
class TreeMaker(Transformer[Token, Part]):
    """Makes the nodes while the text is parsed, from the leaves up: no recursion, and limits end it early."""

    def path(self, message: Token, *steps: Token) -> Placed[Path]:
        """Return a place in the message; only its last step gives text."""
        arrows, names = steps[::2], steps[1::2]
        for arrow in arrows[:-1]:
            if arrow == "->>":
                raise FilterSyntaxError(
                    "Only the last arrow is ->>: it gives text, which has no parts", place_of(arrow)
                )
        for name in names[:1]:
            check_part(step(name), place_of(name))
        as_text = bool(arrows) and arrows[-1] == "->>"
        return Placed(Path(without_case(tuple(map(step, names))), as_text), place_of(message))

    def constant(self, quoted: Token) -> Placed[Constant]:
        """Return a constant."""
        return Placed(Constant(unquoted(quoted)), place_of(quoted))

    def comparison(self, left: Placed[Operand], operator: Token, right: Placed[Operand]) -> Part:
        """Return a comparison; its sides must be of one type."""
        paths = [side.value for side in (left, right) if isinstance(side.value, Path)]
        if not paths:
            raise FilterSyntaxError("One side of a comparison begins with $$", left.at)
        if len({path.as_text for path in paths}) > 1:
            raise FilterSyntaxError("A JSON value (->) and a text (->>) do not compare", place_of(operator))
        if not paths[0].as_text:
            check_json(left, right)
        return Part(Comparison(left.value, str(operator), right.value), left.at, 3)

    def one_of(self, path: Placed[Path], negation: Token | None, *options: Placed[Constant]) -> Part:
        """Return whether a value is one of several."""
        if not path.value.as_text:
            check_json(*options)
        node = OneOf(path.value, tuple(option.value for option in options), negation is not None)
        return Part(node, path.at, 2 + len(options))

    def like(self, path: Placed[Path], negation: Token | None, pattern: Placed[Constant]) -> Part:
        """Return whether a text looks like a pattern."""
        if not path.value.as_text:
            raise FilterSyntaxError("Only a text (->>) is like a pattern", path.at)
        try:
            compile_like(pattern.value.text)
        except ValueError as wrong:
            raise FilterSyntaxError(str(wrong), pattern.at) from None
        return Part(Like(path.value, pattern.value, negation is not None), path.at, 3)

    def is_null(self, path: Placed[Path], negation: Token | None) -> Part:
        """Return whether nothing is there."""
        return Part(IsNull(path.value, negation is not None), path.at, 2)

    def has_key(self, path: Placed[Path], key: Placed[Constant]) -> Part:
        """Return whether an object has a key; headers' names have no case."""
        if path.value.as_text:
            raise FilterSyntaxError("Only a JSON value (->) has keys", path.at)
        if not path.value.steps:
            check_part(key.value.text, key.at)
        (*_, name) = without_case((*path.value.steps, key.value.text))
        return Part(HasKey(path.value, Constant(str(name))), path.at, 3)

    def group(self, part: Part) -> Part:
        """Return what stands in parentheses."""
        return Part(part.node, part.at, part.nodes, part.depth + 1)

    def negation(self, part: Part) -> Part:
        """Return the opposite."""
        return Part(Not(part.node), part.at, part.nodes + 1, part.depth + 1)

    def all(self, *parts: Part) -> Part:
        """Return what holds if all parts hold."""
        return _together(All(tuple(part.node for part in parts)), parts)

    def some(self, *parts: Part) -> Part:
        """Return what holds if one part holds."""
        return _together(Some(tuple(part.node for part in parts)), parts)


def _together(node: Node, parts: tuple[Part, ...]) -> Part:
    return Part(node, parts[0].at, 1 + sum(part.nodes for part in parts), max(part.depth for part in parts))


END_OF_TEXT: Final = "$END"
"""What lark calls the end of its input."""
SIGNS: Final = {
    END_OF_TEXT: "the end",
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
        if unexpected.token.type == END_OF_TEXT:
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
