"""What filters mean (contract 3), and errors in filter texts."""

import json
import re
import time
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.filters import (
    Document,
    Filter,
    FilterFailed,
    FilterSyntaxError,
    Work,
    cached_filter,
    explain,
    parse_filter,
    text_at,
    validate_filter,
)
from subscriptions.filters.compile import FilterCache
from subscriptions.filters.tree import Node
from tests.support import random_data

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "reference" / "filters.md"


BODY = """{"state": "open", "n": 1.50, "big": 1e2, "zero": -0, "no": null, "yes": true, "tags": ["red", "blue", 5],
           "o": {"bb": 1, "a": [1, {"x": null}], "bb": 2}, "percent": "5% off\\\\", "empty": [], "text": "it's"}"""

TERM = "$$->>'Body' = 'b'"

ISSUE = {
    "original": {"project": {"id": "proj1008"}, "fields": {"actualEffort": 3}},
    "updated": {"fields": {"actualEffort": 5}},
    "paged": True,
    "issue": {"fields": {"customfield_10210": "x"}},
}
EXAMPLES = [
    "$$->'Body'->'original'->'project'->>'id' = 'proj1008'",
    "$$->'Body'->'original'->'project'->>'id' in ('proj1008','proj1010')",
    "$$->'Body'->'original'->'fields'->'actualEffort' != $$->'Body'->'updated'->'fields'->'actualEffort'",
    "$$->'Body'->>'paged' = 'true'",
    "$$->'Body'->'issue'->'fields'->>'customfield_10210' is not null",
    "$$->'Header'->'Filter_string'->>0 = 'proj1010'",
]


MEANINGS = [
    ("->>'state' = 'open'", True),
    ("->>'state' = 'Open'", False),
    ("->>'state' != 'open'", False),
    ("->'state' = '\"open\"'", True),
    ("->>'nothing' = 'open'", None),
    ("->>'nothing' != 'open'", None),
    ("->>'no' = 'null'", None),
    ("->'no' = 'null'", True),
    ("->>'n' = '1.50'", True),
    ("->>'n' = '1.5'", False),
    ("->'n' = '1.5'", True),
    ("->'n' < '10'", True),
    ("->'n' > '1.5'", False),
    ("->>'n' > '1.5'", True),
    ("->>'big' = '100'", True),
    ("->>'zero' = '0'", True),
    ("->>'yes' = 'true'", True),
    ("->'yes' = 'true'", True),
    ('->>\'o\' = \'{"a": [1, {"x": null}], "bb": 2}\'', True),
    ('->\'o\' = \'{"bb":2,"a":[1,{"x":null}]}\'', True),
    ("->'tags'->>0 = 'red'", True),
    ("->'tags'->>-1 = '5'", True),
    ("->'tags'->>3 is null", True),
    ("->'tags'->>'0' is null", True),
    ("->'no' is null", False),
    ("->>'no' is null", True),
    ("->'nothing' is null", True),
    ("->'state' is not null", True),
    ("->>'state' in ('closed', 'open')", True),
    ("->>'state' not in ('closed', 'open')", False),
    ("->'n' in ('1', '1.500')", True),
    ("->>'nothing' in ('a')", None),
    ("->>'state' like 'op%'", True),
    ("->>'state' like 'o__n'", True),
    ("->>'state' like '%x%'", False),
    ("->>'state' not like '%x%'", True),
    ("->>'percent' like '5\\% %\\\\'", True),
    ("->>'nothing' like '%'", None),
    ("->>'text' = 'it''s'", True),
    (" ? 'state'", True),
    (" ? 'nothing'", False),
    ("->'tags' ? 'red'", True),
    ("->'tags' ? '5'", False),
    ("->'state' ? 'open'", True),
    ("->'nothing' ? 'x'", None),
    ("->'o' > '[9,9,9]'", True),
    ("->'tags' > 'true'", True),
    ("->'yes' > '99'", True),
    ("->'n' > '\"z\"'", True),
    ("->'state' > 'null'", True),
    ("->'empty' < 'null'", True),
]


def document(body: str = "{}", *headers: tuple[str, str]) -> Document:
    return Document(headers, body.encode(), is_json=True)


