"""Look-ups of host names, each in a thread of its own.

libcurl has twenty threads for all look-ups of a client. Names whose name server does not answer
would keep those, and no other name would be found.
"""

import os
import socket
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from delivery.http.transfer import Transfer, host_of
from delivery.limits import MAX_LOOK_UPS

PORTS: Final = {"http": 80, "https": 443}


class Found(NamedTuple):
    """What came of a look-up."""

    addresses: list[str]
    failure: str
    """Why there are none."""


class Resolver:
    """The look-ups that one client's requests wait for; belongs to the client's thread. Of a name there is one."""

    def __init__(self) -> None:
        self.bell: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when something was found."""
        self._lock = threading.Lock()
        """Held while ringing: otherwise the descriptor could be closed, and be another file by then."""
        self._is_open = True
        self._waiting: dict[str, dict[Transfer, None]] = {}
        """By name; also empty ones, whose look-ups go on."""
        self._queued: deque[str] = deque()
        self._running = 0
        self._found: SimpleQueue[tuple[str, Found]] = SimpleQueue()

    def look_up(self, transfer: Transfer) -> None:
        """Let a request wait for the addresses of its host; `found` returns it."""
        host = host_of(transfer.request.url)
        if host not in self._waiting:
            self._waiting[host] = {}
            self._queued.append(host)
        self._waiting[host][transfer] = None
        self._go_on()

    def forget(self, transfer: Transfer) -> None:
        """Let a request wait no longer, if it does."""
        self._waiting.get(host_of(transfer.request.url), {}).pop(transfer, None)

    def found(self) -> list[tuple[Transfer, Found]]:
        """Return the requests whose look-ups have ended, with what came of them."""
        if not self._running:
            return []  # as nearly always
        found: list[tuple[Transfer, Found]] = []
        try:
            while True:
                host, what = self._found.get_nowait()
                self._running -= 1
                found += [(transfer, what) for transfer in self._waiting.pop(host)]
        except Empty:
            self._go_on()
        return found

    def read_bell(self) -> None:
        """Read the bell."""
        os.eventfd_read(self.bell)

    def close(self) -> None:
        """Give back the descriptor; look-ups that go on end by themselves."""
        with self._lock:
            self._is_open = False
            os.close(self.bell)

    def _go_on(self) -> None:
        while self._queued and self._running < MAX_LOOK_UPS:
            host = self._queued.popleft()
            if not self._waiting[host]:
                del self._waiting[host]
                continue
            self._running += 1
            try:
                threading.Thread(target=self._ask, args=(host,), name="look-up", daemon=True).start()
            except RuntimeError:
                self._say(host, Found([], f"Could not resolve host: {host} (no thread)"))

    def _ask(self, host: str) -> None:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = Found([str(address[0]) for *_, address in answers], "")
        except (OSError, UnicodeError):
            found = Found([], f"Could not resolve host: {host}")
        self._say(host, found)

    def _say(self, host: str, found: Found) -> None:
        self._found.put((host, found))
        with self._lock:
            if self._is_open:
                os.eventfd_write(self.bell, 1)


def entry_of(url: str, addresses: list[str]) -> str:
    """Return what tells libcurl the addresses of a URL's host, until it forgets them as what it has looked up."""
    parts = urlsplit(url)
    written = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
    return f"+{host_of(url)}:{parts.port or PORTS[parts.scheme]}:{written}"
