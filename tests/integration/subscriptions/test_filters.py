"""A filter means what PostgreSQL's jsonb operators say, asked of PostgreSQL itself (contract 3.3)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.filters import Document, explain, parse_filter
from subscriptions.filters.json_values import json_text, parse_json
from subscriptions.filters.tree import Node
from tests.support import random_data
from tests.support.database import execute

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _texts_by_code_point(db: None) -> None:
    (collation,) = _row("SELECT datcollate FROM pg_database WHERE datname = current_database()")
    assert collation in {"C", "C.UTF-8", "POSIX"}


@pytest.mark.behaviour("3.1", "3.3")
@given(st.lists(random_data.filters(), min_size=4, max_size=4), random_data.json_values())
def test_a_filter_has_the_same_result_as_in_postgresql(filters: list[Node], body: str) -> None:
    headers = [("a", "aab"), ("b", "true"), ("a", "100")]
    document = Document(headers, body.encode(), is_json=True)
    conditions = ", ".join(_condition(str(one)) for one in filters)
    message = f'{{"Header": {json.dumps(document.headers)}, "Body": {body}}}'
    meaning = _row(f"SELECT {conditions} FROM (SELECT %s::jsonb) AS message (document)", message)
    found = [explain(parse_filter(str(one)), document).result for one in filters]
    assert found == [{True: "true", False: "false", None: "null"}[one] for one in meaning]


@given(random_data.json_values())
def test_json_prints_as_in_postgresql(text: str) -> None:
    assert (json_text(parse_json(text)),) == _row("SELECT %s::jsonb::text", text)


@given(random_data.json_values(), random_data.json_values())
def test_json_is_ordered_as_in_postgresql(left: str, right: str) -> None:
    document = Document([], f'{{"l": {left}, "r": {right}}}'.encode(), is_json=True)
    found = [parse_filter(f"$$->'Body'->'l' {sign} $$->'Body'->'r'").matches(document) for sign in random_data.SIGNS]
    compared = ", ".join(f"l {sign} r" for sign in random_data.SIGNS)
    assert found == [*_row(f"SELECT {compared} FROM (SELECT %s::jsonb, %s::jsonb) AS sides (l, r)", left, right)]


@pytest.mark.parametrize(
    "number", ["1e131071", "1e131072", "-1e131072", "1e-16383", "1e-16384", "0e131072", "0e-16384", "1" * 131_073]
)
def test_a_filter_fails_for_the_numbers_postgresql_refuses(number: str) -> None:
    document = Document([], number.encode(), is_json=True)
    held = _row("SELECT pg_input_is_valid(%s, 'jsonb')", number)
    assert (explain(parse_filter("$$->'Body' != '7'"), document).result == "true",) == held


def _condition(text: str) -> str:
    return "(" + text.replace("%", "%%").replace("$$->", "message.document->") + ")"


def _row(statement: str, *arguments: str) -> tuple[Any, ...]:
    (found,) = execute(statement, arguments or None)
    return found
