"""Bodies that say where they come from: stream, number and moment of sending, at fixed places of 1 KB of JSON.

A stream is one connection that publishes one call after the other, so the broker keeps its order. Numbers rise by one
in each stream, for each event type.
"""

from typing import Final

BODY_BYTES: Final = 1024
_HEAD: Final = b'{"stream":"%02d","number":"%08d","sent":"%016d","text":"'
_TAIL: Final = b'"}'
_TEXT: Final = b"x" * (BODY_BYTES - len(_HEAD % (0, 0, 0)) - len(_TAIL)) + _TAIL

STREAM: Final = slice(11, 13)
NUMBER: Final = slice(25, 33)
SENT: Final = slice(43, 59)
"""Nanoseconds of the monotonic clock, which all processes of a machine share."""

PATH: Final = slice(6, 11)
"""Of a request to the sink: which subscriber it is for."""


def body_of(stream: int, number: int, sent: int) -> bytes:
    """Return the body with this number."""
    return _HEAD % (stream, number, sent) + _TEXT


def path_of(subscriber: int) -> str:
    """Return the path of a subscriber's endpoint at the sink."""
    return f"/{subscriber:05d}"
