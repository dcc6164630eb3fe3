"""What goes between a script's process and its parent: frames of a head, which is JSON, and a body of bytes."""

import json
import struct
from typing import Any, Final

LENGTHS: Final = struct.Struct(">II")
"""Before each frame: the bytes of its head and of its body."""

Frame = tuple[dict[str, Any], bytes]


def packed(head: dict[str, Any], body: bytes) -> bytes:
    """Return a frame as it is sent."""
    encoded = json.dumps(head).encode()
    return LENGTHS.pack(len(encoded), len(body)) + encoded + body


def take_frame(received: bytearray, *, most_head: int, most_body: int) -> Frame | None:
    """Take the first frame off what was received; None where it is not complete yet.

    Raises:
        ValueError: it is too long, or its head is not JSON.

    """
    if len(received) < LENGTHS.size:
        return None
    head_bytes, body_bytes = LENGTHS.unpack_from(received)
    if head_bytes > most_head or body_bytes > most_body:
        raise ValueError("too long")
    begin, end = LENGTHS.size + head_bytes, LENGTHS.size + head_bytes + body_bytes
    if len(received) < end:
        return None
    head, body = bytes(received[LENGTHS.size : begin]), bytes(received[begin:end])
    del received[:end]
    return json.loads(head), body
