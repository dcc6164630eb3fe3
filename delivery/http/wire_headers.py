"""Headers as they go over the wire, and a request that has them ready."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from requests.structures import CaseInsensitiveDict

MAX_VALUE_CHARACTERS: Final = 1024
"""A value that is longer counts as none."""

NAME: Final = "Retry-After"
MAX_RETRY_AFTER_CHARACTERS: Final = 64
"""No number of seconds and no date is longer."""


def values_in(head: bytes, names: Collection[str]) -> dict[str, str]:
    """Return the first usable value of each of these headers, by name as asked for.

    `head` is status line and header lines as received; usable is what has 1 to 1,024 printable ASCII characters.
    """
    asked = {name.lower().encode(): name for name in names}
    found: dict[str, str] = {}
    for line in head.split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        wanted = asked.get(name.lower())
        text = value.strip(b" \t\r").decode("latin-1")
        if wanted and 0 < len(text) <= MAX_VALUE_CHARACTERS and text.isascii() and text.isprintable():
            found.setdefault(wanted, text)
    return found


def header_line(name: str, value: str) -> bytes:
    """Return a header as libcurl takes it: on one line, ended by a semicolon if it has no value."""
    return (f"{name}: {value}" if value else f"{name};").encode("latin-1", "replace").translate(None, b"\r\n\0")


@dataclass(slots=True)
class EncodedRequest:
    """A request whose headers are lines, as libcurl takes them."""

    method: str
    url: str
    lines: list[bytes]
    body: bytes

    @property
    def headers(self) -> CaseInsensitiveDict[str]:
        """The headers by name, made when they are read."""
        pairs = (line.decode("latin-1").partition(": ") for line in self.lines)
        return CaseInsensitiveDict({name.removesuffix(";"): value for name, _, value in pairs})


def retry_after_seconds(head: bytes, *, at: datetime) -> float | None:
    """Return the seconds asked for in an answer's header lines received `at`; None where none are, or nonsense."""
    text = values_in(head, [NAME]).get(NAME) if b"retry-after" in head.lower() else None
    if not text or len(text) > MAX_RETRY_AFTER_CHARACTERS:
        return None
    if text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # of numbers that no date has
        return None
    return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - at).total_seconds())
