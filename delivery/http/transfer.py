"""One request on its way through libcurl: what it sends, what it takes of the answer, what came of it."""

import re
import socket
import time
from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final
from urllib.parse import urlsplit

import certifi
import pycurl
import requests
import structlog

from broker_project.core.egress import NOT_ALLOWED, UNREADABLE, EgressPolicy
from delivery.http.sockets import Connections
from delivery.http.wire_headers import EncodedRequest, header_line
from delivery.limits import CONNECT_TIMEOUT_MS, MAX_HEADER_BYTES

STATUS_LINE: Final = re.compile(rb"HTTP/\S+\s+(\d)\d{2}(?!\d)", re.IGNORECASE)
"""libcurl takes the first three digits for the status, and so 2000 for 200."""
NO_STATUS: Final = "the status of the answer is not a number of three digits"
HEAD_TOO_LARGE: Final = f"the head of the answer is larger than {MAX_HEADER_BYTES // 1024} KiB"
UNUSABLE: Final = "unusable://"
"""Begins the URL of what nothing can be sent to; the rest of it says why."""
KEPT_CONNECTION_BROKE: Final = "the connection closed without an answer"
TOO_LATE: Final = "the time for it was over before it could be sent"


OK: Final[int] = pycurl.PREREQFUNC_OK
ABORT: Final[int] = pycurl.PREREQFUNC_ABORT

FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})
BAD: Final[int] = pycurl.SOCKET_BAD

log = structlog.get_logger(__name__)

NOTHING: Final = requests.PreparedRequest()


