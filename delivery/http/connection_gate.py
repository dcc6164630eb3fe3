"""What lets requests out: to no address that is out of egress, whatever a host's name stands for this time.

libcurl asks for each socket that it connects with, and again before it sends over a connection, new or kept. What is
wrong is remembered here: to libcurl it is a connection that failed, as if nobody were there.
"""

import socket
from typing import Any, Final
from urllib.parse import urlsplit

import pycurl
import requests
import structlog

from broker_project.core.egress import NOT_ALLOWED, UNREADABLE, EgressPolicy

FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})
BAD: Final[int] = pycurl.SOCKET_BAD

log = structlog.get_logger(__name__)


class Gate:
    """The addresses that one request was to go to, and what became of that; when it has ended, the next one's."""

    def __init__(self, egress: EgressPolicy) -> None:
        self._egress = egress
        self._lent: socket.socket | None = None
        """What libcurl has been handed and makes a copy of."""
        self.begin()

    def begin(self) -> None:
        """Forget the request before."""
        self.copied()
        self._refused: dict[str, str] = {}
        """Addresses to which nothing is sent, and what each is."""
        self._is_open = False
        """Whether there was an address in egress, which may have failed for reasons of its own."""
        self._failure = ""

    def open_socket(self, _purpose: int, wanted: Any) -> "socket.socket | int":
        """Return a socket to connect with to an address of the host; for one out of reach none: the next is tried."""
        try:
            return self._socket_for(wanted)
        except OSError as failure:
            self._failure = f"No socket: {failure.strerror}"
        except Exception as failure:
            log.exception("http.socket_not_opened")
            self._failure = f"No socket: {type(failure).__name__}"
        return BAD

    def copied(self) -> None:
        """Note that libcurl has its own copy of the socket that it was handed."""
        if self._lent:
            self._lent.close()
        self._lent = None

    def lets_out(self, address: str) -> bool:
        """Tell whether a request may be sent to what is connected to; nothing is where that cannot be told."""
        try:
            refusal = self._egress.refusal(address)
        except Exception:
            log.exception("http.address_not_judged")
            refusal = UNREADABLE
        if refusal:
            self._refused[address] = refusal
            self._is_open = False
        return not refusal

    @property
    def has_refused(self) -> bool:
        """Whether nothing was sent because all that the host's name stands for is out of egress."""
        return bool(self._refused) and not self._is_open

    def reason(self, request: requests.PreparedRequest) -> str:
        """Return why nothing was connected to, empty: not for anything of ours.

        Only the log is told the addresses, with the host that stood for them and the `webhook-id` of what was to go.
        """
        if not self.has_refused:
            return "" if self._is_open else self._failure
        host, of = urlsplit(request.url or "").hostname, request.headers.get("webhook-id")
        log.info("http.address_not_allowed", host=host, of=of, addresses=self._refused)
        return f"{NOT_ALLOWED} ({', '.join(sorted({*self._refused.values()}))})"

    def _socket_for(self, wanted: Any) -> "socket.socket | int":
        address = str(wanted.addr[0]) if wanted.family in FAMILIES else ""
        if refusal := self._egress.refusal(address):
            self._refused[address] = refusal
            return BAD
        self.copied()
        self._lent = socket.socket(wanted.family, wanted.socktype, wanted.protocol)
        self._is_open = True
        return self._lent
