"""What the web server runs: the WSGI application behind granian's RSGI, which keeps headers apart.

WSGI has one variable for `FILTER_STRING` and `Filter-String`; with both sent, only here can it be seen whether they
differ (contract 2.3). Besides, a body that comes in chunks has its length known before Django looks at it, and a
view that lets its client wait can learn that nobody waits any more.
"""

import asyncio
import contextlib
import io
import signal
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from django.conf import settings

from broker_project.server.proxies import origin_of
from broker_project.server.request_head import Headers, refusal_of
from broker_project.server.runtime import open_as_many_files_as_allowed, settle_in
from broker_project.server.uploads import Rooms, Upload
from broker_project.wsgi import application as wsgi_application
from delivery.mailbox import long_poll
from delivery.mailbox.long_poll import seats_beside

FILTER_STRING: Final = "filter_string"
"""The only name with an underscore that says anything."""
AMBIGUOUS: Final = "broker.ambiguous_headers"
"""The WSGI variables for which two header names with different values were sent."""

DEPARTURE: Final = "broker.departure"
"""Where a view that lets its client wait finds a function: it begins to watch the client, and returns a future that is
done once that has hung up. Whoever asks for it cancels it in the end."""

_threads = ThreadPoolExecutor(settings.WEB_THREADS, thread_name_prefix="web")
_rooms = Rooms(settings.UPLOADS_BYTES)


def environ_of(scope: Any, headers: Headers, body: bytes) -> dict[str, Any]:
    """Return the variables of a request whose body has been read."""
    server_name, _, server_port = scope.server.rpartition(":")
    # Under these very names: with underscores no proxy overwrites them.
    said_for, said_scheme = (",".join(scope.headers.get_all(name)) for name in ("x-forwarded-for", "x-forwarded-proto"))
    origin = origin_of(scope.client, scope.scheme, said_for, said_scheme, settings.PROXIES)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "SERVER_NAME": server_name,
        "SERVER_PORT": server_port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "REMOTE_ADDR": origin.address,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": origin.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        AMBIGUOUS: set(),
    }
    _add_headers(environ, headers)
    environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE", "")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    environ["CONTENT_LENGTH"] = str(len(body))
    return environ


def _add_headers(environ: dict[str, Any], headers: Iterable[tuple[str, str]]) -> None:
    """Join headers sent twice under one name; note where two names with different values share a variable.

    Names with underscores are left out, as most proxies do: in WSGI they would be those with hyphens.
    """
    sent_as: dict[str, str] = {}
    for name, value in headers:
        if "_" in name and name != FILTER_STRING:
            continue
        variable = "HTTP_" + name.upper().replace("-", "_")
        if sent_as.setdefault(variable, name) == name:
            joint = "; " if name == "cookie" else ","
            environ[variable] = f"{environ[variable]}{joint}{value}" if variable in environ else value
        elif environ[variable] != value:
            environ[AMBIGUOUS].add(variable)


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


class RsgiApplication:
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


application = RsgiApplication()


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
