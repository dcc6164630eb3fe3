"""HTTP written byte by byte: requests that no client library would send."""

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

from tests.support.real_broker import TIMEOUT_SECONDS

CHUNK: Final = 64 * 1024


CONNECTION_CLOSE: Final = "Connection: close"
"""Said by the only request of a connection, so that the server closes it after its answer."""

PROBLEM: Final = "application/problem+json"

Headers = Iterable[tuple[str, bytes]]


@contextlib.contextmanager
def open_connection(web: str) -> Iterator[socket.socket]:
    """Open a connection to a web process."""
    address = urlsplit(web)
    with socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS) as connection:
        yield connection


def request_head(method: str, path: str, *lines: str, host: str = "127.0.0.1") -> bytes:
    """Return a head of these lines, and a Host."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "\r\n")).encode("latin-1")


def read_until_closed(connection: socket.socket) -> bytes:
    """Return what comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(CHUNK), b""))


def raw_answer(web: str, request: bytes) -> bytes:
    """Return what is answered to these bytes until the server closes the connection."""
    with open_connection(web) as connection:
        connection.sendall(request)
        return read_until_closed(connection)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> tuple[int, str]:
        """Return status and code of a problem document, which has to be a whole one."""
        assert self.headers["content-type"] == PROBLEM, (self.status, self.body[:300])
        said = self.json
        assert said.keys() >= {"type", "title", "status", "detail", "code"}, said
        assert (said["status"], said["type"]) == (self.status, f"/api/docs/problems#{said['code']}")
        return self.status, said["code"]


class KeptConnection:
    """A connection to a web server, opened again whenever that has closed it."""

    def __init__(self, web: str) -> None:
        parts = urlsplit(web)
        self._address = (parts.hostname or "", parts.port or 0)
        self.host = parts.netloc
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None

    def ask(self, method: str, path: bytes, headers: Headers, body: bytes = b"") -> Answer:
        """Send one request; a `Content-Length` goes with it unless the headers say how long it is."""
        named = {name.lower() for name, _ in headers}
        framing = () if {"content-length", "transfer-encoding"} & named else (("Content-Length", b"%d" % len(body)),)
        host = () if "host" in named else (("Host", self.host.encode()),)
        lines = [name.encode("latin-1") + b": " + value for name, value in (*host, *headers, *framing)]
        request = b"\r\n".join((method.encode() + b" " + path + b" HTTP/1.1", *lines, b"", body))
        if self._socket:
            try:
                return self._exchanged(method, request)
            except (OSError, HTTPException):  # closed since: nothing of this one has been read
                self.close()
        return self._exchanged(method, request)

    def _exchanged(self, method: str, request: bytes) -> Answer:
        self._socket = self._socket or socket.create_connection(self._address, TIMEOUT_SECONDS)
        self._socket.sendall(request)
        response = HTTPResponse(self._socket, method=method)
        response.begin()
        answer = Answer(
            response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        )
        if response.will_close:
            self.close()
        return answer
