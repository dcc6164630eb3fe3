"""Scripts: what they get, what they make, and what is refused when they are saved (behaviour 8.1)."""

from collections.abc import Iterator

import pytest
from django.core.exceptions import ValidationError

from subscriptions.scripting.jobs import Made
from subscriptions.scripting.runner import ScriptRunner
from subscriptions.scripting.script_check import check_script
from tests.script_running import NO_ASYNC, run, running


@pytest.fixture(scope="module")
def runner() -> Iterator[ScriptRunner]:
    with running() as one:
        yield one


@pytest.mark.behaviour("8.1")
@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("", Made()),
        ("$outmessage = {id: $inmessage.project.id}", Made(b'{"id":"proj1008"}')),
        ("$outmessage = $inmessage.n", Made(b"[1,2]")),
        ("$outmessage = 'id=' + $inmessage.project.id", Made(b"id=proj1008")),
        ("var $outmessage = 'var'", Made(b"var")),
        ("let $outmessage = 'let'", Made(b"let")),
        ("$outmessage = undefined", Made()),
        ("$outmessage = null", Made(b"null")),
        ("$outmessage = ''", Made(b"")),
        (r"$outmessage = 'a\0b\ud83d\ude00\ud83d'", Made("a\0b\U0001f600\ufffd".encode())),
        (r"$outmessage = {a: '\ud83d'}", Made(b'{"a":"\\ud83d"}')),
        ("$outmessage = $inheader['X-Tag'].join() + $inheader.Filter_String[0]", Made(b"a,bproj1008")),
        ("$outmessage = Object.keys($inheader)", Made(b'["filter_string","x-tag"]')),
        ("$outmessage = ['X-TAG' in $inheader, 'x-no' in $inheader]", Made(b"[true,false]")),
        ("$outheader = {'X-A': 'b', 'X-N': 5, 'X-T': $inheader['x-tag'], 'X-U': undefined}",
         Made(headers={"X-A": "b", "X-N": "5", "X-T": "a, b"})),
        ("$param = '/5'", Made(param="/5")),
        ("$param = 5", Made(param="5")),
        ("$statuscode = 404", Made(status="404")),
        ("const $statuscode = '201'", Made(status="201")),
        ("$statuscode = 2e99", Made(status="2e+99")),
        ("$statuscode = undefined", Made()),
        ("$statuscode = null", Made(status="")),
        ("$statuscode = {toString() { throw 1; }}", Made(status="")),
        ("$statuscode = Symbol()", Made(status="")),
    ],
)  # fmt: skip
def test_what_a_script_makes(runner: ScriptRunner, source: str, made: Made) -> None:
    assert run(runner, source) == made


@pytest.mark.behaviour("8.1")
@pytest.mark.parametrize(
    ("body", "is_json", "seen"),
    [
        (b'{"a": [1]}', True, b'{"a":[1]}'),
        (b'"text"', True, b'"text"'),
        (b"plain", False, b'"plain"'),
        (b'{"a": 1}', False, rb'"{\"a\": 1}"'),
        ("é\0".encode(), False, '"é\\u0000"'.encode()),
        (b"\xff\xfe", False, b"null"),
        (b"", False, b'""'),
        (b'{"__proto__": {"x": 1}}', True, b'{"__proto__":{"x":1}}'),
    ],
)
def test_what_a_script_sees_of_the_body(runner: ScriptRunner, body: bytes, is_json: bool, seen: bytes) -> None:
    assert run(runner, "$outmessage = JSON.stringify($inmessage)", body=body, is_json=is_json) == Made(seen)


@pytest.mark.behaviour("8.3")
def test_time_and_randomness_are_fixed() -> None:
    source = """$outmessage = [Date.now(), new Date(), new (new Date(1).constructor)(), Date(), new Date(2020, 1, 1),
        new Date().getTimezoneOffset(), typeof __date_clock, Math.random(), Math.random()]"""
    made = []
    for _ in range(2):
        with running() as runner:  # another process each
            made.append(run(runner, source))
            made.append(run(runner, source))
    assert made == [made[0]] * 4
    assert isinstance(made[0], Made)
    assert (made[0].body or b"").startswith(
        b'[1700000000123,"2023-11-14T22:13:20.123Z","2023-11-14T22:13:20.123Z","Tue Nov 14 2023 22:13:20 GMT+0000",'
        b'"2020-02-01T00:00:00.000Z",0,"undefined",0.'
    )
    with running() as runner:
        assert run(runner, source, seed=6) != made[0]


@pytest.mark.behaviour("8.3")
def test_nothing_is_left_to_the_next_run(runner: ScriptRunner) -> None:
    run(runner, "globalThis.left = 1; Object.prototype.polluted = 1; JSON.parse = 5; $outmessage = 'x'; $param = '/x'")
    look = "$outheader = {'X': [typeof left, typeof ({}).polluted, typeof JSON.parse]}"
    assert run(runner, look) == Made(headers={"X": "undefined, undefined, function"})


@pytest.mark.behaviour("8.1")
@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("let a = 1;\nlet a = 2;", "invalid redefinition of lexical identifier (line 2)"),
        ("\n\nif (", "SyntaxError: unexpected token in expression: '' (line 3)"),
        ("return 1", "return not in a function"),
        ("import x from 'y'", "SyntaxError"),
        ("/* " + "x" * 65536, "at most 64 KiB"),
        ("'a\0b'", "NUL"),
        ("// strictly\n'use strict';\nwith (Math) {}", "SyntaxError: invalid keyword: with (line 3)"),
        ("if (1)", "SyntaxError"),
        ("\n(async () => 1)()", f"{NO_ASYNC} (line 2)"),
        ("'\ud83d'", "surrogate"),
    ],
)
def test_what_is_no_javascript_is_refused(source: str, says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        check_script(source)
    assert says in refused.value.messages[0]


@pytest.mark.parametrize(
    "source",
    ["", "while (1);", "throw 5", "'use strict'; let $outmessage = $inmessage.a.b", "let a = 'async' // a comment"],
)
def test_checking_runs_nothing(source: str) -> None:
    check_script(source)
