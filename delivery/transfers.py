"""One request on its way through libcurl: what it sends, what it takes of the answer, what came of it."""

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import certifi
import pycurl
import requests

from delivery.header_lines import lines_of

CONNECT_TIMEOUT_MS: Final = 5_000
MAX_ANSWER_BYTES: Final = 65_536
"""What is read of an answer's body; the rest is left unread and the connection closed."""
MAX_HEADER_BYTES: Final = 65_536
STATUS_LINE: Final = re.compile(rb"HTTP/\S+\s+\d{3}(?!\d)", re.IGNORECASE)
"""libcurl takes the first three digits for the status, and so 2000 for 200."""
NO_STATUS: Final = "the status of the answer is not a number of three digits"
HEAD_TOO_LARGE: Final = f"the head of the answer is larger than {MAX_HEADER_BYTES // 1024} KiB"
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
class Transfer:
    """One request under way, on a libcurl handle that later ones use again."""

    token: Hashable
    request: requests.PreparedRequest
    head: bytearray = field(default_factory=bytearray)
    body: bytearray = field(default_factory=bytearray)
    too_much: bool = False
    was_begun: bool = False
    refused: str = ""
    """Why the head of the answer was not taken."""

    def prepare(self, handle: Any) -> None:
        """Set on the handle what belongs to this request."""
        handle.transfer = self
        handle.setopt(pycurl.URL, self.request.url)
        handle.setopt(pycurl.CUSTOMREQUEST, self.request.method)
        handle.setopt(pycurl.POSTFIELDS, self.request.body)
        handle.setopt(pycurl.HTTPHEADER, [*lines_of(self.request), b"Expect:", b"Accept:"])
        handle.setopt(pycurl.PREREQFUNCTION, self.may_be_sent)
        handle.setopt(pycurl.HEADERFUNCTION, self.take_head)
        handle.setopt(pycurl.WRITEFUNCTION, self.take_body)

    def may_be_sent(self, *_addresses: object) -> int:
        """Let the request go out once: libcurl would send it again, unasked, where a kept connection broke.

        The endpoint may have got it already; only the line may repeat it, and says so (behaviour 4.11).
        """
        verdict: int = pycurl.PREREQFUNC_ABORT if self.was_begun else pycurl.PREREQFUNC_OK
        self.was_begun = True
        return verdict

    def take_head(self, line: bytes) -> int:
        """Keep a line of the answer's head, up to the cap; refuse one without a proper status."""
        if line[:5].upper() == b"HTTP/":
            self.head.clear()  # an interim answer came before this one
            self.refused = "" if STATUS_LINE.match(line) else NO_STATUS
        if len(self.head) + len(line) > MAX_HEADER_BYTES:
            self.refused = HEAD_TOO_LARGE
        if self.refused:
            return -1
        self.head += line
        return len(line)

    def take_body(self, chunk: bytes) -> int:
        """Keep a piece of the answer's body; beyond the cap, end the transfer."""
        self.body += chunk[: MAX_ANSWER_BYTES - len(self.body)]
        self.too_much = len(self.body) >= MAX_ANSWER_BYTES
        return -1 if self.too_much else len(chunk)

    def answer(self, handle: Any, number: int, text: str) -> Answer:
        """Return what came of it; `number` is libcurl's error, 0 for none."""
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        duration_ms = round(handle.getinfo(pycurl.TOTAL_TIME) * 1000)
        # Our own cap ends a transfer with a write error, but the answer itself is there.
        complete = not number or (number == pycurl.E_WRITE_ERROR and self.too_much)
        result: requests.Response | RequestNotCompleted
        if complete and status:
            result = self._response(status)
        else:
            was_sent = handle.getinfo(pycurl.REQUEST_SIZE) > 0
            reason = KEPT_CONNECTION_BROKE if number == pycurl.E_ABORTED_BY_CALLBACK else _plain(text)
            result = RequestNotCompleted(self.refused or reason or f"libcurl error {number}", was_sent=was_sent)
        return Answer(self.token, result, bytes(self.head), duration_ms)

    def _response(self, status: int) -> requests.Response:
        response = requests.Response()
        response.status_code = status
        response.request = self.request
        response.url = self.request.url or ""
        response._content = bytes(self.body)  # noqa: SLF001 - what requests' own adapters set
        return response


def new_handle(*, deadline_ms: int) -> Any:
    """Return a libcurl handle that follows no redirect, uses no proxy and no .netrc, and ends by the deadline."""
    handle = pycurl.Curl()
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.FOLLOWLOCATION, 0)
    handle.setopt(pycurl.PROXY, "")
    handle.setopt(pycurl.NETRC, 0)
    handle.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    handle.setopt(pycurl.CAINFO, certifi.where())
    handle.setopt(pycurl.CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS)
    handle.setopt(pycurl.TIMEOUT_MS, deadline_ms)
    return handle


def _plain(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:500]
