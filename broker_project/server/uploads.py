"""Receive request bodies within limits: size, rate, and bytes held at a time."""

import asyncio
import contextlib
from collections.abc import Hashable
from typing import Any, Final

from django.conf import settings
from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from broker_project.core.fair_share import FairShare
from broker_project.server.browser_headers import Answer, refusal
from subscriptions.credentials.tokens import bearer_in, recent_tokens

UNAUTHENTICATED_SHARE: Final = 8
"""One part in this many is for callers that have shown no key recently, but at least one body of the largest size."""

SMALL_BYTES: Final = 64 * 1024
"""A body with this `Content-Length` or less is received in one piece and outside the quota: a turn of the loop costs
0.1 ms, and the number of connections limits small bodies."""
MIN_BYTES_PER_SECOND: Final = 32 * 1024
"""A body that arrives at this rate has more time for the rest."""
MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a refused body that are read nevertheless: a client that is still sending does not see an answer."""
DISCARD_SECONDS: Final = 5

TOO_LARGE: Final = refusal(413, "body_too_large", f"A body has at most {settings.MAX_BATCH_BYTES} bytes.")
INCOMPLETE: Final = refusal(400, "incomplete_body", "The body ended early.")
NO_ROOM: Final = refusal(
    503, "no_room", "Too many large bodies are on their way in; send it again later.", retry_after=1
)
TOO_SLOW: Final = refusal(
    408,
    "body_too_slow",
    f"A body has {settings.UPLOAD_SECONDS} seconds, and one more for each {MIN_BYTES_PER_SECOND} bytes of it.",
)


class UploadQuotas:
    """The quotas of one process: callers without a known key cannot use up the bytes of the others, and vice versa."""

    def __init__(self, max_bytes: int) -> None:
        unauthenticated = max(settings.MAX_BATCH_BYTES, max_bytes // UNAUTHENTICATED_SHARE)
        self._unauthenticated = FairShare(unauthenticated, unauthenticated)
        self._authenticated = FairShare(max_bytes - unauthenticated, (max_bytes - unauthenticated) // 2)

    def quota_of(self, authorization: str) -> tuple[FairShare, Hashable]:
        """Return the quota for a request with this `Authorization` header, and the caller that counts there."""
        caller = hash(bearer_in(authorization))
        return (self._authenticated, caller) if caller in recent_tokens else (self._unauthenticated, None)


class Upload:
    """The body of one request while it arrives."""

    def __init__(self, headers: Any, quota: FairShare, caller: Hashable) -> None:
        self.body = b""
        self.refusal: Answer | None = None
        self._quota = quota
        self._caller = caller
        self._taken = 0
        """Bytes of the quota."""
        self._received = bytearray()
        self._size = 0
        self._empty_chunks = 0
        length = headers.get("content-length")
        self._length = None if length is None else int(length)
        self._has_body = bool(self._length) or "transfer-encoding" in headers

    async def receive(self, protocol: Any) -> None:
        """Receive the body into `body`; set `refusal` if it is too large, too slow or incomplete."""
        if not self._has_body:
            return
        try:
            async with asyncio.timeout(settings.UPLOAD_SECONDS) as limit:
                if self._length is None or self._length > SMALL_BYTES:
                    await self._receive_in_chunks(protocol, limit)
                else:
                    with contextlib.suppress(ProtocolClosed):
                        self.body = await protocol()
                    self._size = len(self.body)
        except TimeoutError:
            self._refuse(TOO_SLOW)
        # granian hides that a connection broke. With chunks, one empty chunk is the end and two are a break.
        is_complete = self._empty_chunks < 2 if self._length is None else self._size == self._length  # noqa: PLR2004
        if not is_complete:
            self._refuse(INCOMPLETE)  # unless it is refused already

    def release(self) -> None:
        """Drop the body and give back its share of the quota; once is enough, more does no harm."""
        self.body, self._received = b"", bytearray()
        taken, self._taken = self._taken, 0
        if taken:
            self._quota.give_back(self._caller, taken)

    async def _receive_in_chunks(self, protocol: Any, limit: asyncio.Timeout) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        async for chunk in protocol:
            self._size += len(chunk)
            self._empty_chunks += not chunk
            if self.refusal and self._size > MAX_DISCARDED_BYTES:
                break
            if not self.refusal:
                self._keep(chunk)
                more = self._size / MIN_BYTES_PER_SECOND
                limit.reschedule(now() + DISCARD_SECONDS if self.refusal else began + settings.UPLOAD_SECONDS + more)
        self.body, self._received = bytes(self._received), bytearray()

    def _keep(self, chunk: bytes) -> None:
        if self._size > settings.MAX_BATCH_BYTES:
            self._refuse(TOO_LARGE)
        elif self._quota.take(self._caller, len(chunk)):
            self._taken += len(chunk)
            self._received += chunk
        else:
            self._refuse(NO_ROOM)

    def _refuse(self, answer: Answer) -> None:
        self.refusal = self.refusal or answer
        self.release()
