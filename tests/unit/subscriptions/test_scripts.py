"""Scripts: input, output, async functions, limits (contract 8.1, 8.3)."""

from collections.abc import Iterator

import pytest
from django.core.exceptions import ValidationError

from subscriptions.scripting.interpreter import line_of_async
from subscriptions.scripting.jobs import Failed, Made
from subscriptions.scripting.runner import ScriptRunner, check_script
from tests.support.scripts import NO_ASYNC, run_script, running_scripts

TOO_MUCH_CPU = "it used more than 250 ms of CPU"
TOO_MUCH_MEMORY = "it used more than 32 MiB of memory"
NO_CODE = "TypeError: code from strings is not available"
NESTED = """
let nested = [];
for (let i = 0; i < 1500; i++) nested = [nested];
Array.prototype.toJSON = function () { delete Array.prototype.toJSON; return nested; };
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[ScriptRunner]:
    with running_scripts() as one:
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
def test_the_output_of_a_script(runner: ScriptRunner, source: str, made: Made) -> None:
    assert run_script(runner, source) == made


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
def test_the_body_that_a_script_sees(runner: ScriptRunner, body: bytes, is_json: bool, seen: bytes) -> None:
    assert run_script(runner, "$outmessage = JSON.stringify($inmessage)", body=body, is_json=is_json) == Made(seen)


@pytest.mark.behaviour("8.3")
def test_time_and_randomness_are_fixed() -> None:
    source = """$outmessage = [Date.now(), new Date(), new (new Date(1).constructor)(), Date(), new Date(2020, 1, 1),
        new Date().getTimezoneOffset(), typeof __date_clock, Math.random(), Math.random()]"""
    made = []
    for _ in range(2):
        with running_scripts() as runner:  # another process each
            made.append(run_script(runner, source))
            made.append(run_script(runner, source))
    assert made == [made[0]] * 4
    assert isinstance(made[0], Made)
    assert (made[0].body or b"").startswith(
        b'[1700000000123,"2023-11-14T22:13:20.123Z","2023-11-14T22:13:20.123Z","Tue Nov 14 2023 22:13:20 GMT+0000",'
        b'"2020-02-01T00:00:00.000Z",0,"undefined",0.'
    )
    with running_scripts() as runner:
        assert run_script(runner, source, seed=6) != made[0]


@pytest.mark.behaviour("8.3")
def test_nothing_is_left_to_the_next_run(runner: ScriptRunner) -> None:
    run_script(
        runner, "globalThis.left = 1; Object.prototype.polluted = 1; JSON.parse = 5; $outmessage = 'x'; $param = '/x'"
    )
    look = "$outheader = {'X': [typeof left, typeof ({}).polluted, typeof JSON.parse]}"
    assert run_script(runner, look) == Made(headers={"X": "undefined, undefined, function"})


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
def test_invalid_javascript_is_refused(source: str, says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        check_script(source)
    assert says in refused.value.messages[0]


@pytest.mark.parametrize(
    "source",
    ["", "while (1);", "throw 5", "'use strict'; let $outmessage = $inmessage.a.b", "let a = 'async' // a comment"],
)
def test_checking_runs_nothing(source: str) -> None:
    check_script(source)


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
        "({async .5() {}})",
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
def test_the_name_async_is_not_an_async_function(source: str) -> None:
    assert line_of_async(source) is None


@pytest.mark.behaviour("8.3")
@pytest.mark.parametrize(
    "source",
    [
        "while (1);",
        "try { while (1); } catch (e) {} while (1);",
        "/(a+)+$/.test('a'.repeat(40) + 'b')",
        "throw {toString() { while (1); }}",
        "Object.defineProperty(globalThis, '$outmessage', {get() { for (;;); }})",
        "$outmessage = {toJSON() { for (;;); }}",
        "$outheader = new Proxy({}, {ownKeys() { for (;;); }})",
        "Array(1e8).join('abc')",
    ],
)
def test_too_much_cpu(runner: ScriptRunner, source: str) -> None:
    assert run_script(runner, source) == Failed(TOO_MUCH_CPU)
    assert run_script(runner, "$outmessage = 'next'") == Made(b"next")


@pytest.mark.behaviour("8.3")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("let s = 'x'; while (1) s += s", TOO_MUCH_MEMORY),
        ("'x'.repeat(1e9)", TOO_MUCH_MEMORY),
        ("new ArrayBuffer(1e9)", TOO_MUCH_MEMORY),
        ("function f() { f() } f()", "it calls itself too deep"),
        ("let p = {}; for (let i = 0; i < 1e4; i++) p = new Proxy(p, {}); p.x", "it calls itself too deep"),
        ("$outmessage = 'x'.repeat(1048577)", "RangeError: $outmessage is larger than 1 MiB"),
        ("$outmessage = 'é'.repeat(600000)", "$outmessage is larger than 1 MiB"),
        ("$outheader = {a: 'x'.repeat(300000)}", "$outheader and $param are too large"),
        ("throw new Error('no\\nproject')", "Error: no"),
        ("\n\nundefined.x", "TypeError: cannot read property 'x' of undefined (line 3)"),
        ("throw 'text'", "text"),
        ("throw ''", "it threw something without a text"),
        ("throw Symbol()", "it threw something without a text"),
        ("throw null", f"it threw null, or {TOO_MUCH_MEMORY}"),
        ("throw {get message() { throw 1 }}", "[object Object]"),
        ("a b", "SyntaxError: expecting ';' (line 1)"),
        ("$outmessage = () => 1", "TypeError: $outmessage must be a string or what JSON can hold"),
        ("$outmessage = 10n", "TypeError: bigint are forbidden in JSON.stringify"),
        ("$outheader = ['a']", "TypeError: $outheader must be an object"),
        ("$outheader = {a: {}}", 'TypeError: $outheader["a"] must be a string'),
        ("$param = {}", "TypeError: $param must be a string"),
        ("Array.prototype.toJSON = () => 'boo'", "what it made cannot be read"),
        (NESTED, "what it made cannot be read"),
        ("(async () => { throw 1 })()", NO_ASYNC),
        ("async function f() { throw 1 }; f()", NO_ASYNC),
        ("async function* f() { throw 1 }; f().next()", NO_ASYNC),
        ("Promise.resolve(1)", "ReferenceError: 'Promise' is not defined"),
        ("eval('as' + 'ync () => { throw 1 }')()", "ReferenceError: 'eval' is not defined"),
        ("Function('return as' + 'ync () => { throw 1 }')()()", NO_CODE),
        ("Object.prototype.get = (target) => target; Function.x('1')", "TypeError: not a function"),
        ("(() => 1).constructor('1')", NO_CODE),
        ("(function* () {}).constructor('1')", NO_CODE),
        ("class More extends Function {} new More('1')", NO_CODE),
        ("import('fs')", "it waits for a promise, but a script runs once, without waiting"),
        ("fetch('http://127.0.0.1')", "ReferenceError: 'fetch' is not defined"),
        ("require('fs')", "ReferenceError: 'require' is not defined"),
        ("Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)", "TypeError: cannot block in this thread"),
    ],
)
def test_a_failed_script_has_a_reason(runner: ScriptRunner, source: str, reason: str) -> None:
    result = run_script(runner, source)
    assert isinstance(result, Failed)
    assert result.reason.removesuffix(" (line 1)") == reason.removesuffix(" (line 1)")


@pytest.mark.behaviour("8.3")
def test_memory_used_up_by_small_objects(runner: ScriptRunner) -> None:
    result = run_script(runner, "let a = []; while (1) a.push(new Array(1000))")
    with_an_error, without_room_for_one = TOO_MUCH_MEMORY, f"it threw null, or {TOO_MUCH_MEMORY}"
    assert isinstance(result, Failed)
    assert result.reason.removesuffix(" (line 1)") in (with_an_error, without_room_for_one)


@pytest.mark.behaviour("8.3")
@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"[" + b"[]," * 340_000 + b"[]]", "too large"),
        (b"[" + b"[]," * 260_000 + b"[]]", "too large"),
        (b"[" * 5000 + b"]" * 5000, "nested too deep"),
    ],
)
def test_a_message_that_is_too_much_for_javascript(runner: ScriptRunner, body: bytes, what: str) -> None:
    assert run_script(runner, "1", body=body) == Failed(f"the message is {what} for a script")


@pytest.mark.parametrize("source", ["$inmessage.project.id.slice(0, 1) + '😀'.slice(0, 1)", "2n ** 99999n", "Symbol()"])
def test_the_value_of_the_last_expression_is_ignored(runner: ScriptRunner, source: str) -> None:
    assert run_script(runner, f"$outmessage = 'made'; {source} // a comment") == Made(b"made")


def test_the_largest_message_passes(runner: ScriptRunner) -> None:
    body = b'{"a":"' + b"x" * (1024 * 1024 - 8) + b'"}'
    assert run_script(runner, "$outmessage = $inmessage", body=body) == Made(body)
