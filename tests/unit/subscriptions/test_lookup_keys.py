"""What filters are looked up by, and in which ranges of the sorted terms a message's candidates are."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.lookup_keys import MAX_TERM_BYTES, NO_TERM, path_of, spans_of, term_of

STATE = "$$->'Body'->>'state'"


@pytest.mark.parametrize(
    ("text", "path", "constant"),
    [
        (f"{STATE} = 'open'", STATE, "open"),
        (f"'open' = {STATE}", STATE, "open"),
        (f"$$ -> 'Body' ->> 'state' = '' and {STATE} is not null", STATE, ""),
    ],
)
def test_a_term_is_the_path_the_constant_and_a_digest_of_the_filter(text: str, path: str, constant: str) -> None:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    assert term_of(text).split("\x01") == [path, constant, digest]
    assert path_of(term_of(text)) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{STATE} != 'open'",
        f"{STATE} = 'open' OR {STATE} = 'shut'",
        f"{STATE} = '{'x' * MAX_TERM_BYTES}'",
        f"{STATE} = '{'ü' * (MAX_TERM_BYTES // 2)}'",
        "$$->'Body'->>'a\x01b' = 'open'",
        "no filter at all",
    ],
)
def test_a_filter_without_a_term_that_can_be_stored_has_none(text: str) -> None:
    assert term_of(text) == NO_TERM


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
paths = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=5).filter(
    str.isprintable
)
terms = st.tuples(paths, texts).map(lambda term: "\x01".join((*term, "0" * 32)))


@given(st.sets(paths, max_size=4), st.dictionaries(paths, st.none() | texts), st.lists(terms | st.just(NO_TERM)))
def test_the_spans_cover_everything_except_known_paths_with_other_values(
    known: set[str], values: dict[str, str | None], stored: list[str]
) -> None:
    spans = [*spans_of(sorted(known), values)]
    for term in stored:
        path, _, rest = term.partition("\x01")
        constant = rest[:-33]
        wanted = path not in known or path not in values or values[path] == constant
        found = sum(span.low.encode() <= term.encode() < span.high.encode() for span in spans)
        if wanted:
            assert found == 1
        else:
            assert found == 0 or constant.startswith(f"{values[path]}\x01")


@pytest.mark.parametrize("value", ["\ud800", "\0", "x" * (MAX_TERM_BYTES + 1)])
def test_a_value_that_no_term_can_have_has_no_span(value: str) -> None:
    assert [*spans_of(["p"], {"p": value})] == [*spans_of(["p"], {"p": None})]
