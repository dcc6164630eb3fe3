"""Bodies on their way in, as the web server hands them over."""

import json
from typing import Any, Final

from django.conf import settings

MOST_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""So much of a body that is too large is read all the same: who is still sending does not see an answer."""

Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""


class Upload:
    """A body on its way in."""

    def __init__(self, headers: Any) -> None:
        self.body = bytearray()
        self._size = 0
        self._ends = 0
        self._length = headers.get("content-length")

    def take(self, chunk: bytes) -> bool:
        """Take what came; say whether there is any use in reading on."""
        self._size += len(chunk)
        self._ends += not chunk
        if self._size <= settings.MAX_BATCH_BYTES:
            self.body += chunk
        return self._size <= MOST_DISCARDED_BYTES

    def refusal(self) -> Answer | None:
        """Return the answer to a body that is too large, or of which the publisher has sent only a part."""
        if self._size > settings.MAX_BATCH_BYTES:
            return _problem(413, "body_too_large", "Body too large")
        return None if self._is_whole() else _problem(400, "incomplete_body", "Incomplete body")

    def _is_whole(self) -> bool:
        # granian hides that a connection broke; in chunks, one empty chunk stands for the end and two for a break.
        return self._ends < 2 if self._length is None else self._size == int(self._length)  # noqa: PLR2004


def _problem(status: int, code: str, title: str) -> Answer:
    problem = {"type": f"urn:broker:{code}", "code": code, "title": title, "status": status}
    return status, [("content-type", "application/problem+json")], json.dumps(problem).encode()
