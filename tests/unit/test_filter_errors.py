"""Texts that are no filters: what is wrong, and where (behaviour 3.5)."""

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.filters import FilterSyntaxError, Position, parse_filter, validate_filter

TERM = "$$->>'a' = 'b'"


@pytest.mark.behaviour("3.5")
@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "met the end"),
        ("state = 'open'", 1, 1, "Expected $$"),
        (f"{TERM} and", 1, 19, "met the end"),
        (f"{TERM}\n  and\n  or {TERM}", 3, 3, "met 'or'"),
        (f"({TERM}", 1, 16, "')'"),
        (f"{TERM})", 1, 15, "met ')'"),
        (f"{TERM} {TERM}", 1, 16, "Expected AND, OR or the end"),
        ("$$->>a = 'b'", 1, 6, "a text in quotes or an index"),
        ("$$->>'a' = 5", 1, 12, "Expected $$ or a text in quotes"),
        ("$$->>'a' == 'b'", 1, 11, "met '='"),
        ("$$->>'a' = 'b", 1, 12, "not closed"),
        ("$$->>'a' = 'it's'", 1, 16, "doubled: 'it''s'"),
        ("$$->>'a' = 'that'is'", 1, 18, "doubled: 'it''s'"),
        ("$$->>'a' = \u2018b\u2019", 1, 12, "straight"),
        ("$$->>\"a\" = 'b'", 1, 6, "straight"),
        ("$$->>'a\0' = 'b'", 1, 8, "NUL"),
        ("$$->>'\ud800' = 'b'", 1, 7, "surrogate"),
        ("$$->>'a'->'b' = '1'", 1, 3, "Only the last arrow"),
        ("$$->'a' = 'open'", 1, 11, "is JSON"),
        ("$$->'a' = 'NaN'", 1, 11, "NaN"),
        ("$$->'a' = '1e999999'", 1, 11, "more than 131072 digits"),
        (f"$$->'a' = '{'[' * 21 + ']' * 21}'", 1, 11, "nested too deep"),
        (f"$$->'a' = '{'[' * 4000}'", 1, 11, "nested too deep"),
        (f"$$->'a' > '{'[' * 500 + ']' * 500}'", 1, 11, "nested too deep"),
        ("$$->'a' in ('1', 'b')", 1, 18, "is JSON"),
        ("$$->'a' = $$->>'b'", 1, 9, "do not compare"),
        ("'a' = 'b'", 1, 1, "One side"),
        ("$$->'a' like 'b'", 1, 1, "Only a text"),
        ("$$->>'a' ? 'b'", 1, 1, "has keys"),
        ("$$->>'a' like 'b\\'", 1, 15, "lone backslash"),
        ("$$->2147483648 is null", 1, 5, "at most 2147483647"),
        (f"$$->{'9' * 4000} is null", 1, 5, "at most 2147483647"),
        ("$$->>'a' = 'b'; drop table x", 1, 15, "met ';'"),
        ("x" * 4097, 1, 4098, "at most 4096 bytes"),
        (f"$$->>'a' = '{'é' * 2048}'", 1, 2062, "at most 4096 bytes"),
        ("(" * 100 + TERM + ")" * 100, 1, 101, "at most 20 deep"),
        ("not " * 1000 + TERM, 1, 4001, "at most 20 deep"),
        ("(" * 4000, 1, 4001, "met the end"),
        (" or ".join(["$$->>'a'='b'"] * 67), 1, 1, "at most 200 nodes"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(FilterSyntaxError) as refused:
        parse_filter(text)
    assert (refused.value.position, message in refused.value.message) == ((line, column), True)
    with pytest.raises(ValidationError, match=f"line {line}, column {column}"):
        validate_filter(text)


@pytest.mark.behaviour("3.5")
@pytest.mark.parametrize(
    "text",
    [
        "(" * 20 + TERM + ")" * 20,
        "not " * 20 + TERM,
        " or ".join([TERM] * 66),
        f"$$->>'a' in ({','.join(['0'.join(chr(39) * 2)] * 198)})",
        f"$$->>'a' = '{'x' * (4096 - len(TERM) + 1)}'",
        f"$$->'a' = '{'[' * 20 + ']' * 20}'",
    ],
)
def test_what_is_just_within_the_limits_is_a_filter(text: str) -> None:
    validate_filter(text)


PIECES = ["$$", "->", "->>", "'a'", "'5'", "0", "-1", " ", "=", "<", "?", "(", ")", ",", "and", "NOT ", "in", "like"]
PIECES += ["is", "null", "'", "\n", "\\", "%", "$", "x", "\u201c", "\0", "'[1'", "\ud800"]


def refused_at(text: str) -> Position | None:
    """Return where a text is refused, None for a filter."""
    try:
        parse_filter(text)
    except FilterSyntaxError as refused:
        return refused.position
    return None


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=20))
def test_any_text_is_a_filter_or_refused_with_a_place_within_it(text: str) -> None:
    if place := refused_at(text):
        lines = text.split("\n")
        assert 1 <= place.line <= len(lines)
        assert 1 <= place.column <= len(lines[place.line - 1]) + 1
