"""Texts that are no filters: what is wrong, and where (behaviour 3.5)."""

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.filters import FilterSyntaxError, Position, parse_filter, validate_filter

TERM = "$$->>'Body' = 'b'"


@pytest.mark.behaviour("3.5")
@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "met the end"),
        ("state = 'open'", 1, 1, "Expected $$"),
        (f"{TERM} and", 1, 22, "met the end"),
        (f"{TERM}\n  and\n  or {TERM}", 3, 3, "met 'or'"),
        (f"({TERM}", 1, 19, "')'"),
        (f"{TERM})", 1, 18, "met ')'"),
        (f"{TERM} {TERM}", 1, 19, "Expected AND, OR or the end"),
        ("$$->>a = 'b'", 1, 6, "a text in quotes or an index"),
        ("$$->>'Body' = 5", 1, 15, "Expected $$ or a text in quotes"),
        ("$$->>'Body' == 'b'", 1, 14, "met '='"),
        ("$$->>'Body' = 'b", 1, 15, "not closed"),
        ("$$->>'Body' = 'it's'", 1, 19, "doubled: 'it''s'"),
        ("$$->>'Body' = 'that'is'", 1, 21, "doubled: 'it''s'"),
        ("$$->>'Body' = \u2018b\u2019", 1, 15, "straight"),
        ("$$->>\"a\" = 'b'", 1, 6, "straight"),
        ("$$->>'a\0' = 'b'", 1, 8, "NUL"),
        ("$$->>'\ud800' = 'b'", 1, 7, "surrogate"),
        ("$$->>'Body'->'b' = '1'", 1, 3, "Only the last arrow"),
        ("$$->'Body' = 'open'", 1, 14, "is JSON"),
        ("$$->'Body' = 'NaN'", 1, 14, "NaN"),
        ("$$->'Body' = '1e999999'", 1, 14, "more than 131072 digits"),
        (f"$$->'Body' = '{'[' * 21 + ']' * 21}'", 1, 14, "nested too deep"),
        (f"$$->'Body' = '{'[' * 4000}'", 1, 14, "nested too deep"),
        (f"$$->'Body' > '{'[' * 500 + ']' * 500}'", 1, 14, "nested too deep"),
        ("$$->'Body' in ('1', 'b')", 1, 21, "is JSON"),
        ("$$->'Body' = $$->>'Header'", 1, 12, "do not compare"),
        ("'a' = 'b'", 1, 1, "One side"),
        ("$$->'Body' like 'b'", 1, 1, "Only a text"),
        ("$$->>'Body' ? 'b'", 1, 1, "has keys"),
        ("$$->>'Body' like 'b\\'", 1, 18, "lone backslash"),
        ("$$->'Boddy'->>'a' = 'b'", 1, 5, "$$ has only 'Header' and 'Body'"),
        ("$$->>'header' is null", 1, 6, "$$ has only 'Header' and 'Body'"),
        ("'b' = $$->>0", 1, 12, "$$ has only 'Header' and 'Body'"),
        ("$$ ? 'body'", 1, 6, "$$ has only 'Header' and 'Body'"),
        ("$$->'Body'->2147483648 is null", 1, 13, "at most 2147483647"),
        (f"$$->'Body'->{'9' * 4000} is null", 1, 13, "at most 2147483647"),
        ("$$->>'Body' = 'b'; drop table x", 1, 18, "met ';'"),
        ("x" * 4097, 1, 4098, "at most 4096 bytes"),
        (f"$$->>'Body' = '{'é' * 2048}'", 1, 2065, "at most 4096 bytes"),
        ("(" * 100 + TERM + ")" * 100, 1, 101, "at most 20 deep"),
        ("not " * 1000 + TERM, 1, 4001, "at most 20 deep"),
        ("(" * 4000, 1, 4001, "met the end"),
        (" or ".join(["$$->>'Body'='b'"] * 67), 1, 1, "at most 200 nodes"),
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
        f"$$->>'Body' in ({','.join(['0'.join(chr(39) * 2)] * 198)})",
        f"$$->>'Body' = '{'x' * (4096 - len(TERM) + 1)}'",
        f"$$->'Body' = '{'[' * 20 + ']' * 20}'",
    ],
)
def test_what_is_just_within_the_limits_is_a_filter(text: str) -> None:
    validate_filter(text)


PIECES = ["$$", "->", "->>", "'Body'", "'5'", "0", "-1", " ", "=", "<", "?", "(", ")", ",", "and", "NOT ", "in", "like"]
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
