"""Filters for the values of `tests.json_texts`: true, false and unknown, all of them often."""

from hypothesis import strategies as st

from subscriptions.filters.tree import (
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
    Term,
)
from tests import json_texts

SIGNS = ["=", "!=", "<", "<=", ">", ">="]


def filters() -> st.SearchStrategy[Node]:
    """Trees of which every one can be written as a filter."""
    return st.recursive(terms(), _connected, max_leaves=5)


def terms() -> st.SearchStrategy[Term]:
    texts, jsons = paths(as_text=True), paths(as_text=False)
    constants = json_texts.texts().map(Constant)
    json_constants = json_texts.values(leaves=3).map(Constant)
    return st.one_of(
        _comparisons(texts, constants | texts),
        _comparisons(constants, texts),
        _comparisons(jsons, json_constants | jsons),
        _comparisons(json_constants, jsons),
        _choices(texts, constants),
        _choices(jsons, json_constants),
        st.builds(Like, texts, constants.filter(_is_pattern), st.booleans()),
        st.builds(IsNull, texts | jsons, st.booleans()),
        st.builds(HasKey, jsons, st.sampled_from(json_texts.KEYS).map(Constant) | constants),
    )


def paths(*, as_text: bool) -> st.SearchStrategy[Path]:
    """Paths that often lead somewhere."""
    whole = st.sampled_from(PARTS) if as_text else st.just("Body")
    steps = st.sampled_from(json_texts.KEYS) | st.integers(-3, 3)
    return st.builds(lambda first, rest: Path((first, *rest), as_text), whole, st.lists(steps, max_size=2))


def _comparisons(
    left: st.SearchStrategy[Path | Constant], right: st.SearchStrategy[Path | Constant]
) -> st.SearchStrategy[Comparison]:
    return st.builds(Comparison, left, st.sampled_from(SIGNS), right)


def _choices(paths: st.SearchStrategy[Path], constants: st.SearchStrategy[Constant]) -> st.SearchStrategy[OneOf]:
    return st.builds(OneOf, paths, st.lists(constants, min_size=1, max_size=3).map(tuple), st.booleans())


def _connected(inside: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inside, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, inside) | st.builds(All, several) | st.builds(Some, several)


def _is_pattern(constant: Constant) -> bool:
    trailing = len(constant.text) - len(constant.text.rstrip("\\"))
    return trailing % 2 == 0
