"""Async functions are found wherever they can be written; what only looks like one mostly is not."""

import pytest

from subscriptions.scripting.interpreter import line_of_async


@pytest.mark.behaviour("8.3")
@pytest.mark.parametrize(
    "source",
    [
        "async function f() {}",
        "async () => 1",
        "x = async x => 1",
        "x = async é => 1",
        "({async m() {}})",
        "({async* m() {}})",
        "({async'm'() {}})",
        "({async 1() {}})",
        "({async [x]() {}})",
        "({async \\u0061() {}})",
        "({'a': 1, async'b'() {}})",
        "class A { static async #m() {} }",
        "[...async () => 1]",
        "a?.1:async () => 1",
        "`${async () => 1}`",
        "async\u00a0function f() {}",
        "async\ufefffunction f() {}",
        "async/**/function f() {}",
    ],
)
def test_an_async_function_is_found(source: str) -> None:
    assert line_of_async(f"1;\n{source}") == 2


@pytest.mark.parametrize(
    "source",
    [
        "({async: 1})",
        "x.async",
        "x?.async",
        "x.async(1)",
        "x['async']",
        "['async', 1]",
        '"async" in x',
        "$async (1)",
        "asynchronous (1)",
        "let async = 1; async++",
        "async\n(1)",
    ],
)
def test_a_name_is_none(source: str) -> None:
    assert line_of_async(source) is None
