"""Scripts in their processes: what they get, what they make, and that no limit can be broken (behaviour 8.1, 8.3)."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from subscriptions.scripts.checking import check_script
from subscriptions.scripts.jobs import Failed, Job, Lost, Made, Result
from subscriptions.scripts.processes import ScriptProcess
from subscriptions.scripts.runner import ScriptRunner
from subscriptions.scripts.waiting import Pace
from tests.receiver import wait_until

ISSUE = Job(
    "",
    body=b'{"project": {"id": "proj1008"}, "n": [1, 2]}',
    is_json=True,
    headers={"filter_string": ["proj1008"], "x-tag": ["a", "b"]},
    now_ms=1_700_000_000_123,
    seed=5,
)
TOO_MUCH_CPU = "it used more than 250 ms of CPU"
TOO_MUCH_MEMORY = "it used more than 32 MiB of memory"


NO_ASYNC = "async functions are not available: a script runs once, without waiting"
NO_CODE = "TypeError: code from strings is not available"
NESTED = """
let nested = [];
for (let i = 0; i < 1500; i++) nested = [nested];
Array.prototype.toJSON = function () { delete Array.prototype.toJSON; return nested; };
"""


@contextlib.contextmanager
def running(processes: int = 1) -> Iterator[ScriptRunner]:
    runner = ScriptRunner(processes)
    try:
        yield runner
    finally:
        runner.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[ScriptRunner]:
    with running() as one:
        yield one


def results(runner: ScriptRunner, count: int) -> dict[Any, Result]:
    """Wait for so many results."""
    poll = select.poll()
    poll.register(runner.fileno(), select.POLLIN)
    done: dict[Any, Result] = {}
    while len(done) < count:
        poll.poll((runner.patience() or 0.0) * 1000)
        done |= dict(runner.finished())
    return done


def run(runner: ScriptRunner, source: str, **given: Any) -> Result:
    fields = {name: getattr(ISSUE, name) for name in Job.__slots__} | {"source": source} | given
    runner.run("it", Job(**fields))
    return results(runner, 1)["it"]


def pids(runner: ScriptRunner) -> list[int]:
    return [seat.process.pid for seat in runner._seats]


# --- what scripts get and make ---------------------------------------------------------------------


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


# --- limits ----------------------------------------------------------------------------------------


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
    started = time.monotonic()
    assert run(runner, source) in (Failed(TOO_MUCH_CPU), Lost("it took longer than 2 s"))  # the latter if very busy
    assert time.monotonic() - started < 5
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


@pytest.mark.behaviour("8.3")
def test_a_process_has_nothing_to_open_anything_with(runner: ScriptRunner) -> None:
    run(runner, "")
    pid, *_ = pids(runner)
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    values = {line[:26].strip(): line[26:].split()[:2] for line in limits[1:]}
    assert values["Max open files"] == values["Max file size"] == values["Max core file size"] == ["0", "0"]
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert (status["NoNewPrivs"], status["Threads"]) == ("1", "1")
    assert Path(f"/proc/{pid}/environ").read_bytes().count(b"=") == 3
    opened = {str(one.readlink()).split(":")[0] for one in Path(f"/proc/{pid}/fd").iterdir() if int(one.name) != 2}
    assert opened == {"socket", "/dev/null"}


@pytest.mark.behaviour("8.3")
def test_processes_share_nothing_with_their_worker_that_it_is_given_of_the_cpu() -> None:
    with running() as runner:
        run(runner, "while (1);")
        assert {seat.is_for_slow: niceness_of(seat.process.pid) for seat in runner._seats} == {False: 5, True: 5}
        assert [os.getsid(pid) for pid in pids(runner)] == pids(runner)


def niceness_of(pid: int) -> int:
    """Return how much nicer than this process another is; its session is as nice, where Linux shares by session."""
    own = os.getpriority(os.PRIO_PROCESS, pid) - os.getpriority(os.PRIO_PROCESS, 0)
    group = Path(f"/proc/{pid}/autogroup")
    assert not group.exists() or group.read_text().endswith(f" nice {own}\n")
    return own


def test_nobody_waits_for_a_process_that_is_still_ending() -> None:
    process = ScriptProcess()
    assert process.reap() is None
    process.hang_up()
    process.wait()
    assert process.reap() == Lost("its process is gone")


# --- processes -------------------------------------------------------------------------------------


@pytest.mark.behaviour("8.3")
def test_what_takes_too_long_or_loses_its_process_is_lost() -> None:
    with running() as runner:
        run(runner, "")
        for end, reason in [(signal.SIGKILL, "its process is gone"), (signal.SIGSTOP, "it took longer than 2 s")]:
            runner.run("it", Job("while (1);"))
            os.kill(pids(runner)[0], end)
            assert results(runner, 1) == {"it": Lost(reason)}
            assert run(runner, "$outmessage = 'next'") == Made(b"next"), "another process takes over"


@pytest.mark.behaviour("8.3")
def test_a_script_that_crashes_its_process_has_failed() -> None:
    with running() as runner:
        run(runner, "")
        runner.run("it", Job("while (1);"))
        os.kill(pids(runner)[0], signal.SIGSEGV)
        assert results(runner, 1) == {"it": Failed("it crashed its process (SIGSEGV)")}


def test_no_process_is_left() -> None:
    with running(2) as runner:
        for name in range(4):
            runner.run(name, Job("while (1);", owner=name))
        assert len(results(runner, 4)) == 4
        known = pids(runner)
        assert known
    assert not any(Path(f"/proc/{pid}").exists() for pid in known)


LIVE_AND_LOOP = """
from subscriptions.scripts.jobs import Job
from subscriptions.scripts.runner import ScriptRunner
runner = ScriptRunner(1)
runner.run(1, Job("1"))
while not runner.finished(): pass
runner.run(2, Job("while (1);"))
print([seat.process.pid for seat in runner._seats][0], flush=True)
input()
"""


@pytest.mark.behaviour("8.3")
def test_processes_die_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LIVE_AND_LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not _runs(pid), 1.0)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.behaviour("8.3")
def test_slow_scripts_do_not_keep_quick_ones_waiting() -> None:
    with running(2) as runner:
        quick = [Job("$outmessage = 'quick'", owner=number) for number in range(3)]
        for job in quick:
            runner.run(job.owner, job)
        results(runner, 3)  # now they are known to be quick
        for number in range(20):
            runner.run(f"slow {number}", Job("while (1);", owner=100 + number))
        for job in quick:
            runner.run(job.owner, job)
        done = results(runner, 3)
        assert sum(isinstance(result, Made) for result in done.values()) == 3, "while the slow ones still wait"


@pytest.mark.behaviour("8.3")
def test_a_script_that_turns_slow_begins_again_among_the_slow() -> None:
    with running(2) as runner:
        for _ in range(2):
            assert run(runner, "$outmessage = 'done'", owner=7) == Made(b"done")
        assert runner._waiting.pace_of(7) is Pace.QUICK
        slow = "for (let i = 0; i < 8e6; i++); $outmessage = 'done'"
        assert run(runner, slow, owner=7) == Made(b"done")
        assert runner._waiting.pace_of(7) is Pace.SLOW


@pytest.mark.behaviour("8.3")
def test_who_ends_its_process_is_slow() -> None:
    with running() as runner:
        for _ in range(2):
            run(runner, "", owner=7)
        runner.run("it", Job("while (1);", owner=7))
        os.kill(pids(runner)[0], signal.SIGKILL)
        assert results(runner, 1) == {"it": Lost("its process is gone")}
        assert runner._waiting.pace_of(7) is Pace.SLOW


def test_one_process_is_started_in_a_look() -> None:
    with running(3) as runner:
        for number in range(6):
            runner.run(number, Job("1", owner=number))
        assert len(pids(runner)) == 1
        assert runner.patience() == 0, "the next is started at once, in the next look"
        assert len(results(runner, 6)) == 6


def test_without_scripts_there_is_nothing_to_do() -> None:
    with running() as runner:
        assert (runner.finished(), runner.patience(), pids(runner)) == ([], None, [])


# --- checking --------------------------------------------------------------------------------------


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
