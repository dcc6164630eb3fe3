"""Scripts that break a limit, or fail: each says why, and the next one runs (behaviour 8.3)."""

from collections.abc import Iterator

import pytest

from subscriptions.scripting.jobs import Failed, Made
from subscriptions.scripting.runner import ScriptRunner
from tests.script_running import NO_ASYNC, run, running

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
    with running() as one:
        yield one


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
    assert run(runner, source) == Failed(TOO_MUCH_CPU)
    assert run(runner, "$outmessage = 'next'") == Made(b"next")


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
def test_what_fails_says_why(runner: ScriptRunner, source: str, reason: str) -> None:
    result = run(runner, source)
    assert isinstance(result, Failed)
    assert result.reason.removesuffix(" (line 1)") == reason.removesuffix(" (line 1)")


@pytest.mark.behaviour("8.3")
def test_memory_used_up_by_small_objects(runner: ScriptRunner) -> None:
    result = run(runner, "let a = []; while (1) a.push(new Array(1000))")
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
    assert run(runner, "1", body=body) == Failed(f"the message is {what} for a script")


@pytest.mark.parametrize("source", ["$inmessage.project.id.slice(0, 1) + '😀'.slice(0, 1)", "2n ** 99999n", "Symbol()"])
def test_the_value_of_the_last_expression_is_nobodys(runner: ScriptRunner, source: str) -> None:
    assert run(runner, f"$outmessage = 'made'; {source} // a comment") == Made(b"made")


def test_the_largest_message_passes(runner: ScriptRunner) -> None:
    body = b'{"a":"' + b"x" * (1024 * 1024 - 8) + b'"}'
    assert run(runner, "$outmessage = $inmessage", body=body) == Made(body)