@pytest.mark.behaviour("3.4")
@pytest.mark.parametrize("text", EXAMPLES)
def test_documented_examples_match(text: str) -> None:
    assert parse_filter(text).matches(document(json.dumps(ISSUE), ("FILTER_STRING", "proj1010")))
    assert not parse_filter(text).matches(document("{}", ("FILTER_STRING", "other")))


def test_the_filters_in_the_documentation_are_valid() -> None:
    shown = re.findall(r"^\| `([^`]+)` \|", DOCUMENTATION.read_text(), re.MULTILINE)
    examples = [text for text in shown if "$$" in text]
    assert len(examples) == 10
    for text in examples:
        assert parse_filter(text).canonical


@pytest.mark.behaviour("3.1", "3.3")
@pytest.mark.parametrize(("term", "meaning"), MEANINGS)
def test_the_meaning_of_each_term(term: str, meaning: bool | None) -> None:
    found = explain(parse_filter(f"$$->'Body'{term}"), document(BODY)).result
    assert found == {True: "true", False: "false", None: "null"}[meaning]


@pytest.mark.behaviour("3.3")
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("T and T", "true"),
        ("T and N", "null"),
        ("F and N", "false"),
        ("N and F", "false"),
        ("F or N", "null"),
        ("N or T", "true"),
        ("F or F", "false"),
        ("not N", "null"),
        ("not F", "true"),
        ("F and X", "false"),
        ("X and F", "false"),
        ("X or T", "true"),
        ("X or N", "failed"),
        ("T and X", "failed"),
        ("N and X", "null"),
        ("X and T and N", "null"),
        ("X and N or F", "null"),
        ("not (X and N)", "failed"),
        ("not (X or N) and T", "failed"),
        ("not X", "failed"),
        ("T or T and F", "true"),
        ("(T or T) and F", "false"),
        ("not T or T", "true"),
    ],
)
def test_unknown_and_failed_terms_matter_only_if_no_term_decides(text: str, result: str) -> None:
    terms = {"T": "$$->'Body'->'a' = '1'", "F": "$$->'Body'->'a' = '2'", "N": "$$->'Body'->'b' = '1'"}
    for letter, term in {**terms, "X": "$$->'Body'->'huge' = '1'"}.items():
        text = text.replace(letter, term)
    explained = explain(parse_filter(text), document('{"a": 1, "huge": 1e999999}'))
    assert explained.result == result


@pytest.mark.behaviour("3.2")
@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("$$->'Header'->'x-team'->>0 = 'blue'", True),
        ("$$->'Header'->'X-TEAM'->>1 = 'red'", True),
        ("$$->'Header'->>'X-Team' = '[\"blue\", \"red\"]'", True),
        ("$$->'Header' ? 'X-team'", True),
        ("$$->'Header'->'X-Team' ? 'red'", True),
        ("$$->'Header'->'X-Other'->>0 is null", True),
        ("$$ ? 'Body'", True),
    ],
)
def test_header_names_match_without_case(text: str, matches: bool) -> None:
    message = document("{}", ("X-Team", "blue"), ("x-tEAM", "red"))
    assert parse_filter(text).matches(message) is matches


@pytest.mark.behaviour("3.2")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("naïve <xml/>".encode(), "$$->>'Body' like 'naïve%'"),
        (b"5", "$$->'Body' = '\"5\"'"),
        (b"\xff", "$$->>'Body' is null"),
        (b"\xff", "$$->'Body' = 'null'"),
        (b"", "$$->>'Body' = ''"),
        (b"a\0b", "$$->>'Body' like 'a_b'"),
    ],
)
def test_a_body_that_is_not_json_is_a_string_or_null(body: bytes, text: str) -> None:
    assert parse_filter(text).matches(Document([], body, is_json=False))


@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"a": 1e131072}', "more than 131072 digits"),
        ('{"a": 1e99999999999999999999}', "more than 131072 digits"),
        ('{"a": 1e-16384}', "16383 after the decimal point"),
        ("[" * 100_000, "nested too deep"),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ('{"a"', "not JSON"),
    ],
)
def test_a_filter_that_cannot_be_evaluated_says_why(body: str, reason: str) -> None:
    message = document(body, ("X-Team", "blue"))
    for _ in range(2):
        with pytest.raises(FilterFailed, match=reason):
            parse_filter("$$->'Body'->'a' = '1'").matches(message)
    assert parse_filter("$$->'Header'->'X-Team'->>0 = 'blue'").matches(message)


