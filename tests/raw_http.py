"""HTTP as bytes over a socket: requests that no client would send, or would send so slowly."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from tests.real_broker import TIMEOUT

CHUNK: Final = 64 * 1024


@contextlib.contextmanager
def connected(web: str) -> Iterator[socket.socket]:
    """Open a connection to a web process."""
    address = urlsplit(web)
    with socket.create_connection((address.hostname, address.port), TIMEOUT) as connection:
        yield connection


LAST: Final = "Connection: close"
"""Said by the only request of a connection, so that the server closes it after its answer."""


def head(method: str, path: str, *lines: str, host: str = "127.0.0.1") -> bytes:
    """Return a head of these lines, and a Host."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "\r\n")).encode("latin-1")


def until_closed(connection: socket.socket) -> bytes:
    """Return what comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(CHUNK), b""))


def answer_to(web: str, request: bytes) -> bytes:
    """Return what is answered to these bytes until the server closes the connection."""
    with connected(web) as connection:
        connection.sendall(request)
        return until_closed(connection)
