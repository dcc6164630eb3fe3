"""What the web server runs: the WSGI application behind granian's RSGI, which keeps headers apart.

WSGI has one variable for `FILTER_STRING` and `Filter-String`; with both sent, only here can it be seen whether they
differ (behaviour 2.3). Besides, a body that comes in chunks has its length known before Django looks at it.
"""

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from django.conf import settings

from broker_project.wsgi import application as wsgi_application

THREADS: Final = int(os.environ.get("BROKER_WEB_THREADS", "128"))
"""Requests worked on at a time; most of them wait for the database, some for an endpoint or a mailbox."""
AMBIGUOUS: Final = "broker.ambiguous_headers"
"""The WSGI variables for which two header names with different values were sent."""
TOO_LARGE: Final = b'{"type":"urn:broker:body_too_large","code":"body_too_large","title":"Body too large","status":413}'

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="web")

Answer = tuple[int, list[tuple[str, str]], bytes]


class _Request:
    """One WSGI call: from RSGI's scope and the body to an answer."""

    def __init__(self, scope: Any, body: bytes) -> None:
        self._environ = _environ(scope, body)
        self._status = 500
        self._headers: list[tuple[str, str]] = []

    def answer(self) -> Answer:
        """Call the application in this thread."""
        chunks: Iterable[bytes] = wsgi_application(self._environ, self._start)
        try:
            return self._status, self._headers, b"".join(chunks)
        finally:
            if hasattr(chunks, "close"):
                chunks.close()

    def _start(self, status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], object]:
        self._status = int(status[:3])
        self._headers = [(name.lower(), value) for name, value in headers]
        return lambda _: None


async def application(scope: Any, protocol: Any) -> None:
    """Answer one HTTP request."""
    body = bytearray()
    async for chunk in protocol:
        body += chunk
        if len(body) > settings.MAX_BATCH_BYTES:
            protocol.response_bytes(413, [("content-type", "application/problem+json")], TOO_LARGE)
            return
    request = _Request(scope, bytes(body))
    protocol.response_bytes(*await asyncio.get_running_loop().run_in_executor(_threads, request.answer))


def _environ(scope: Any, body: bytes) -> dict[str, Any]:
    server_name, _, server_port = scope.server.rpartition(":")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "SERVER_NAME": server_name,
        "SERVER_PORT": server_port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "REMOTE_ADDR": scope.client.rpartition(":")[0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        AMBIGUOUS: set(),
    }
    _add_headers(environ, scope.headers.items())
    environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE", "")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    environ["CONTENT_LENGTH"] = str(len(body))
    return environ


def _add_headers(environ: dict[str, Any], headers: Iterable[tuple[str, str]]) -> None:
    """Join headers sent twice under one name; note where two names with different values share a variable."""
    sent_as: dict[str, str] = {}
    for name, value in headers:
        variable = "HTTP_" + name.upper().replace("-", "_")
        if sent_as.setdefault(variable, name) == name:
            joint = "; " if name == "cookie" else ","
            environ[variable] = f"{environ[variable]}{joint}{value}" if variable in environ else value
        elif environ[variable] != value:
            environ[AMBIGUOUS].add(variable)
