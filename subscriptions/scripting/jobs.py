"""Jobs and results of script processes, the frames that carry them, and the limits of scripts (contract 8.3)."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MAX_SOURCE_BYTES: Final = 64 * 1024
CPU_SECONDS: Final = 0.25
TRIAL_CPU_SECONDS: Final = 0.05
"""A script that uses more CPU than this is slow."""
TOTAL_SECONDS: Final = 2.0
MEMORY_BYTES: Final = 32 * 1024 * 1024
STACK_BYTES: Final = 256 * 1024
MAX_OUTPUT_BYTES: Final = 1024 * 1024
MAX_HEAD_BYTES: Final = 256 * 1024
"""Of an answer without its body: headers and parameter."""

TOO_MUCH_CPU: Final = f"it used more than {CPU_SECONDS * 1000:.0f} ms of CPU"
TOO_LONG: Final = f"it took longer than {TOTAL_SECONDS:g} s"
TOO_MUCH_MEMORY: Final = f"it used more than {MEMORY_BYTES // 1024**2} MiB of memory"

LENGTHS: Final = struct.Struct(">II")
"""Precedes each frame: the number of bytes of its head and of its body."""

Frame = tuple[dict[str, Any], bytes]


def packed(head: dict[str, Any], body: bytes) -> bytes:
    """Return the bytes of a frame."""
    encoded = json.dumps(head).encode()
    return LENGTHS.pack(len(encoded), len(body)) + encoded + body


def take_frame(received: bytearray, *, max_head: int, max_body: int) -> Frame | None:
    """Take the first frame out of `received`, None if incomplete; raise `ValueError` if it is too long or not JSON."""
    if len(received) < LENGTHS.size:
        return None
    head_bytes, body_bytes = LENGTHS.unpack_from(received)
    if head_bytes > max_head or body_bytes > max_body:
        raise ValueError("too long")
    begin, end = LENGTHS.size + head_bytes, LENGTHS.size + head_bytes + body_bytes
    if len(received) < end:
        return None
    head, body = bytes(received[LENGTHS.size : begin]), bytes(received[begin:end])
    del received[:end]
    try:
        return json.loads(head), body
    except RecursionError:
        raise ValueError("nested too deep") from None


@dataclass(frozen=True, slots=True)
class Job:
    """A script and the message it runs for."""

    source: str
    owner: int = 0
    """The id that CPU time is accounted to: how fast its earlier scripts were decides which processes run this one."""
    body: bytes = b""
    is_json: bool = False
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    now_ms: int = 0
    """The time that the script sees, in milliseconds since 1970."""
    seed: int = 0
    """Of the randomness that the script sees, 32 bits."""
    only_check: bool = False
    """Compile the script without running it."""

    def head(self, cpu_seconds: float) -> dict[str, object]:
        """Return the head of its frame: the CPU limit, and all fields except owner and body."""
        sent = ("source", "is_json", "headers", "now_ms", "seed", "only_check")
        return {"cpu_seconds": cpu_seconds, **{name: getattr(self, name) for name in sent}}


@dataclass(frozen=True, slots=True)
class Made:
    """What a script made of its message."""

    body: bytes | None = None
    """None: the message's own."""
    headers: Mapping[str, str] = field(default_factory=dict)
    param: str = ""
    status: str = "200"
    """Of the response to a SYNC call, as the script wrote it; not validated."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It threw, broke a limit or is not JavaScript: a retry would fail in the same way."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Its process took too long or has ended: a retry may succeed."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """No process was free in time; nothing has happened."""


Result = Made | Failed | Lost | NotRun


def is_well_formed(text: str) -> bool:
    """Tell whether UTF-8 can encode a text: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def result_of(head: object, body: bytes) -> Result:
    """Return the result in a process's answer; raise `ValueError` for what only a script that broke out would say."""
    match head:
        case {"failed": reason}:
            if isinstance(reason, str) and reason.isprintable():
                return Failed(reason)
        case {"has_body": has_body, "headers": dict(headers), "param": str(param), "status": str(status)}:
            texts = [param, status, *headers, *headers.values()]
            if all(isinstance(text, str) and is_well_formed(text) for text in texts):
                return Made(body if has_body else None, headers, param, status)
        case {} if not head:  # it is ready, or has compiled the script
            return Made()
    raise ValueError("not an answer")
