"""The log of a run: a file that can be read while it grows, and does not grow beyond what somebody reads."""

import os
import re
from pathlib import Path
from typing import Final

HEAD_BYTES: Final = 256 * 1024
"""How it began."""
TAIL_BYTES: Final = 256 * 1024
"""How it ended, at the least; twice as much while it grows."""
MOST_KEPT_BYTES: Final = 64 * 1024
"""So much is kept of the beginning in the database, and as much of the end."""
OPTIONS_OF_JAVA: Final = re.compile(rb"^NOTE: Picked up JDK_JAVA_OPTIONS:.*\n?", re.MULTILINE)
"""Every Java says what it was told, passwords of stores of certificates among it."""


class RunLog:
    """A file of its owner that keeps the head and the tail of what is written to it."""

    def __init__(self, path: Path, *, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._head, self._tail = head, tail
        self._size = self._left_out = 0
        self._tail_starts = head

    def write(self, text: bytes) -> None:
        """Append; what is between head and tail is left out, which the file says."""
        for start in range(0, len(text), self._tail):
            self._size += os.pwrite(self._file, text[start : start + self._tail], self._size)
            if self._size > self._tail_starts + 2 * self._tail:
                self._shorten()

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)

    def _shorten(self) -> None:
        tail = os.pread(self._file, self._tail, self._size - self._tail)
        self._left_out += self._size - self._tail_starts - self._tail
        said = f"\n... {self._left_out} bytes are left out here ...\n".encode()
        self._tail_starts = self._head + len(said)
        self._size = self._head + os.pwrite(self._file, said + tail, self._head)
        os.ftruncate(self._file, self._size)


def kept(printed: Path) -> str:
    """Return what was printed, or its beginning and its end, as PostgreSQL takes it; not what Java was told."""
    text = OPTIONS_OF_JAVA.sub(b"", printed.read_bytes() if printed.exists() else b"")
    if len(text) > 2 * MOST_KEPT_BYTES:
        text = text[:MOST_KEPT_BYTES] + b"\n...\n" + text[-MOST_KEPT_BYTES:]
    return text.decode(errors="replace").replace("\0", "")
