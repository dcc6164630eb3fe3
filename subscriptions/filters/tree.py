"""The tree of a filter; its text is canonical."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

HEADER: Final = "Header"
BODY: Final = "Body"
PARTS: Final = (HEADER, BODY)
"""The parts of a message, as $$ has them."""


@dataclass(frozen=True, slots=True)
class Path:
    """A place in a message; `as_text` where it ends with `->>`."""

    steps: tuple[str | int, ...]
    as_text: bool

    def __str__(self) -> str:
        arrows = ["->"] * len(self.steps)
        arrows[-1:] = ["->>" if self.as_text else arrow for arrow in arrows[-1:]]
        return "$$" + "".join(arrow + _written(step) for arrow, step in zip(arrows, self.steps, strict=True))


@dataclass(frozen=True, slots=True)
class Constant:
    """A quoted text; compared with a path that gives JSON it is JSON."""

    text: str

    def __str__(self) -> str:
        return _written(self.text)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values, at least one of them in the message, of the same type: both JSON or both text."""

    left: Path | Constant
    operator: str
    right: Path | Constant

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a value is one of several."""

    path: Path
    options: tuple[Constant, ...]
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.path} {'not ' * self.negated}in ({', '.join(map(str, self.options))})"


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a text matches a pattern."""

    path: Path
    pattern: Constant
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.path} {'not ' * self.negated}like {self.pattern}"


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a value is missing, or null as text."""

    path: Path
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.path} is {'not ' * self.negated}null"


@dataclass(frozen=True, slots=True)
class HasKey:
    """Whether an object has a key, or an array a text."""

    path: Path
    key: Constant

    def __str__(self) -> str:
        return f"{self.path} ? {self.key}"


@dataclass(frozen=True, slots=True)
class Not:
    """NOT; of unknown, unknown."""

    part: "Node"

    def __str__(self) -> str:
        return f"NOT {_inside(self.part)}"


@dataclass(frozen=True, slots=True)
class And:
    """True if all parts are true, false if one is false."""

    parts: tuple["Node", ...]

    def __str__(self) -> str:
        return " AND ".join(map(_inside, self.parts))


@dataclass(frozen=True, slots=True)
class Or:
    """True if one part is true, false if all are false."""

    parts: tuple["Node", ...]

    def __str__(self) -> str:
        return " OR ".join(map(_inside, self.parts))


Term: TypeAlias = Comparison | OneOf | Like | IsNull | HasKey
Node: TypeAlias = Term | Not | And | Or


def _inside(node: Node) -> str:
    return f"({node})" if isinstance(node, And | Or | Not) else str(node)


def _written(step: str | int) -> str:
    return str(step) if isinstance(step, int) else "'" + step.replace("'", "''") + "'"


def terms_of(node: Node) -> Iterator[Node]:
    """Yield what AND and OR connect, in the order of the text; a single term keeps its NOT."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from terms_of(part)
        case Not(And() | Or() | Not() as part):
            yield from terms_of(part)
        case _:
            yield node


def paths_of(term: Node) -> list[Path]:
    """Return the paths of a term, in the order of its text."""
    match term:
        case Comparison(left, _, right):
            return [side for side in (left, right) if isinstance(side, Path)]
        case Not(part):
            return paths_of(part)
        case And() | Or():
            return []
        case _:
            return [term.path]


def equality_of(node: Node) -> tuple[str, str] | None:
    """Return the first `path ->> = 'constant'` without which the filter cannot be true: path and constant, or None."""
    match node:
        case And(parts):
            return next((found for part in parts if (found := equality_of(part))), None)
        case Comparison(Path(as_text=True) as path, "=", Constant(text)) | Comparison(
            Constant(text), "=", Path(as_text=True) as path
        ):
            return str(path), text
    return None
