"""Reading the head of an answer: in one pass, whatever an endpoint puts there."""

from collections.abc import Collection
from typing import Final

MOST_CHARACTERS: Final = 1024
"""A value that is longer counts as none."""


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
        if wanted and 0 < len(text) <= MOST_CHARACTERS and text.isascii() and text.isprintable():
            found.setdefault(wanted, text)
    return found
