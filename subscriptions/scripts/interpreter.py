"""JavaScript with its limits: what runs inside a script's process (behaviour 8.1, 8.3)."""

import json
import re
from typing import Any, Final

import _quickjs

from subscriptions.scripts.limits import (
    MAX_HEAD_BYTES,
    MAX_OUTPUT_BYTES,
    MEMORY_BYTES,
    STACK_BYTES,
    TOO_LARGE_A_HEAD,
    TOO_MUCH_CPU,
    TOO_MUCH_MEMORY,
    TOO_MUCH_OUTPUT,
)

COMPILED: Final = "compiled"
UNTOLD: Final = "(Failed obtaining"
"""What stands for an exception that has no text, such as a symbol."""
MOST_REASON: Final = 300
PLAINER: Final = {
    "InternalError: interrupted": TOO_MUCH_CPU,
    "InternalError: out of memory": TOO_MUCH_MEMORY,
    "InternalError: stack overflow": "it calls itself too deep",
    "null": f"it threw null, or {TOO_MUCH_MEMORY}",  # out of memory, there may be none for the error
    "": "it threw something without a text",
}
LINE: Final = re.compile(r"<(?:input|eval)>:(\d+)")


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
    except (ValueError, TypeError, AttributeError):
        return {"failed": "what it made cannot be read"}, b""  # it has changed what the prelude works with


def check(job: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Compile a script and run nothing of it: what is put before it ends it at once."""
    try:
        new_context(job).eval(f'throw "{COMPILED}"; {job["source"]}')
    except _quickjs.JSException as thrown:
        if not str(thrown).startswith(COMPILED):
            raise
    return {}, b""


def run(prelude: str, job: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Run a script for a message."""
    context = new_context(job)
    collect = context.eval(prelude)(given(job, body))
    context.eval(job["source"])
    if context.execute_pending_job():
        raise Refused("it waits for a promise, but a script runs once, without waiting")
    try:
        made, headers, param = json.loads(collect())
    except _quickjs.JSException as thrown:
        raise Refused(str(thrown).partition("\n")[0]) from None  # lines would be the prelude's
    output = b"" if made is None else whole(made).encode()
    answer = {
        "has_body": made is not None,
        "headers": {whole(name): whole(value) for name, value in headers},
        "param": whole(param),
    }
    if len(output) > MAX_OUTPUT_BYTES:
        raise Refused(TOO_MUCH_OUTPUT)
    if len(json.dumps(answer)) > MAX_HEAD_BYTES:
        raise Refused(TOO_LARGE_A_HEAD)
    return answer, output


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
    first = "".join(character for character in text.partition("\n")[0] if character.isprintable())[:MOST_REASON]
    if first in PLAINER:
        return PLAINER[first]
    if first.startswith(UNTOLD):
        return PLAINER[""]
    line = LINE.search(text)
    return f"{first} (line {line[1]})" if line else first
