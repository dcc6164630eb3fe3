"""The program of a script process: run JavaScript within its limits, one job after the other (contract 8.1, 8.3).

It is started by its path and imports nothing of the broker except what runs scripts. Before the first job it drops
every privilege: it cannot open, start or signal anything, and its output is discarded. The parent watches its CPU
clock and kills it.
"""

import ctypes
import json
import os
import re
import resource
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

import _quickjs

from broker_project.core.subprocesses import die_with, lower_priority
from subscriptions.scripting.jobs import (
    MAX_HEAD_BYTES,
    MAX_OUTPUT_BYTES,
    MEMORY_BYTES,
    STACK_BYTES,
    TOO_MUCH_CPU,
    TOO_MUCH_MEMORY,
    Frame,
    packed,
    take_frame,
)
from subscriptions.scripting.seccomp import CONNECTION, confine, is_possible

CHUNK: Final = 1024 * 1024
MAX_BYTES: Final = 16 * CHUNK
"""More than any job has."""
STDOUT, STDERR = 1, 2
PR_SET_NO_NEW_PRIVS: Final = 38
NICENESS: Final = 5
"""The broker's own work comes first; with much more, scripts on a busy machine would exceed their time limit."""
MORE_BYTES: Final = 128 * 1024 * 1024
"""Of memory, than it has before the first job."""
SPARE_CPU_SECONDS: Final = 2

COMPILED: Final = "__compiled_and_not_run"
NO_TEXT: Final = "(Failed obtaining"
"""What quickjs reports for an exception without text, such as a symbol."""
MAX_REASON: Final = 300
MAX_READ: Final = 4096
LINE: Final = re.compile(r"<(?:input|eval)>:(\d+)")
ASYNC: Final = re.compile(
    r"""
    (?<![\w$])                         # a whole word,
    (?<! (?<!\.)\. )                   # not a property name after a point (but after the three points of a spread),
    (?! (?<=(["'`]))async\1 )          # not an entire string;
    async (?![\w$])
    (?= [^\S\n\r\u2028\u2029]*         # and followed on its line by something that can begin a function:
        (?: [^\s:,;.=)}\]<>&|?+%^!~`-] # a word, a bracket, an asterisk, a string, a comment,
        | \.\d ) )                     # a number
    """,
    re.VERBOSE,
)
"""May match in comments and in strings of several words, but misses no async function."""

PLAIN_REASONS: Final = {
    "InternalError: interrupted": TOO_MUCH_CPU,
    "InternalError: out of memory": TOO_MUCH_MEMORY,
    "InternalError: stack overflow": "it calls itself too deep",
    "null": f"it threw null, or {TOO_MUCH_MEMORY}",  # out of memory, there may be none for the error
    "": "it threw something without a text",
}
MESSAGE_PROBLEMS: Final = {
    "stack overflow": "nested too deep",
    **dict.fromkeys(("interrupted", "out of memory", "null"), "too large"),
}
"""What is wrong with a message that JavaScript cannot read, by the exception's text."""


class RefusedScriptError(Exception):
    """The script is not run, or its output cannot be sent."""


