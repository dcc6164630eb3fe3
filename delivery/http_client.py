"""HTTP over libcurl's multi interface: `requests`' objects, one event loop, no thread per request.

`requests` alone has no total deadline and costs nine times the CPU. `socket_action` with epoll costs per ready socket;
`select` stops at descriptor 1,024 and `perform` costs per handle.
"""

import os
import select
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import certifi
import pycurl
import requests

CONNECT_TIMEOUT_MS: Final = 5_000
MAX_ANSWER_BYTES: Final = 65_536
"""What is read of an answer's body; the rest is left unread and the connection closed."""
MAX_HEADER_BYTES: Final = 65_536
KEPT_CONNECTIONS: Final = 4_096
"""Above the lines under way: fewer costs a new connection for most requests."""
EVENTS_AT_ONCE: Final = 1_024
KEPT_CONNECTION_BROKE: Final = "the connection closed without an answer"


class RequestNotCompleted(requests.ConnectionError):
    """No complete answer came back; `was_sent` says whether the endpoint may have got the request."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for the request started under `token`, and how long it took."""

    token: Hashable
    result: requests.Response | RequestNotCompleted
    head: bytes
    """Status line and headers as received."""
    duration_ms: int


@dataclass(slots=True)
class _Transfer:
    """One request under way."""

    token: Hashable
    request: requests.PreparedRequest
    head: bytearray = field(default_factory=bytearray)
    body: bytearray = field(default_factory=bytearray)
    too_much: bool = False
    was_begun: bool = False

    def may_be_sent(self, *_addresses: object) -> int:
        """Let the request go out once: libcurl would send it again, unasked, where a kept connection broke.

        The endpoint may have got it already; only the line may repeat it, and says so (behaviour 4.11).
        """
        verdict: int = pycurl.PREREQFUNC_ABORT if self.was_begun else pycurl.PREREQFUNC_OK
        self.was_begun = True
        return verdict

    def take_head(self, line: bytes) -> int:
        if line.startswith(b"HTTP/"):
            self.head.clear()  # an interim answer came before this one
        if len(self.head) + len(line) > MAX_HEADER_BYTES:
            return -1
        self.head += line
        return len(line)

    def take_body(self, chunk: bytes) -> int:
        self.body += chunk[: MAX_ANSWER_BYTES - len(self.body)]
        self.too_much = len(self.body) >= MAX_ANSWER_BYTES
        return -1 if self.too_much else len(chunk)


