"""What becomes of each rule of the grammar: a node of the tree, or a refusal that says where."""

from dataclasses import dataclass
from typing import Final

from lark import Token, Transformer, v_args

from subscriptions.filters.like import compile_like
from subscriptions.filters.operands import (
    MAX_DEPTH,
    Operand,
    Placed,
    check_json,
    check_part,
    step,
    unquoted,
    without_case,
)
from subscriptions.filters.positions import FilterSyntaxError, Position, place_of
from subscriptions.filters.tree import All, Comparison, Constant, HasKey, IsNull, Like, Node, Not, OneOf, Path, Some

MAX_NODES: Final = 200


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
