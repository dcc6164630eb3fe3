"""What the sink answers to whom."""

from dataclasses import dataclass
from typing import Final

TAKEN: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
FAILED: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"

FAILING: Final = 99_999
"""The subscriber that is answered 500 at once; of what it gets no more is noted than when it came."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How all others are answered."""

    answer: bytes = TAKEN
    hanging: int = 0
    """Subscribers below this number are left without an answer."""
    delay: float = 0.0
    """Seconds until each answer."""
