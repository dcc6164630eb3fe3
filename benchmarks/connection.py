"""One keep-alive connection to the broker, and numbered bodies: a load must cost almost no CPU time."""

import json
import random
import socket
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_START: Final = b'{"stream":"%03d","number":"%08d","sent":"%016d",'
STREAM: Final = slice(11, 14)
NUMBER: Final = slice(26, 34)
SENT: Final = slice(44, 60)
"""Nanoseconds on the monotonic clock, which all processes of a machine share."""

HEAD_END: Final = b"\r\n\r\n"
LENGTH: Final = b"content-length: "
TIMEOUT_SECONDS: Final = 30.0
CHUNK: Final = 65_536


def text_of(body_bytes: int) -> bytes:
    """Return the rest of a body of this size: one long string."""
    start, end = b'"text":"', b'"}'
    return start + b"x" * (body_bytes - len(_START % (0, 0, 0) + start + end)) + end


def order_of(body_bytes: int) -> bytes:
    """Return the rest of a body of about this size: an order with nested values of all kinds, always the same."""
    draw = random.Random(body_bytes).randrange  # noqa: S311 - nothing secret
    items = [
        {
            "id": f"{draw(2**64):016x}",
            "title": f'Füllhalter "Größe {draw(99)}", № {draw(10**6)}',
            "price": {"amount": draw(10**6) / 100, "currency": "EUR", "taxes": [{"rate": 0.19, "is_included": True}]},
            "stock": [{"place": [draw(9), draw(99), draw(999)], "count": draw(10**4), "reserved": None}],
        }
        for _ in range(max(1, body_bytes // 256))
    ]
    order = {"customer": {"id": draw(10**8), "name": "Jürgen O'Neil", "tags": []}, "items": items}
    return json.dumps(order, ensure_ascii=False).encode()[1:]


KILOBYTE: Final = text_of(1024)


def body_of(stream: int, number: int, sent: int, rest: bytes = KILOBYTE) -> bytes:
    """Return the body with this number."""
    return _START % (stream, number, sent) + rest


class Refused(Exception):
    """The broker gave an unexpected answer, which the message has."""


class Answer(NamedTuple):
    """An answer of the broker."""

    status: int
    head: bytes
    """In lower case."""
    content: bytes


class Connection:
    """Posts JSON under one API key, one request after the other."""

    def __init__(self, address: str, token: str) -> None:
        parts = urlsplit(address)
        self._socket = socket.create_connection((parts.hostname, parts.port), TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = (
            f" HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()

    def post(self, path: bytes, body: bytes, *, expected: int, headers: bytes = b"") -> bytes:
        """Send a request and return the answer's body; raise `Refused` for any other status than `expected`."""
        status, _, content = self.call(path, body, headers)
        if status != expected:
            raise Refused(f"{path.decode()} answered {status}: {content[:500].decode(errors='replace')}")
        return content

    def call(self, path: bytes, body: bytes, headers: bytes = b"") -> Answer:
        """Send a request, with further headers, each after a line break, and return the answer."""
        self._socket.sendall(b"".join((b"POST ", path, self._head, b"%d" % len(body), headers, HEAD_END, body)))
        answer, head, wanted = b"", b"", 0
        while not wanted or len(answer) < wanted:
            chunk = self._socket.recv(CHUNK)
            if not chunk:
                raise Refused("the broker closed the connection")
            answer += chunk
            if not wanted and (end := answer.find(HEAD_END)) >= 0:
                head = answer[:end].lower()
                _, _, length = head.partition(LENGTH)  # without one there is no body
                wanted = end + len(HEAD_END) + int(length.partition(b"\r")[0] or 0)
        return Answer(int(answer[9:12]), head, answer[len(head) + len(HEAD_END) : wanted])

    def publish(self, event_type: str, body: bytes) -> None:
        """Publish one message; raise `Refused` unless it is accepted."""
        self.post(f"/api/v1/events/{event_type}".encode(), body, expected=202)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