@pytest.mark.parametrize(
    "body", ['{"a": "\\u0000"}', '{"a": "\\ud800"}', '{"\\udfff": {"a": "\\ud800"}}', "[" * 800 + "]" * 800]
)
@pytest.mark.parametrize("text", ["$$->>'Body' like '%x%'", "$$->'Body'->>'a' < 'a'", "$$->'Body' > $$->'Header'"])
def test_values_that_postgresql_refuses_are_compared(body: str, text: str) -> None:
    explained = explain(parse_filter(text), document(body))
    assert explained.result in {"true", "false", "null"}
    assert json.dumps([one.value for term in explained.terms for one in term.values]).encode()


@pytest.mark.parametrize("pattern", ["%a" * 1000 + "%b", "%_a" * 800 + "b", "_%" * 1000 + "b", "%" * 2000 + "b"])
def test_a_hostile_pattern_takes_linear_time(pattern: str) -> None:
    body = Document([], b"a" * 200_000, is_json=False)
    assert not parse_filter(f"$$->>'Body' like '{pattern}'").matches(body)


def deep(levels: int, inside: str) -> str:
    return "[" * levels + inside + "]" * levels


@pytest.mark.behaviour("3.6")
def test_deep_values_are_compared_or_the_filter_fails() -> None:
    smaller = "$$->'Body'->'a' < $$->'Body'->'b'"
    wanted, found = parse_filter(f"{smaller} or {'not ' * 20}{smaller}"), []
    for levels in range(900, 1000):
        message = document(f'{{"a": {deep(levels, "1")}, "b": {deep(levels, "0")}}}')
        found.append(explain(wanted, message).result)
    assert set(found) == {"false", "failed"}


@pytest.mark.behaviour("3.6")
def test_deep_values_are_compared_in_linear_time() -> None:
    ones = "1," * 250_000
    message = document(f'{{"a": {deep(800, ones + "1")}, "b": {deep(800, ones + "2")}}}')
    assert not parse_filter("$$->'Body'->'a' = $$->'Body'->'b'").matches(message)
    begun = time.process_time()
    assert parse_filter("$$->'Body'->'a' < $$->'Body'->'b'").matches(message)
    assert time.process_time() - begun < 0.5


@pytest.mark.behaviour("3.6")
def test_a_large_value_is_soon_known_to_be_none_of_several() -> None:
    message, wanted = document(json.dumps([0.5] * 200_000)), parse_filter("$$->'Body' in ('[1]', '[2, 3]')")
    assert not wanted.matches(message)
    begun = time.process_time()
    assert not any(wanted.matches(message) for _ in range(300))
    assert time.process_time() - begun < 1.0


@pytest.mark.behaviour("3.6")
def test_few_bytes_do_not_become_gigabytes() -> None:
    message = document(f"[{','.join(['1e131071'] * 100_000)}]")
    with pytest.raises(FilterFailed, match="more than 4194304 characters as text"):
        parse_filter("$$->>'Body' = 'x'").matches(message)
    assert parse_filter("$$->'Body' > '[1]'").matches(message)


@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize(
    ("body", "term"),
    [
        (["a" * 600_000], "$$->>'Body' = 'x'"),
        (["a" * 600_000], "$$->'Body' < '5'"),
        ("a" * 600_000, "$$->>'Body' like '%_b'"),
    ],
)
def test_a_filter_that_reads_a_large_body_too_often_fails(body: object, term: str) -> None:
    message, six, seven = document(json.dumps(body)), " or ".join([term] * 6), " or ".join([term] * 7)
    assert not parse_filter(six).matches(message)
    with pytest.raises(FilterFailed, match="reads more than 4194304 characters"):
        parse_filter(seven).matches(message)
    assert not parse_filter(six).matches(message)


@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize(
    ("body", "term"),
    [
        ({"a": {"b": [0] * 300_000}}, "$$->'Body'->>'a' like '%urgent{}%'"),
        ({"a": {"b": [0] * 300_000}}, "$$->'Body'->'a' < '{}'"),
    ],
)
def test_derived_values_are_shared_by_filters(body: object, term: str) -> None:
    message, work = document(json.dumps(body)), Work()
    message.work = work
    for number in range(100):
        assert not parse_filter(term.format(number)).matches(message)