class HttpClient:
    """Any number of requests at once in one thread: `start` them, then `wait` for answers.

    Owned by one thread; only `interrupt` may be called from others. Create it after forking.
    """

    def __init__(self, *, deadline_seconds: float) -> None:
        self._deadline_ms = int(deadline_seconds * 1000)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, KEPT_CONNECTIONS)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.EPOLLIN)
        self._watched: set[int] = set()
        self._timer_at: float | None = None
        self._idle: list[Any] = []
        self.under_way = 0

    def start(self, token: Hashable, request: requests.PreparedRequest) -> None:
        """Begin a request; its answer comes from a later `wait`, by the deadline at the latest."""
        handle = self._idle.pop() if self._idle else self._new_handle()
        transfer = _Transfer(token, request)
        handle.transfer = transfer
        handle.setopt(pycurl.URL, request.url)
        handle.setopt(pycurl.CUSTOMREQUEST, request.method)
        handle.setopt(pycurl.POSTFIELDS, request.body)
        handle.setopt(pycurl.HTTPHEADER, [*map(_header_line, request.headers.items()), b"Expect:", b"Accept:"])
        handle.setopt(pycurl.PREREQFUNCTION, transfer.may_be_sent)
        handle.setopt(pycurl.HEADERFUNCTION, transfer.take_head)
        handle.setopt(pycurl.WRITEFUNCTION, transfer.take_body)
        self._multi.add_handle(handle)
        self.under_way += 1

    def wait(self, seconds: float) -> list[Answer]:
        """Return what has been answered, after at most `seconds`, at once when interrupted."""
        end = time.monotonic() + seconds
        while True:
            interrupted = self._turn_loop(end)
            answers = self._finished()
            if answers or interrupted or time.monotonic() >= end:
                return answers

    def interrupt(self) -> None:
        """Make `wait` return; may be called from any thread."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Give back sockets and descriptors; what is under way is dropped."""
        self._multi.close()
        self._poll.close()
        os.close(self._bell)

    def _turn_loop(self, end: float) -> bool:
        now = time.monotonic()
        if self._timer_at is not None and self._timer_at <= now:
            self._timer_at = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            return False
        until = end if self._timer_at is None else min(end, self._timer_at)
        interrupted = False
        for descriptor, events in self._poll.poll(max(0.0, until - now), EVENTS_AT_ONCE):
            if descriptor == self._bell:
                os.eventfd_read(self._bell)
                interrupted = True
            else:
                self._multi.socket_action(descriptor, _curl_events(events))
        return interrupted

    def _finished(self) -> list[Answer]:
        answers: list[Answer] = []
        more = 1
        while more:
            more, done, failed = self._multi.info_read()
            answers += [self._finish(handle, 0, "") for handle in done]
            answers += [self._finish(handle, number, text) for handle, number, text in failed]
        return answers

    def _finish(self, handle: Any, number: int, text: str) -> Answer:
        transfer: _Transfer = handle.transfer
        handle.transfer = None
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        duration_ms = round(handle.getinfo(pycurl.TOTAL_TIME) * 1000)
        # Our own cap ends a transfer with a write error, but the answer itself is there.
        complete = not number or (number == pycurl.E_WRITE_ERROR and transfer.too_much)
        result: requests.Response | RequestNotCompleted
        if complete and status:
            result = _response(transfer, status)
        else:
            was_sent = handle.getinfo(pycurl.REQUEST_SIZE) > 0
            reason = KEPT_CONNECTION_BROKE if number == pycurl.E_ABORTED_BY_CALLBACK else _plain(text)
            result = RequestNotCompleted(reason or f"libcurl error {number}", was_sent=was_sent)
        self._multi.remove_handle(handle)
        self._idle.append(handle)
        self.under_way -= 1
        return Answer(transfer.token, result, bytes(transfer.head), duration_ms)

    def _new_handle(self) -> Any:
        handle = pycurl.Curl()
        handle.setopt(pycurl.NOSIGNAL, 1)
        handle.setopt(pycurl.FOLLOWLOCATION, 0)
        handle.setopt(pycurl.PROXY, "")
        handle.setopt(pycurl.NETRC, 0)
        handle.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        handle.setopt(pycurl.CAINFO, certifi.where())
        handle.setopt(pycurl.CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS)
        handle.setopt(pycurl.TIMEOUT_MS, self._deadline_ms)
        return handle

    def _set_timer(self, milliseconds: int) -> None:
        self._timer_at = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def _watch(self, action: int, descriptor: int, _multi: object, _data: object) -> None:
        if action == pycurl.POLL_REMOVE:
            self._forget(descriptor)
            return
        events = (select.EPOLLIN if action & pycurl.POLL_IN else 0) | (
            select.EPOLLOUT if action & pycurl.POLL_OUT else 0
        )
        if descriptor in self._watched:
            try:
                self._poll.modify(descriptor, events)
            except FileNotFoundError:  # closed and opened again under the same number
                self._poll.register(descriptor, events)
        else:
            self._poll.register(descriptor, events)
            self._watched.add(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._watched.discard(descriptor)
        try:
            self._poll.unregister(descriptor)
        except (FileNotFoundError, ValueError):
            return  # already closed: the kernel has forgotten it


def _header_line(header: tuple[str, str]) -> bytes:
    """Return a header as libcurl takes it; one without a value ends in a semicolon."""
    name, value = header
    return (f"{name}: {value}" if value else f"{name};").encode("latin-1", "replace")


def _curl_events(events: int) -> int:
    readable = events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR)
    return (pycurl.CSELECT_IN if readable else 0) | (pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0)


def _response(transfer: _Transfer, status: int) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response.request = transfer.request
    response.url = transfer.request.url or ""
    response._content = bytes(transfer.body)  # noqa: SLF001 - what requests' own adapters set
    return response


def _plain(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:500]
