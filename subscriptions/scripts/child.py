"""The program of a script's process: takes a job, runs it in a fresh context, answers, takes the next.

It is started by its path and imports nothing of the broker but the limits. What it could do to anybody is dropped
before the first script: no file or socket can be opened any more. Its parent watches its CPU clock and kills it
(behaviour 8.3).
"""

import ctypes
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final

import _quickjs

from subscriptions.scripts.limits import (
    CPU_SECONDS,
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
CONNECTION: Final = 0
"""The descriptor of the socket to the parent."""
LENGTHS: Final = struct.Struct(">II")
"""Before each frame: the bytes of its head, which is JSON, and of its body."""
PR_SET_PDEATHSIG: Final = 1
PR_SET_NO_NEW_PRIVS: Final = 38
NICENESS: Final = 5
"""The broker's own work comes first; much more, and a busy machine would let scripts run into the limit of time."""
DATA_BYTES: Final = 128 * 1024 * 1024
SPARE_CPU_SECONDS: Final = 2
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


def drop_privileges(parent: int) -> None:
    """Give up whatever a script has no use for, and die with the parent."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit()  # it had gone before
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    os.nice(NICENESS)
    for limit, most in {
        resource.RLIMIT_DATA: DATA_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 0,
    }.items():
        resource.setrlimit(limit, (most, most))


def serve(prelude: str) -> None:
    """Answer jobs until the parent hangs up."""
    connection = socket.socket(fileno=CONNECTION)
    send(connection, {}, b"")  # ready
    while True:
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SPARE_CPU_SECONDS, resource.RLIM_INFINITY))
        lengths = receive(connection, LENGTHS.size)
        head, body = (receive(connection, length) for length in LENGTHS.unpack(lengths))
        send(connection, *answer(prelude, json.loads(head), body))


def answer(prelude: str, job: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Run or check a script; return head and body of the answer, `failed` in the head if it did."""
    try:
        return check(job["source"]) if job["only_check"] else run(prelude, job, body)
    except _quickjs.JSException as thrown:
        return {"failed": told(str(thrown))}, b""
    except MemoryError:
        return {"failed": TOO_MUCH_MEMORY}, b""
    except Refused as refused:
        return {"failed": told(str(refused))}, b""
    except (ValueError, TypeError, AttributeError):
        return {"failed": "what it made cannot be read"}, b""  # it has changed what the prelude works with


def check(source: str) -> tuple[dict[str, Any], bytes]:
    """Compile a script and run nothing of it: what is put before it ends it at once."""
    try:
        new_context().eval(f'throw "{COMPILED}"; {source}')
    except _quickjs.JSException as thrown:
        if not str(thrown).startswith(COMPILED):
            raise
    return {}, b""


def run(prelude: str, job: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Run a script for a message."""
    context = new_context()
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


def new_context() -> Any:
    """Return a context with its limits: what broke them can be told from within mostly, and the process lives on."""
    context = _quickjs.Context()
    context.set_memory_limit(MEMORY_BYTES)
    context.set_max_stack_size(STACK_BYTES)
    context.set_time_limit(CPU_SECONDS)
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
    line = LINE.search(text)
    return f"{first} (line {line[1]})" if line else first


def receive(connection: socket.socket, length: int) -> bytes:
    """Return so many bytes; end the process where the parent has hung up."""
    received = bytearray()
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            sys.exit()
        received += chunk
    return bytes(received)


def send(connection: socket.socket, head: dict[str, Any], body: bytes) -> None:
    """Send a frame."""
    encoded = json.dumps(head).encode()
    connection.sendall(LENGTHS.pack(len(encoded), len(body)) + encoded + body)


if __name__ == "__main__":
    source = Path(__file__).with_name("prelude.js").read_text()
    drop_privileges(parent=int(sys.argv[1]))
    serve(source)
