"""From the text of a filter to its tree; every error says where (contract 3.1, 3.5)."""

from collections.abc import Iterable
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from subscriptions.filters.json_values import FilterFailed, levels, parse_json, sort_key
from subscriptions.filters.like import compile_like
from subscriptions.filters.tree import (
    HEADER,
    PARTS,
    And,
    Comparison,
    Constant,
    HasKey,
    IsNull,
    Like,
    Node,
    Not,
    OneOf,
    Or,
    Path,
)

MAX_DEPTH: Final = 20
"""Parentheses and negations inside each other; arrays and objects inside each other in a constant."""
MAX_NODES: Final = 200
MAX_BYTES: Final = 4096
MAX_INDEX: Final = 2**31 - 1
OTHER_QUOTES: Final = '\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2032\u2033`\u00b4"'
"""Substitutes by editors and chats: curly, low and reversed quotes, primes, accents; and the double quote."""
DOUBLED: Final = "a quote within a text is doubled: 'it''s'"

Value_co = TypeVar("Value_co", covariant=True)
Operand: TypeAlias = Path | Constant


class Position(NamedTuple):
    """A place in a filter's text; both count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class FilterSyntaxError(ValueError):
    """The text is not a filter; says why, and where."""

    def __init__(self, message: str, position: Position) -> None:
        super().__init__(f"{message} ({position})")
        self.message = message
        self.position = position


def place_of(token: Token) -> Position:
    """Return where a token begins."""
    return Position(token.line or 1, token.column or 1)


@dataclass(frozen=True, slots=True)
class Placed(Generic[Value_co]):
    """An operand and its position."""

    value: Value_co
    at: Position


def step(name: Token) -> str | int:
    """Return a key or an index."""
    if name.startswith("'"):
        return unquoted(name)
    if len(name) > len(str(-MAX_INDEX)) or abs(int(name)) > MAX_INDEX:
        raise FilterSyntaxError(f"An index is at most {MAX_INDEX}", place_of(name))
    return int(name)


def unquoted(quoted: Token) -> str:
    """Return the text between quotes."""
    return quoted[1:-1].replace("''", "'")


def without_case(steps: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the steps with the name of a header, if they lead to one, in lower case (contract 3.2)."""
    match steps:
        case (whole, str(name), *rest) if whole == HEADER:
            return (HEADER, name.lower(), *rest)
    return steps


def check_part(name: str | int, at: Position) -> None:
    """Refuse a first key that no message has: it would always be null."""
    if name not in PARTS:
        raise FilterSyntaxError(f"$$ has only {' and '.join(map(repr, PARTS))}", at)


def check_json(*sides: Placed[Operand] | Placed[Constant]) -> None:
    """Refuse constants that are not JSON, where they are compared with a JSON value."""
    for side in sides:
        if isinstance(side.value, Constant) and (problem := _json_problem(side.value.text)):
            text = f"Beside -> a constant is JSON, as '5' or '\"open\"'; this is not: {problem}"
            raise FilterSyntaxError(text, side.at)


def _json_problem(text: str) -> str:
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
    """A part of the tree, its position and its size."""

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
    """Makes the nodes while the text is parsed, from the leaves up: without recursion, and limits apply early."""

    def path(self, message: Token, *steps: Token) -> Placed[Path]:
        """Return a path; only its last step can give text."""
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
        """Return a comparison; both sides must be of one type."""
        paths = [side.value for side in (left, right) if isinstance(side.value, Path)]
        if not paths:
            raise FilterSyntaxError("One side of a comparison begins with $$", left.at)
        if len({path.as_text for path in paths}) > 1:
            raise FilterSyntaxError("A JSON value (->) and a text (->>) do not compare", place_of(operator))
        if not paths[0].as_text:
            check_json(left, right)
        return Part(Comparison(left.value, str(operator), right.value), left.at, 3)

    def one_of(self, path: Placed[Path], negation: Token | None, *options: Placed[Constant]) -> Part:
        """Return `in`."""
        if not path.value.as_text:
            check_json(*options)
        node = OneOf(path.value, tuple(option.value for option in options), negation is not None)
        return Part(node, path.at, 2 + len(options))

    def like(self, path: Placed[Path], negation: Token | None, pattern: Placed[Constant]) -> Part:
        """Return `like`."""
        if not path.value.as_text:
            raise FilterSyntaxError("Only a text (->>) is like a pattern", path.at)
        try:
            compile_like(pattern.value.text)
        except ValueError as wrong:
            raise FilterSyntaxError(str(wrong), pattern.at) from None
        return Part(Like(path.value, pattern.value, negation is not None), path.at, 3)

    def is_null(self, path: Placed[Path], negation: Token | None) -> Part:
        """Return `is null`."""
        return Part(IsNull(path.value, negation is not None), path.at, 2)

    def has_key(self, path: Placed[Path], key: Placed[Constant]) -> Part:
        """Return `?`; the case of header names does not count."""
        if path.value.as_text:
            raise FilterSyntaxError("Only a JSON value (->) has keys", path.at)
        if not path.value.steps:
            check_part(key.value.text, key.at)
        (*_, name) = without_case((*path.value.steps, key.value.text))
        return Part(HasKey(path.value, Constant(str(name))), path.at, 3)

    def group(self, part: Part) -> Part:
        """Return the part in parentheses."""
        return Part(part.node, part.at, part.nodes, part.depth + 1)

    def negation(self, part: Part) -> Part:
        """Return NOT."""
        return Part(Not(part.node), part.at, part.nodes + 1, part.depth + 1)

    def conjunction(self, *parts: Part) -> Part:
        """Return AND."""
        return _together(And(tuple(part.node for part in parts)), parts)

    def disjunction(self, *parts: Part) -> Part:
        """Return OR."""
        return _together(Or(tuple(part.node for part in parts)), parts)


