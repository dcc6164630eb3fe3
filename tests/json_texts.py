"""JSON as senders write it: numbers in every notation, keys that stand twice, blanks; all that PostgreSQL takes."""

import json
from collections.abc import Sequence

from hypothesis import strategies as st

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
KEYS = ["a", "b", "aa", "é", "z", "b c", "it's"]


def texts() -> st.SearchStrategy[str]:
    """Texts of which many are alike, and some are numbers, words of JSON or signs of patterns."""
    words = st.sampled_from(["", "a", "b", "ab", "aab", "true", "null", "5", "1.50", "100", "a%", "_", "\\", "😀", "é"])
    return words | st.text("ab%_\\", max_size=6) | st.text(CHARACTERS, max_size=6)


def numbers() -> st.SearchStrategy[str]:
    small = st.sampled_from(
        ["0", "-0", "-0.0", "0e5", "0.00", "1", "1.0", "1.50", "1e2", "1.5E+1", "15e-1", "-2", "100"]
    )
    exponents = st.integers(-300, 300).map(lambda exponent: f"1.20e{exponent}")
    return small | exponents | st.integers().map(str) | st.decimals(-99, 99, places=3).map(lambda number: f"{number:f}")


def values(leaves: int = 8) -> st.SearchStrategy[str]:
    """JSON texts of any value."""
    scalars = st.sampled_from(["true", "false", "null", "{}", "[]"]) | numbers() | texts().map(json.dumps)
    return st.recursive(
        scalars, lambda inside: st.lists(inside, max_size=4).map(_array) | _objects(inside), max_leaves=leaves
    )


def _objects(inside: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(st.sampled_from(KEYS), inside).map(lambda member: f"{json.dumps(member[0])} :{member[1]}")
    return st.lists(members, max_size=4).map(lambda parts: f"{{{', '.join(parts)}}}")


def _array(parts: Sequence[str]) -> str:
    return f"[{' ,'.join(parts)}]"