class RequestNotCompleted(requests.ConnectionError):
    """No complete answer came back; `was_sent` says whether the endpoint may have got the request.

    `timed_out`: it may have, and the deadline has passed since. `is_refused`: nothing is sent to its address.
    """

    def __init__(self, reason: str, *, was_sent: bool, timed_out: bool = False, is_refused: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
        self.timed_out = timed_out
        self.is_refused = is_refused


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for the request started under `token`, and how long it took."""

    token: Hashable
    result: requests.Response | RequestNotCompleted
    head: bytes
    """Status line and headers as received."""
    duration_ms: int


class Gate:
    """Refuses connections to refused addresses, each time a host name is resolved.

    libcurl asks for each socket that it connects with, and again before it sends over a connection, new or kept. It
    remembers the addresses of one request; to libcurl a refusal is a connection that failed.
    """

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
        """Whether an address was allowed; its connection may have failed for other reasons."""
        self._failure = ""

    def open_socket(self, _purpose: int, wanted: Any) -> "socket.socket | int":
        """Return a socket for an address of the host; none if it is not allowed: libcurl tries the next one."""
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
        """Tell whether a request may be sent to the connected address; if judging fails, it may not."""
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
        """Whether nothing was sent because no address of the host is allowed."""
        return bool(self._refused) and not self._is_open

    def reason(self, request: requests.PreparedRequest) -> str:
        """Return why nothing was connected to, empty: not for anything of ours.

        Only the log has the addresses, with the host that resolved to them and the request's `webhook-id`.
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


class Transfer:
    """A libcurl handle and the request that is in flight on it; when that has ended, the next one."""

    _token: Hashable
    burst: int
    until: float
    """Monotonic time at which it has to have ended."""

    def __init__(self, connections: Connections, egress: EgressPolicy, *, max_answer_bytes: int) -> None:
        self._connections = connections
        self._gate = Gate(egress)
        self._most_answer_bytes = max_answer_bytes
        self.handle = new_handle()
        self.handle.transfer = self
        self.handle.setopt(pycurl.OPENSOCKETFUNCTION, self._gate.open_socket)
        self.handle.setopt(pycurl.SOCKOPTFUNCTION, self.note_socket)
        self.handle.setopt(pycurl.PREREQFUNCTION, self.may_be_sent)
        self.handle.setopt(pycurl.HEADERFUNCTION, self.take_head)
        self.handle.setopt(pycurl.WRITEFUNCTION, self.take_body)
        self._forget()

    def begin(self, token: Hashable, request: requests.PreparedRequest, *, burst: int, until: float) -> None:
        """Take on a request that goes out with the others of its `burst`, and has ended by `until`."""
        self._token, self._request, self.burst, self.until = token, request, burst, until
        self._limit()
        url = request.url or ""
        if url.startswith(UNUSABLE):
            self._refused, url = url.removeprefix(UNUSABLE), UNUSABLE
        self.handle.setopt(pycurl.URL, url)
        if request.method == "GET" and not request.body:
            self.handle.setopt(pycurl.HTTPGET, 1)  # without the headers of a body
        else:
            self.handle.setopt(pycurl.POSTFIELDS, request.body)
        self.handle.setopt(pycurl.CUSTOMREQUEST, request.method)
        if isinstance(request, EncodedRequest):
            lines = request.lines
        else:
            lines = [header_line(name, value) for name, value in request.headers.items()]
        self.handle.setopt(pycurl.HTTPHEADER, [*lines, b"Expect:", b"Accept:"])

    def restart(self) -> None:
        """Let the request go out over a new connection: it has not been sent over the one that was kept."""
        self.handle.setopt(pycurl.FRESH_CONNECT, 1)
        self._limit()
        self._start_over()
        self._is_restarted = True

    def end(self, number: int, text: str) -> Answer:
        """Return what came of it, and forget it; `number` is libcurl's error, 0 for none."""
        answer = self._answer(number, text)
        if self._is_restarted:
            self.handle.setopt(pycurl.FRESH_CONNECT, 0)
        self._forget()
        return answer

    def _limit(self) -> None:
        """Give libcurl, which counts from the moment in which it begins, what is left of the time."""
        self.handle.setopt(pycurl.TIMEOUT_MS, max(1, ceil((self.until - time.monotonic()) * 1000)))

    def _forget(self) -> None:
        self._token, self._request = None, NOTHING
        self._start_over()
        self._is_restarted = False

    def _start_over(self) -> None:
        self._opened: list[int] = []
        self._head, self._body = bytearray(), bytearray()
        self._too_much = self._was_begun = self._has_head = self._is_interim = self.is_stale = False
        self._refused = ""
        """Why nothing is sent, or the head of the answer was not taken."""
        self._gate.begin()

    def note_socket(self, descriptor: int, _purpose: int) -> int:
        """Note a socket that was opened for this request."""
        self._gate.copied()
        self._opened.append(descriptor)
        return OK

    def may_be_sent(self, address: str, host: str, _port: int, port: int) -> int:
        """Let the request go out once: libcurl would send it again, unasked, where a kept connection broke.

        The endpoint may have got it already; only the line may repeat it, and says so (contract 4.11). Over a kept
        connection on which something has come, or to an address that is no longer allowed, it does not go out at
        all: `is_stale`. Nor does it once its time is over, at which libcurl has looked before it sent others and this
        process may have been stopped since: another worker may have the line by now.
        """
        is_in_reach = self._gate.lets_out(address)
        if self._opened:
            self._connections.opened((host, port), self._opened)
        elif not self._was_begun:
            self.is_stale = not is_in_reach or self._connections.has_unread((host, port))
        if not self._was_begun and time.monotonic() >= self.until:
            self._refused = TOO_LATE
        goes_out = is_in_reach and not (self._was_begun or self.is_stale or self._refused)
        self._was_begun |= goes_out
        return OK if goes_out else ABORT

    def take_head(self, line: bytes) -> int:
        """Keep a line of the answer's head, up to the cap; refuse one without a proper status."""
        if self._has_head:
            return len(line)  # behind the body: a trailer says nothing to us
        if line[:5].upper() == b"HTTP/":
            self._head.clear()  # an interim answer came before this one
            status = STATUS_LINE.match(line)
            self._is_interim = status is not None and status[1] == b"1"
            self._refused = "" if status else NO_STATUS
        if len(self._head) + len(line) > MAX_HEADER_BYTES:
            self._refused = HEAD_TOO_LARGE
        if self._refused:
            return -1
        self._head += line
        self._has_head = not line.strip() and not self._is_interim
        return len(line)

    def take_body(self, chunk: bytes) -> int:
        """Keep a piece of the answer's body; beyond the cap, end the transfer."""
        self._body += chunk[: self._most_answer_bytes - len(self._body)]
        self._too_much = len(self._body) >= self._most_answer_bytes
        return -1 if self._too_much else len(chunk)

    def _answer(self, number: int, text: str) -> Answer:
        handle = self.handle
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        duration_ms = round(handle.getinfo(pycurl.TOTAL_TIME) * 1000)
        # Our own cap ends a transfer with a write error, but the answer itself is there.
        complete = not number or (number == pycurl.E_WRITE_ERROR and self._too_much)
        result: requests.Response | RequestNotCompleted
        if complete and status:
            result = self._response(status)
        else:
            was_sent = handle.getinfo(pycurl.REQUEST_SIZE) > 0
            reason = KEPT_CONNECTION_BROKE if number == pycurl.E_ABORTED_BY_CALLBACK else _plain(text)
            timed_out = was_sent and number == pycurl.E_OPERATION_TIMEDOUT
            ours = "" if was_sent else self._gate.reason(self._request)
            is_refused = bool(ours) and self._gate.has_refused
            reason = self._refused or ours or reason or f"libcurl error {number}"
            result = RequestNotCompleted(reason, was_sent=was_sent, timed_out=timed_out, is_refused=is_refused)
        return Answer(self._token, result, bytes(self._head), duration_ms)

    def _response(self, status: int) -> requests.Response:
        response = requests.Response()
        response.status_code = status
        response.request = self._request
        response.url = self._request.url or ""
        response._content = bytes(self._body)  # noqa: SLF001 - what requests' own adapters set
        return response


def new_handle() -> Any:
    """Return a libcurl handle that follows no redirect, and uses no proxy and no .netrc."""
    handle = pycurl.Curl()
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.FOLLOWLOCATION, 0)
    handle.setopt(pycurl.PROXY, "")
    handle.setopt(pycurl.NETRC, 0)
    handle.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    handle.setopt(pycurl.CAINFO, certifi.where())
    handle.setopt(pycurl.CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS)
    return handle


def _plain(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:500]