def answer(prelude: str, job: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Run or check a script; return head and body of the answer, with the reason as `failed` if it failed."""
    try:
        return check(job) if job["only_check"] else run(prelude, job, body)
    except (_quickjs.JSException, RefusedScriptError) as failure:
        reason = reason_of(str(failure))
    except MemoryError:
        reason = TOO_MUCH_MEMORY
    except Exception:  # noqa: BLE001 - the script has changed what the prelude works with: the process goes on
        reason = "what it made cannot be read"
    return {"failed": reason}, b""


def check(job: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Compile a script without running it: a declaration that is already declared ends it at once.

    It is compiled as it is run, and once more before that declaration, so that a comment cannot hide the end.
    """
    refuse_async(job["source"])
    for compiled in (f'throw "{COMPILED}"; {job["source"]}', f"{job['source']}\n;let {COMPILED}"):
        context = new_context(job)
        context.eval(f'Object.defineProperty(globalThis, "{COMPILED}", {{value: 1}}); 0')
        try:
            context.eval(compiled)
        except _quickjs.JSException as thrown:
            if COMPILED not in str(thrown).partition("\n")[0]:
                raise
    return {}, b""


def run(prelude: str, job: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Run a script for a message."""
    refuse_async(job["source"])
    context = new_context(job)
    collect = load_message(context.eval(prelude), job, body)
    context.eval(f"{job['source']}\n;0")  # the value of its last expression need not become Python's
    if context.execute_pending_job():
        raise RefusedScriptError("it waits for a promise, but a script runs once, without waiting")
    try:
        made, headers, param, status = json.loads(collect())
    except _quickjs.JSException as thrown:
        raise RefusedScriptError(str(thrown).partition("\n")[0]) from None  # lines would be the prelude's
    output = b"" if made is None else well_formed(made).encode()
    answer = {
        "has_body": made is not None,
        "headers": {well_formed(name): well_formed(value) for name, value in headers},
        "param": well_formed(param),
        "status": well_formed(status),
    }
    if len(output) > MAX_OUTPUT_BYTES:
        raise RefusedScriptError("$outmessage is larger than 1 MiB")
    if len(json.dumps(answer)) > MAX_HEAD_BYTES:
        raise RefusedScriptError("$outheader and $param are too large")
    return answer, output


def refuse_async(source: str) -> None:
    """Raise `RefusedScriptError` for async functions: their exceptions would be lost in promises nobody awaits."""
    if line := line_of_async(source):
        raise RefusedScriptError(
            f"async functions are not available: a script runs once, without waiting (line {line})"
        )


def line_of_async(source: str) -> int | None:
    """Return the line, from 1, in which an async function may begin; None if there is certainly none."""
    found = ASYNC.search(source)
    return source.count("\n", 0, found.start()) + 1 if found else None


def load_message(prelude: Any, job: dict[str, Any], body: bytes) -> Any:
    """Give the prelude the message, as ASCII; return the function that collects the script's output.

    A body that is not UTF-8 is null. Raise `RefusedScriptError` if the message breaks a limit as JavaScript already.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    message = {"text": text, "isJson": job["is_json"], "headers": job["headers"]}
    try:
        return prelude(json.dumps({**message, "now": job["now_ms"], "seed": job["seed"], "most": MAX_OUTPUT_BYTES}))
    except (_quickjs.JSException, MemoryError) as thrown:
        first = str(thrown).partition("\n")[0]
        problem = next((problem for sign, problem in MESSAGE_PROBLEMS.items() if sign in first), "not readable")
        raise RefusedScriptError(f"the message is {problem} for a script") from None


def new_context(job: dict[str, Any]) -> Any:
    """Return a context with the limits; a script that breaks one usually gets an exception and the process lives on."""
    context = _quickjs.Context()
    context.set_memory_limit(MEMORY_BYTES)
    context.set_max_stack_size(STACK_BYTES)
    context.set_time_limit(job["cpu_seconds"])
    return context


def well_formed(text: str) -> str:
    """Return a text that UTF-8 can encode: half of a surrogate pair becomes U+FFFD, as in a browser."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def reason_of(text: str) -> str:
    """Return the first line of an exception's text, shortened, and the line of the script."""
    first = "".join(character for character in text[:MAX_READ].partition("\n")[0] if character.isprintable())
    first = first[:MAX_REASON]
    if first in PLAIN_REASONS:
        return PLAIN_REASONS[first]
    if first.startswith(NO_TEXT):
        return PLAIN_REASONS[""]
    line = LINE.search(text)
    return f"{first} (line {line[1]})" if line else first


def drop_privileges(parent: int) -> None:
    """Give up everything that a script does not need, and die with the parent."""
    die_with(parent)
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    lower_priority(NICENESS)
    os.dup2(STDOUT, STDERR)  # discarded; until now the worker's log, for errors at the start of this program
    limit_memory()
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))


def limit_memory() -> None:
    """Limit this process's memory of every kind: page tables grow even with what is only read."""
    pages, *_ = Path("/proc/self/statm").read_text().split()
    most = int(pages) * resource.getpagesize() + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def serve(prelude: str, connection: socket.socket) -> None:
    """Answer jobs until the parent hangs up (EOFError)."""
    connection.sendall(packed({}, b""))  # ready
    while True:
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SPARE_CPU_SECONDS, resource.RLIM_INFINITY))
        job, body = receive(connection)
        connection.sendall(packed(*answer(prelude, job, body)))


def receive(connection: socket.socket) -> Frame:
    """Return the next frame; raise `EOFError` if the parent has hung up."""
    received = bytearray()
    while not (frame := take_frame(received, max_head=MAX_BYTES, max_body=MAX_BYTES)):
        chunk = connection.recv(CHUNK)
        if not chunk:
            raise EOFError
        received += chunk
    return frame


if __name__ == "__main__":
    source = Path(__file__).with_name("prelude.js").read_text()
    drop_privileges(parent=int(sys.argv[1]))
    opened = socket.socket(fileno=CONNECTION)
    if is_possible():
        confine()
    try:
        serve(source, opened)
    finally:
        os._exit(0)  # at once: a traceback needs system calls that would look like a crash by the script
