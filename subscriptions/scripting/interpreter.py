"""JavaScript with its limits: what runs inside a script's process (contract 8.1, 8.3)."""

import json
import re
from typing import Any, Final

import _quickjs

from subscriptions.scripting.jobs import (
    MAX_HEAD_BYTES,
    MAX_OUTPUT_BYTES,
    MEMORY_BYTES,
    STACK_BYTES,
    TOO_LARGE_A_HEAD,
    TOO_MUCH_CPU,
    TOO_MUCH_MEMORY,
    TOO_MUCH_OUTPUT,
)

COMPILED: Final = "__compiled_and_not_run"
UNTOLD: Final = "(Failed obtaining"
"""What stands for an exception that has no text, such as a symbol."""
MAX_REASON: Final = 300
MAX_READ: Final = 4096


LINE: Final = re.compile(r"<(?:input|eval)>:(\d+)")

ASYNC: Final = re.compile(
    r"""
    (?<![\w$])                         # a word of its own,
    (?<! (?<!\.)\. )                   # not the name of a property after a point (but after the three of a spread),
    (?! (?<=(["'`]))async\1 )          # not all of a string;
    async (?![\w$])
    (?= [^\S\n\r\u2028\u2029]*         # and on its line there follows something
        [^\s:,;.=)}\]<>&|?+%^!~`-] )   # that can be a function's: a word, a bracket, an asterisk, a string, a comment
    """,
    re.VERBOSE,
)
"""Errs on one side only: it finds more than functions in comments and in strings of several words."""


def line_of_async(source: str) -> int | None:
    """Return the line, from 1, in which an async function may begin; None where there is none for certain."""
    found = ASYNC.search(source)
    return source.count("\n", 0, found.start()) + 1 if found else None


PLAINER: Final = {
    "InternalError: interrupted": TOO_MUCH_CPU,
    "InternalError: out of memory": TOO_MUCH_MEMORY,
    "InternalError: stack overflow": "it calls itself too deep",
    "null": f"it threw null, or {TOO_MUCH_MEMORY}",  # out of memory, there may be none for the error
    "": "it threw something without a text",
}
TOO_MUCH: Final = {
    "stack overflow": "nested too deep",
    "interrupted": "too large",
    "out of memory": "too large",
    "null": "too large",
}
"""What a message is for JavaScript, by what reading it throws."""


class Refused(Exception):
    """What a script made cannot be sent."""


def answer(prelude: str, job: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Run or check a script; return head and body of the answer, `failed` in the head if it did."""
    try:
        return check(job) if job["only_check"] else run(prelude, job, body)
    except _quickjs.JSException as thrown:
        return {"failed": told(str(thrown))}, b""
    except MemoryError:
        return {"failed": TOO_MUCH_MEMORY}, b""
    except Refused as refused:
        return {"failed": told(str(refused))}, b""
    except Exception:  # noqa: BLE001 - it has changed what the prelude works with: that ends no process
        return {"failed": "what it made cannot be read"}, b""


def check(job: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Compile a script and run nothing of it: what is declared after it is declared already, which ends it at once.

    It is compiled as it is run, and once more behind something else, so that nothing of the end is part of it.
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
    collect = taken(context.eval(prelude), given(job, body))
    context.eval(f"{job['source']}\n;0")  # whatever its last expression is, it need not become Python's
    if context.execute_pending_job():
        raise Refused("it waits for a promise, but a script runs once, without waiting")
    try:
        made, headers, param, status = json.loads(collect())
    except _quickjs.JSException as thrown:
        raise Refused(str(thrown).partition("\n")[0]) from None  # lines would be the prelude's
    output = b"" if made is None else whole(made).encode()
    answer = {
        "has_body": made is not None,
        "headers": {whole(name): whole(value) for name, value in headers},
        "param": whole(param),
        "status": whole(status),
    }
    if len(output) > MAX_OUTPUT_BYTES:
        raise Refused(TOO_MUCH_OUTPUT)
    if len(json.dumps(answer)) > MAX_HEAD_BYTES:
        raise Refused(TOO_LARGE_A_HEAD)
    return answer, output


def refuse_async(source: str) -> None:
    """Refuse functions whose exceptions nobody would see: they end up in promises, which nobody waits for.

    Raises:
        Refused: the word is where such a function may begin.

    """
    if line := line_of_async(source):
        raise Refused(f"async functions are not available: a script runs once, without waiting (line {line})")


def taken(prelude: Any, message: str) -> Any:
    """Give the prelude the message; return what tells what the script made of it.

    Raises:
        Refused: as JavaScript the message breaks a limit, before the script has begun.

    """
    try:
        return prelude(message)
    except (_quickjs.JSException, MemoryError) as thrown:
        text = str(thrown).partition("\n")[0]
        what = next((what for sign, what in TOO_MUCH.items() if sign in text), "not readable")
        raise Refused(f"the message is {what} for a script") from None


def new_context(job: dict[str, Any]) -> Any:
    """Return a context with its limits: what broke them can be told from within mostly, and the process lives on."""
    context = _quickjs.Context()
    context.set_memory_limit(MEMORY_BYTES)
    context.set_max_stack_size(STACK_BYTES)
    context.set_time_limit(job["cpu_seconds"])
    return context


def given(job: dict[str, Any], body: bytes) -> str:
    """Return what the prelude takes, in ASCII; a body that is no text is null."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    message = {"text": text, "isJson": job["is_json"], "headers": job["headers"]}
    return json.dumps({**message, "now": job["now"], "seed": job["seed"], "most": MAX_OUTPUT_BYTES})


def whole(text: str) -> str:
    """Return a text that UTF-8 can hold: half of a surrogate pair becomes U+FFFD, as in a browser."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def told(text: str) -> str:
    """Return what an exception says, on one line, and where it was."""
    first = "".join(character for character in text[:MAX_READ].partition("\n")[0] if character.isprintable())
    first = first[:MAX_REASON]
    if first in PLAINER:
        return PLAINER[first]
    if first.startswith(UNTOLD):
        return PLAINER[""]
    line = LINE.search(text)
    return f"{first} (line {line[1]})" if line else first
