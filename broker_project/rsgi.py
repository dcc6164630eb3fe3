"""What the web server runs: the WSGI application behind granian's RSGI, which keeps headers apart.

WSGI has one variable for `FILTER_STRING` and `Filter-String`; with both sent, only here can it be seen whether they
differ (behaviour 2.3). Besides, a body that comes in chunks has its length known before Django looks at it.
"""

import asyncio
import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from django.conf import settings

from broker_project.processes import settle_in
from broker_project.wsgi import application as wsgi_application

THREADS: Final = int(os.environ.get("BROKER_WEB_THREADS", "128"))
"""Requests worked on at a time; most of them wait for the database, some for an endpoint or a mailbox."""
AMBIGUOUS: Final = "broker.ambiguous_headers"
"""The WSGI variables for which two header names with different values were sent."""
MOST_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""So much of a body that is too large is read all the same: who is still sending does not see an answer."""

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="web")

Answer = tuple[int, list[tuple[str, str]], bytes]

settle_in()


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


class _Upload:
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


async def application(scope: Any, protocol: Any) -> None:
    """Answer one HTTP request."""
    upload = _Upload(scope.headers)
    async for chunk in protocol:
        if not upload.take(chunk):
            break
    answer = upload.refusal()
    if answer is None:
        request = _Request(scope, bytes(upload.body))
        answer = await asyncio.get_running_loop().run_in_executor(_threads, request.answer)
    protocol.response_bytes(*answer)


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