def _together(node: Node, parts: tuple[Part, ...]) -> Part:
    return Part(node, parts[0].at, 1 + sum(part.nodes for part in parts), max(part.depth for part in parts))


END_OF_TEXT: Final = "$END"
"""Lark's name of the end of its input."""
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
"""The grammar's signs in words; keywords are named by themselves."""


def parse(text: str) -> Node:
    """Return the tree of a filter; raise `FilterSyntaxError` if it is not one, or too large."""
    if (at := text.find("\0")) >= 0:
        raise FilterSyntaxError("A NUL character cannot stand in a filter", _position(text, at))
    try:
        size = len(text.encode())
    except UnicodeEncodeError as broken:
        raise FilterSyntaxError("Half a surrogate pair is no character", _position(text, broken.start)) from None
    if size > MAX_BYTES:
        text_end = _position(text, len(text))
        raise FilterSyntaxError(f"A filter has at most {MAX_BYTES} bytes, this one {size}", text_end)
    return cast("Part", _parsed(text, "filter")).node


def parse_path(text: str) -> Path:
    """Return the path that `text` is; raise `FilterSyntaxError` if it is not a path."""
    return cast("Placed[Path]", _parsed(text, "path")).value


def _parsed(text: str, start: str) -> object:
    try:
        return _GRAMMAR.parse(text, start)
    except (UnexpectedCharacters, UnexpectedToken) as unexpected:
        raise _refusal(text, unexpected) from None


def _refusal(text: str, unexpected: UnexpectedCharacters | UnexpectedToken) -> FilterSyntaxError:
    """Return the error in words for the author of the filter."""
    if isinstance(unexpected, UnexpectedToken):
        token = unexpected.token
        if token.type == END_OF_TEXT:
            return FilterSyntaxError(_expected(unexpected.accepts, "the end"), _position(text, len(text)))
        message = _expected(unexpected.accepts, repr(str(token)[:20])) + _hint(text, token.start_pos or 0)
        return FilterSyntaxError(message, place_of(token))
    if unexpected.char == "'":
        message = f"This quote is not closed, or does not belong here; {DOUBLED}"
    elif unexpected.char in OTHER_QUOTES:
        message = f"{unexpected.char} is not a quote here; use the straight single one: '"
    else:
        message = _expected(unexpected.allowed, repr(unexpected.char))
    hint = _hint(text, unexpected.pos_in_stream or 0)
    return FilterSyntaxError(message + hint, Position(unexpected.line, unexpected.column))


def _hint(text: str, at: int) -> str:
    """Return how to write quotes, if a word begins right after one."""
    return f"; {DOUBLED}" if text[at : at + 1].isalnum() and text[at - 1 : at] == "'" else ""


def _expected(signs: Iterable[str], met: str) -> str:
    names = sorted({SIGNS.get(sign, sign.lstrip("_").upper()) for sign in signs})
    return f"Expected {', '.join(names[:-1])}{' or ' * (len(names) > 1)}{names[-1]}, met {met}"


def _position(text: str, at: int) -> Position:
    return Position(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


_GRAMMAR: Final = Lark.open(
    "grammar.lark", rel_to=__file__, parser="lalr", start=["filter", "path"], transformer=TreeMaker()
)
