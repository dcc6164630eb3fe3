"""Bodies on their way in, as the web server hands them over: how large, how slow, how many at a time."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Hashable
from threading import Lock
from typing import Any, Final

from django.conf import settings
from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from broker_project.server.browser_headers import Answer, refusal
from subscriptions.credentials.tokens import recently_authenticated

STRANGERS_PART: Final = 8
"""One part of so many is for those who have shown no key lately, though at least one body as large as any may be."""
NOBODY_KNOWN: Final = None

SMALL_BYTES: Final = 64 * 1024
"""A body that says it is no larger is taken at once, since each turn of the loop costs 0.1 ms, and takes no room: so
small, the number of connections bounds them all."""
MIN_BYTES_PER_SECOND: Final = 32 * 1024
"""What has arrived at this rate gives the rest more time."""
MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""So much of a body that is refused is read all the same: who is still sending does not see an answer."""
DISCARD_SECONDS: Final = 5
"""And for so long."""

TOO_LARGE: Final = refusal(
    413, "body_too_large", "Body too large", f"A body has at most {settings.MAX_BATCH_BYTES} bytes."
)
INCOMPLETE: Final = refusal(400, "incomplete_body", "Incomplete body", "The body ended early.")


NO_ROOM: Final = refusal(
    503, "no_room", "No room", "Too many large bodies are on their way in; send it again later.", retry_after=1
)


class Room:
    """How many bytes of bodies are held at a time, and how many of them for one.

    Taken by the server's loop, given back by whichever thread answers.
    """

    def __init__(self, most: int, max_each: int) -> None:
        self._lock = Lock()
        self._left = most
        self._most_each = max_each
        self._taken: Counter[Hashable] = Counter()

    def take(self, size: int, who: Hashable) -> bool:
        """Take so much, unless there is not so much left, or not for them."""
        with self._lock:
            if size > min(self._left, self._most_each - self._taken[who]):
                return False
            self._left -= size
            self._taken[who] += size
            return True

    def give_back(self, size: int, who: Hashable) -> None:
        """Give back what was taken."""
        with self._lock:
            self._left += size
            self._taken[who] -= size
            if not self._taken[who]:
                del self._taken[who]


class Claim:
    """What one body has of a room: taken as it arrives, given back once it is refused or answered."""

    def __init__(self, room: Room, who: Hashable) -> None:
        self._room = room
        self._who = who
        self._taken = 0

    def take(self, size: int) -> bool:
        """Take so much more, if there is room for it."""
        is_taken = self._room.take(size, self._who)
        self._taken += size * is_taken
        return is_taken

    def release(self) -> None:
        """Give back all of it, if that has not been done."""
        taken, self._taken = self._taken, 0
        if taken:
            self._room.give_back(taken, self._who)


class Rooms:
    """Those of one process: who is a stranger cannot take what is for the others, nor they what is for strangers."""

    def __init__(self, most: int) -> None:
        for_strangers = max(settings.MAX_BATCH_BYTES, most // STRANGERS_PART)
        self._strangers = Room(for_strangers, for_strangers)
        self._known = Room(most - for_strangers, (most - for_strangers) // 2)

    def claim(self, authorization: str) -> Claim:
        """Return what a body may take whose request has this `Authorization`."""
        who = recently_authenticated(authorization)
        return Claim(self._strangers, NOBODY_KNOWN) if who is None else Claim(self._known, who)


TOO_SLOW: Final = refusal(
    408,
    "body_too_slow",
    "Body too slow",
    f"A body has {settings.UPLOAD_SECONDS} seconds, and one more for each {MIN_BYTES_PER_SECOND} bytes of it.",
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
            if self.refusal and self._size > MAX_DISCARDED_BYTES:
                break
            if not self.refusal:
                self._hold(chunk)
                more = self._size / MIN_BYTES_PER_SECOND
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
