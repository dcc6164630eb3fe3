"""What endpoints do instead of answering: each must harm nobody else, and count as what it is."""

import gzip
from dataclasses import dataclass

from tests.faults.misbehaving import Trick
from tests.receiver import answer, close, dripping, endless, hang, raw, reset

HEAD = b"HTTP/1.1 200 OK\r\n"
MANY_HEADERS = HEAD + b"".join(b"X-%d: a\r\n" % number for number in range(1_000))
BOMB = gzip.compress(bytes(2**24)) * 256
"""4 MiB that inflate to 4 GiB."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to misbehave, how often it is met, and whether only the deadline ends it."""

    trick: Trick
    requests: int
    lasts: bool = False


SINGLE = {
    "hangs": Kind(Trick(hang), 2, lasts=True),
    "drips": Kind(Trick(dripping(1.0)), 2, lasts=True),
    "closes": Kind(Trick(close), 3),
    "resets-after-processing": Kind(Trick(reset), 3),
    "sends-without-end": Kind(Trick(endless, 200), 30),
    "sends-a-compressed-bomb": Kind(Trick(raw(HEAD + b"Content-Encoding: gzip\r\n\r\n" + BOMB), 200), 30),
}
"""One at a time, beside others that answer."""

GARBAGE = {
    "zero-bytes": Trick(raw(b"\x00" * 100)),
    "zero-bytes-in-the-body": Trick(answer(200, b"a\x00b" * 100), 200),
    "zero-bytes-in-a-header": Trick(raw(HEAD + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n")),
    "no-text-in-the-body": Trick(answer(200, b"\xff\xfe\x00\xc3\x28"), 200),
    "no-text-in-a-header": Trick(raw(HEAD + b"X: \xff\xfe\xc3\x28\r\nContent-Length: 0\r\n\r\n"), 200),
    "status-0": Trick(raw(b"HTTP/1.1 000 -\r\nContent-Length: 0\r\n\r\n")),
    "status-999": Trick(answer(999), 999),
    "status-1000": Trick(raw(b"HTTP/1.1 1000 -\r\nContent-Length: 0\r\n\r\n")),
    "status-2000": Trick(raw(b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n")),
    "a-reason-of-100-KB": Trick(raw(b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\nContent-Length: 0\r\n\r\n")),
    "a-thousand-headers": Trick(raw(MANY_HEADERS + b"Content-Length: 0\r\n\r\n", keep=True), 200),
    "half-a-chunk": Trick(raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\nhalf")),
    "http-0.9": Trick(raw(b"<html>It works!</html>")),
}
"""All at the same time."""