@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize("term", ["$$->>'Body' like '%a_c%'", "$$->'Body' < $$->'Header'", "$$->'Body'->>1 like '_b%'"])
def test_the_work_of_all_filters_together_is_bounded(term: str) -> None:
    work, found, wanted = Work(), [], parse_filter(term)
    for _ in range(1000):
        message = document(json.dumps([1, "a" * 40_000]))
        message.work = work
        try:
            found.append(str(wanted.matches(message)))
        except FilterFailed as failed:
            found.append(str(failed))
    assert found == [found[0]] * found.index(found[-1]) + [found[-1]] * found.count(found[-1])
    assert found[-1] == "the filters that look at what was published together take too long"


@pytest.mark.behaviour("3.6")
def test_searches_in_long_arrays_are_part_of_the_work() -> None:
    message, wanted = document(json.dumps([0] * 400_000)), parse_filter(" or ".join(["$$->'Body' ? 'x'"] * 16))
    message.work.share(16)
    with pytest.raises(FilterFailed, match="take too long"):
        wanted.matches(message)


@pytest.mark.behaviour("6.3")
@given(random_data.filters())
def test_the_canonical_text_has_the_same_meaning(tree: Node) -> None:
    once = parse_filter(str(tree)).canonical
    assert parse_filter(once).canonical == once
    assert parse_filter(once.replace(" AND ", "\n\taNd  ").replace(" OR ", " oR ")).canonical == once


def test_the_cache_of_filters_is_bounded() -> None:
    kept = FilterCache()
    texts = [f"$$->'Body'->>'{number:04000}' is null" for number in range(600)]
    large = [Filter(text, parse_filter(text).tree) for text in texts]
    for one in large:
        kept.add(one)
    there = [kept.get(one.text) is one for one in large]
    assert there == sorted(there)
    assert 500 < sum(there) < 530
    assert parse_filter("$$ is null") is not parse_filter("$$ is null")
    assert cached_filter("$$ is null") is cached_filter("$$ is null") is parse_filter("$$ is null")


@pytest.mark.parametrize(
    ("text", "equality"),
    [
        ("$$->'Body'->>'a' = 'x'", ("$$->'Body'->>'a'", "x")),
        ("'x'=$$ -> 'Body' ->>'a'", ("$$->'Body'->>'a'", "x")),
        ("$$->'Header'->'X'->>0 = 'it''s'", ("$$->'Header'->'x'->>0", "it's")),
        ("$$->'Body'->'b' = '1' and ($$->'Body'->>'a' = 'x' and $$->'Body'->>'c' = 'y')", ("$$->'Body'->>'a'", "x")),
        ("$$->'Body'->'a' = '\"x\"'", None),
        ("$$->'Body'->>'a' != 'x'", None),
        ("$$->'Body'->>'a' = $$->'Body'->>'b'", None),
        ("not $$->'Body'->>'a' = 'x'", None),
        ("$$->'Body'->>'a' = 'x' or $$->'Body'->>'a' = 'y'", None),
    ],
)
def test_the_term_that_a_filter_is_indexed_by(text: str, equality: tuple[str, str] | None) -> None:
    assert parse_filter(text).equality == equality


@given(random_data.filters())
def test_a_matching_filter_is_found_by_its_term(tree: Node) -> None:
    found, message = parse_filter(str(tree)), document('{"a": "a", "b": true, "aa": 100}', ("a", "ab"))
    if found.equality and found.matches(message):
        path, constant = found.equality
        assert text_at(message, path) == constant


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
def test_an_invalid_filter_is_refused_with_the_position(text: str, line: int, column: int, message: str) -> None:
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
def test_filters_at_the_limits_are_accepted(text: str) -> None:
    validate_filter(text)


PIECES = ["$$", "->", "->>", "'Body'", "'5'", "0", "-1", " ", "=", "<", "?", "(", ")", ",", "and", "NOT ", "in", "like"]
PIECES += ["is", "null", "'", "\n", "\\", "%", "$", "x", "\u201c", "\0", "'[1'", "\ud800"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=20))
def test_any_text_is_a_filter_or_refused_with_a_position_in_it(text: str) -> None:
    try:
        parse_filter(text)
    except FilterSyntaxError as refused:
        place, lines = refused.position, text.split("\n")
        assert 1 <= place.line <= len(lines)
        assert 1 <= place.column <= len(lines[place.line - 1]) + 1
