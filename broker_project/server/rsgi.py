"""What the web server runs: the WSGI application behind granian's RSGI, which keeps headers apart.

WSGI has one variable for `FILTER_STRING` and `Filter-String`; with both sent, only here can it be seen whether they
differ (behaviour 2.3). Besides, a body that comes in chunks has its length known before Django looks at it, and a
view that lets its client wait can learn that nobody waits any more.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from django.conf import settings

from broker_project.server.environs import environ_of
from broker_project.server.request_head import Headers, refusal_of
from broker_project.server.rooms import Rooms
from broker_project.server.runtime import open_as_many_files_as_allowed, settle_in
from broker_project.server.uploads import Upload
from broker_project.wsgi import application as wsgi_application
from delivery.mailbox import long_poll
from delivery.mailbox.seats import seats_beside

DEPARTURE: Final = "broker.departure"
"""Where a view that lets its client wait finds a function: it begins to watch the client, and returns a future that is
done once that has hung up. Whoever asks for it cancels it in the end."""

_threads = ThreadPoolExecutor(settings.WEB_THREADS, thread_name_prefix="web")
_rooms = Rooms(settings.UPLOADS_BYTES)

settle_in()
open_as_many_files_as_allowed()
long_poll.HERE.limit(seats_beside(settings.WEB_THREADS))


class _Request:
    """One WSGI call: from RSGI's scope and the body to an answer."""

    def __init__(self, scope: Any, headers: Headers, upload: Upload, departure: Callable[[], "Future[None]"]) -> None:
        self._environ = environ_of(scope, headers, upload.body) | {DEPARTURE: departure}
        self._upload = upload
        self._status = 500
        self._headers: list[tuple[str, str]] = []

    def answer(self, protocol: Any) -> None:
        """Call the application in this thread, and answer out of it, without another turn of the loop.

        The room of the body is given back first: whoever has the answer finds it free for the next one.
        """
        chunks: Iterable[bytes] = wsgi_application(self._environ, self._start)
        try:
            answer = b"".join(chunks)
            self._upload.release()
            protocol.response_bytes(self._status, self._headers, answer)
        finally:
            if hasattr(chunks, "close"):
                chunks.close()

    def _start(self, status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], object]:
        self._status = int(status[:3])
        self._headers = [(name.lower(), value) for name, value in headers]
        return lambda _: None


class Application:
    """What answers HTTP requests."""

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let polls that wait go as soon as the server is told to stop, which waits for requests under way."""
        for number in (signal.SIGTERM, signal.SIGINT):
            # The server hears of signals through the loop's own descriptor, and goes on to do so.
            signal.signal(number, lambda *_: _call_soon(loop, long_poll.HERE.close))

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one HTTP request."""
        headers = scope.headers.items()
        if refusal := refusal_of(scope, headers):
            protocol.response_bytes(*refusal)
            return
        upload = Upload(scope.headers, _rooms.claim(scope.headers.get("authorization") or ""))
        try:
            await upload.receive(protocol)
            await _answer(scope, headers, upload, protocol)
        finally:
            upload.release()


application = Application()


async def _answer(scope: Any, headers: Headers, upload: Upload, protocol: Any) -> None:
    if upload.refusal:
        protocol.response_bytes(*upload.refusal)
        return
    loop = asyncio.get_running_loop()
    request = _Request(scope, headers, upload, partial(_watch, protocol, loop))
    await loop.run_in_executor(_threads, request.answer, protocol)


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Let the loop do it; one that is closed has nobody left to do it for."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(act)


def _watch(protocol: Any, loop: asyncio.AbstractEventLoop) -> "Future[None]":
    async def gone() -> None:
        await protocol.client_disconnect()

    return asyncio.run_coroutine_threadsafe(gone(), loop)
