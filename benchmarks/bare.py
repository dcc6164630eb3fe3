"""The limit of what is measured: libcurl posting one and the same request to the sink, with no broker in between."""

import time
from multiprocessing.connection import Connection
from typing import Any, Final

import pycurl

from broker_project.stack.ports import LOOPBACK

CONNECTIONS: Final = 100
SELECT_SECONDS: Final = 1.0
HEAD_END: Final = b"\r\n\r\n"
OWN: Final = (b"host:", b"content-length:", b"accept:")
"""Headers that libcurl writes itself."""


def post_bare(control: Connection, port: int, request: bytes, seconds: float) -> None:
    """Send back how many such requests a second were answered: the whole life of a process."""
    head, _, body = request.partition(HEAD_END)
    first, *headers = head.split(b"\r\n")
    url = f"http://{LOOPBACK}:{port}{first.split()[1].decode()}"
    kept = [header.decode() for header in headers if not header.lower().startswith(OWN)]
    control.send(_rate([_handle(url, kept, body) for _ in range(CONNECTIONS)], seconds))


def _handle(url: str, headers: list[str], body: bytes) -> Any:
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.HTTPHEADER, headers)
    handle.setopt(pycurl.POSTFIELDS, body)
    handle.setopt(pycurl.PROXY, "")
    return handle


def _rate(handles: list[Any], seconds: float) -> float:
    """Post over all handles side by side, each again as soon as it is answered."""
    multi = pycurl.CurlMulti()
    multi.setopt(pycurl.M_MAXCONNECTS, 2 * len(handles))
    for handle in handles:
        multi.add_handle(handle)
    began, done = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        multi.perform()
        done += _again(multi)
        multi.select(SELECT_SECONDS)
    return done / (time.monotonic() - began)


def _again(multi: Any) -> int:
    """Start again what is answered; return how much that was."""
    count, left = 0, 1
    while left:
        left, answered, failed = multi.info_read()
        if failed:
            raise ConnectionError(failed[0][2])
        for handle in answered:
            multi.remove_handle(handle)
            multi.add_handle(handle)
        count += len(answered)
    return count
