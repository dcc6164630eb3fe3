"""Random data: JSON texts, filters for them, and histories drawn from a seed."""

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from subscriptions.filters.tree import (
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
    Term,
)

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
KEYS = ["a", "b", "aa", "é", "z", "b c", "it's"]

SIGNS = ["=", "!=", "<", "<=", ">", ">="]

Draw = Callable[[Random], Any]
Method = TypeVar("Method", bound=Callable[..., None])


def json_texts() -> st.SearchStrategy[str]:
    """Texts of which many are alike, and some are numbers, words of JSON or signs of patterns."""
    words = st.sampled_from(["", "a", "b", "ab", "aab", "true", "null", "5", "1.50", "100", "a%", "_", "\\", "😀", "é"])
    return words | st.text("ab%_\\", max_size=6) | st.text(CHARACTERS, max_size=6)


def json_numbers() -> st.SearchStrategy[str]:
    small = st.sampled_from(
        ["0", "-0", "-0.0", "0e5", "0.00", "1", "1.0", "1.50", "1e2", "1.5E+1", "15e-1", "-2", "100"]
    )
    exponents = st.integers(-300, 300).map(lambda exponent: f"1.20e{exponent}")
    return small | exponents | st.integers().map(str) | st.decimals(-99, 99, places=3).map(lambda number: f"{number:f}")


def json_values(leaves: int = 8) -> st.SearchStrategy[str]:
    """JSON texts of any value."""
    scalars = st.sampled_from(["true", "false", "null", "{}", "[]"]) | json_numbers() | json_texts().map(json.dumps)
    return st.recursive(
        scalars, lambda inside: st.lists(inside, max_size=4).map(_array) | _objects(inside), max_leaves=leaves
    )


def _objects(inside: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(st.sampled_from(KEYS), inside).map(lambda member: f"{json.dumps(member[0])} :{member[1]}")
    return st.lists(members, max_size=4).map(lambda parts: f"{{{', '.join(parts)}}}")


def _array(parts: Sequence[str]) -> str:
    return f"[{' ,'.join(parts)}]"


def filters() -> st.SearchStrategy[Node]:
    """Trees of which every one can be written as a filter."""
    return st.recursive(terms(), _connected, max_leaves=5)


def terms() -> st.SearchStrategy[Term]:
    texts, jsons = paths(as_text=True), paths(as_text=False)
    constants = json_texts().map(Constant)
    json_constants = json_values(leaves=3).map(Constant)
    return st.one_of(
        _comparisons(texts, constants | texts),
        _comparisons(constants, texts),
        _comparisons(jsons, json_constants | jsons),
        _comparisons(json_constants, jsons),
        _choices(texts, constants),
        _choices(jsons, json_constants),
        st.builds(Like, texts, constants.filter(_is_pattern), st.booleans()),
        st.builds(IsNull, texts | jsons, st.booleans()),
        st.builds(HasKey, jsons, st.sampled_from(KEYS).map(Constant) | constants),
    )


def paths(*, as_text: bool) -> st.SearchStrategy[Path]:
    """Paths that often lead somewhere."""
    whole = st.sampled_from(PARTS) if as_text else st.just("Body")
    steps = st.sampled_from(KEYS) | st.integers(-3, 3)
    return st.builds(lambda first, rest: Path((first, *rest), as_text), whole, st.lists(steps, max_size=2))


def _comparisons(
    left: st.SearchStrategy[Path | Constant], right: st.SearchStrategy[Path | Constant]
) -> st.SearchStrategy[Comparison]:
    return st.builds(Comparison, left, st.sampled_from(SIGNS), right)


def _choices(paths: st.SearchStrategy[Path], constants: st.SearchStrategy[Constant]) -> st.SearchStrategy[OneOf]:
    return st.builds(OneOf, paths, st.lists(constants, min_size=1, max_size=3).map(tuple), st.booleans())


def _connected(inside: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inside, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, inside) | st.builds(And, several) | st.builds(Or, several)


def _is_pattern(constant: Constant) -> bool:
    trailing = len(constant.text) - len(constant.text.rstrip("\\"))
    return trailing % 2 == 0


class RandomHistory:
    """The methods of a class that may be called, in any order."""

    def __init__(self) -> None:
        self._often: dict[str, int] = {}
        self._arguments: dict[str, dict[str, Draw]] = {}

    def happens(self, often: int = 1, **arguments: Draw) -> Callable[[Method], Method]:
        """Let a method be one of them, that often as likely as others, with arguments that are drawn."""

        def register(method: Method) -> Method:
            self._often[method.__name__], self._arguments[method.__name__] = often, arguments
            return method

        return register

    def drawn(self, random: Random, steps: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Draw what happens: the names of methods, and their arguments."""
        for name in random.choices([*self._often], [*self._often.values()], k=steps):
            yield name, {argument: draw(random) for argument, draw in self._arguments[name].items()}


def one_of(*choices: object) -> Draw:
    return lambda random: random.choice(choices)


def some_of(choices: range) -> Draw:
    """Draw one to four."""
    return lambda random: random.choices(choices, k=random.randint(1, 4))
