"""Bodies on their way in, as the web server hands them over: how large, how slow, how many at a time."""

import asyncio
import contextlib
from typing import Any, Final

from django.conf import settings
from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from broker_project.server.refusals import Answer, refusal
from broker_project.server.rooms import Claim

SMALL_BYTES: Final = 64 * 1024
"""A body that says it is no larger is taken at once, since each turn of the loop costs 0.1 ms, and takes no room: so
small, the number of connections bounds them all."""
LEAST_BYTES_A_SECOND: Final = 32 * 1024
"""What has arrived at this rate gives the rest more time."""
MOST_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""So much of a body that is refused is read all the same: who is still sending does not see an answer."""
DISCARD_SECONDS: Final = 5
"""And for so long."""

TOO_LARGE: Final = refusal(
    413, "body_too_large", "Body too large", f"A body has at most {settings.MAX_BATCH_BYTES} bytes."
)
INCOMPLETE: Final = refusal(400, "incomplete_body", "Incomplete body", "The body ended early.")
TOO_SLOW: Final = refusal(
    408,
    "body_too_slow",
    "Body too slow",
    f"A body has {settings.UPLOAD_SECONDS} seconds, and one more for each {LEAST_BYTES_A_SECOND} bytes of it.",
)
NO_ROOM: Final = refusal(
    503, "no_room", "No room", "Too many large bodies are on their way in; send it again later.", retry_after=1
)


class Upload:
    """A body on its way in."""

    def __init__(self, headers: Any, claim: Claim) -> None:
        self.body = b""
        self.refusal: Answer | None = None
        self._claim = claim
        self._held = bytearray()
        self._size = 0
        self._ends = 0
        length = headers.get("content-length")
        self._length = None if length is None else int(length)
        self._is_there = bool(self._length) or "transfer-encoding" in headers

    async def receive(self, protocol: Any) -> None:
        """Take it from the server; if it is too large, too slow, or only a part, `refusal` is the answer."""
        if not self._is_there:
            return
        try:
            async with asyncio.timeout(settings.UPLOAD_SECONDS) as limit:
                if self._length is None or self._length > SMALL_BYTES:
                    await self._receive_in_chunks(protocol, limit)
                else:
                    await self._receive_at_once(protocol)
        except TimeoutError:
            self._refuse(TOO_SLOW)
        if not self.refusal and not self._is_whole():
            self._refuse(INCOMPLETE)

    def release(self) -> None:
        """Give back the room that it took, and hold nothing any more."""
        self.body, self._held = b"", bytearray()
        self._claim.release()

    async def _receive_at_once(self, protocol: Any) -> None:
        with contextlib.suppress(ProtocolClosed):
            self.body = await protocol()
        self._size = len(self.body)

    async def _receive_in_chunks(self, protocol: Any, limit: asyncio.Timeout) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        async for chunk in protocol:
            self._size += len(chunk)
            self._ends += not chunk
            if self.refusal and self._size > MOST_DISCARDED_BYTES:
                break
            if not self.refusal:
                self._hold(chunk)
                more = self._size / LEAST_BYTES_A_SECOND
                limit.reschedule(now() + DISCARD_SECONDS if self.refusal else began + settings.UPLOAD_SECONDS + more)
        self.body, self._held = bytes(self._held), bytearray()

    def _hold(self, chunk: bytes) -> None:
        if self._size > settings.MAX_BATCH_BYTES:
            self._refuse(TOO_LARGE)
        elif self._claim.take(len(chunk)):
            self._held += chunk
        else:
            self._refuse(NO_ROOM)

    def _refuse(self, answer: Answer) -> None:
        self.refusal = self.refusal or answer
        self.release()

    def _is_whole(self) -> bool:
        # granian hides that a connection broke; in chunks, one empty chunk stands for the end and two for a break.
        return self._ends < 2 if self._length is None else self._size == self._length  # noqa: PLR2004
