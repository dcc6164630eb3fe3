"""Bodies on their way in, as the web server hands them over."""

import contextlib
import json
from typing import Any, Final

from django.conf import settings
from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from broker_project.middleware import headers_for

REFUSAL_HEADERS: Final = [
    ("content-type", "application/problem+json"),
    ("x-content-type-options", "nosniff"),
    *((name.lower(), value) for name, value in headers_for("/api/").items()),
]
MOST_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""So much of a body that is too large is read all the same: who is still sending does not see an answer."""

Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""


class Upload:
    """A body on its way in."""

    def __init__(self, headers: Any) -> None:
        self.body = b""
        self._size = 0
        self._ends = 0
        length = headers.get("content-length")
        self._length = None if length is None else int(length)
        self._is_there = bool(self._length) or "transfer-encoding" in headers

    async def receive(self, protocol: Any) -> None:
        """Take it from the server: at once if it says how large it is, since each turn of the loop costs 0.1 ms."""
        if not self._is_there:
            return
        if self._length is None or self._length > settings.MAX_BATCH_BYTES:
            await self._receive_in_chunks(protocol)
        else:
            with contextlib.suppress(ProtocolClosed):
                self.body = await protocol()
            self._size = len(self.body)

    async def _receive_in_chunks(self, protocol: Any) -> None:
        body = bytearray()
        async for chunk in protocol:
            self._size += len(chunk)
            self._ends += not chunk
            if self._size <= settings.MAX_BATCH_BYTES:
                body += chunk
            if self._size > MOST_DISCARDED_BYTES:
                break
        self.body = bytes(body)

    def refusal(self) -> Answer | None:
        """Return the answer to a body that is too large, or of which the publisher has sent only a part."""
        if self._size > settings.MAX_BATCH_BYTES:
            return _problem(413, "body_too_large", "Body too large")
        return None if self._is_whole() else _problem(400, "incomplete_body", "Incomplete body")

    def _is_whole(self) -> bool:
        # granian hides that a connection broke; in chunks, one empty chunk stands for the end and two for a break.
        return self._ends < 2 if self._length is None else self._size == self._length  # noqa: PLR2004


def _problem(status: int, code: str, title: str) -> Answer:
    problem = {"type": f"urn:broker:{code}", "code": code, "title": title, "status": status}
    return status, REFUSAL_HEADERS, json.dumps(problem).encode()
