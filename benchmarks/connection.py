"""One keep-alive connection to the broker with little around it: a publisher must cost next to nothing."""

import json
import socket
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

BODY_BYTES: Final = 1024
_HEAD: Final = b'{"stream":"%02d","number":"%08d","sent":"%016d","text":"'
_TAIL: Final = b'"}'
_TEXT: Final = b"x" * (BODY_BYTES - len(_HEAD % (0, 0, 0)) - len(_TAIL)) + _TAIL

STREAM: Final = slice(11, 13)
NUMBER: Final = slice(25, 33)
SENT: Final = slice(43, 59)
"""Nanoseconds of the monotonic clock, which all processes of a machine share."""

PATH: Final = slice(6, 11)
"""Of a request to the sink: which subscriber it is for."""

HEAD_END: Final = b"\r\n\r\n"
LENGTH: Final = b"content-length: "
TIMEOUT: Final = 30.0
CREATED: Final = 201
CHUNK: Final = 65_536


def body_of(stream: int, number: int, sent: int) -> bytes:
    """Return the body with this number."""
    return _HEAD % (stream, number, sent) + _TEXT


def path_of(subscriber: int) -> str:
    """Return the path of a subscriber's endpoint at the sink."""
    return f"/{subscriber:05d}"


class Refused(Exception):
    """The broker answered otherwise than it was expected to; the message has its answer."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    head: bytes
    """In lower case."""
    content: bytes


class Connection:
    """Posts JSON under one API key, one request after the other."""

    def __init__(self, web: str, token: str) -> None:
        address = urlsplit(web)
        self._there = (address.hostname, address.port)
        self._socket = self._connected()
        self._head = (
            f" HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()

    def renew(self) -> None:
        """Connect again: the broker ends connections that nobody has used for long."""
        self.close()
        self._socket = self._connected()

    def post(self, path: bytes, body: bytes, *, expected: int) -> bytes:
        """Send a request and return the answer's body; another status than expected is `Refused`."""
        status, _, content = self.call(path, body)
        if status != expected:
            raise Refused(f"{path.decode()} answered {status}: {content[:500].decode(errors='replace')}")
        return content

    def call(self, path: bytes, body: bytes) -> Answer:
        """Send a request and return the answer, whatever it is."""
        self._socket.sendall(b"".join((b"POST ", path, self._head, b"%d" % len(body), HEAD_END, body)))
        answer = self._socket.recv(CHUNK)
        while (end := answer.find(HEAD_END)) < 0:
            answer += self._more()
        head = answer[:end].lower()
        wanted = end + len(HEAD_END) + _length_in(head)
        while len(answer) < wanted:
            answer += self._more()
        return Answer(int(answer[9:12]), head, answer[end + len(HEAD_END) : wanted])

    def create(self, collection: str, /, **fields: object) -> dict[str, Any]:
        """Create one object through the management API and return it."""
        answer = self.post(f"/api/v1/{collection}".encode(), json.dumps(fields).encode(), expected=CREATED)
        made: dict[str, Any] = json.loads(answer)
        return made

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _connected(self) -> socket.socket:
        connected = socket.create_connection(self._there, TIMEOUT)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def _more(self) -> bytes:
        chunk = self._socket.recv(CHUNK)
        if not chunk:
            raise Refused("the broker closed the connection")
        return chunk


def _length_in(head: bytes) -> int:
    if LENGTH not in head:
        return 0  # an answer that has no body
    start = head.index(LENGTH) + len(LENGTH)
    end = head.find(b"\r", start)
    return int(head[start : end if end >= 0 else None])
