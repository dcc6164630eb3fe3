"""One request on its way through libcurl: what it sends, what it keeps of the answer, why it failed."""

import os
import re
import select
import socket
from collections.abc import Collection, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from math import ceil
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import certifi
import pycurl
import structlog
from requests.structures import CaseInsensitiveDict

from broker_project.core import boot_clock
from broker_project.core.egress import NOT_ALLOWED, UNREADABLE, EgressPolicy
from delivery.limits import CONNECT_TIMEOUT_MS, MAX_HEADER_BYTES

STATUS_LINE: Final = re.compile(rb"HTTP/\S+\s+(\d)\d{2}(?!\d)", re.IGNORECASE)
"""libcurl takes the first three digits for the status, and so 2000 for 200."""
STATUS_LINE_BEGINS: Final = b"Hh"
LAST_BLANK: Final = 0x20
"""The bytes that `strip` removes are not above it."""
NO_STATUS: Final = "the status of the answer is not a number of three digits"
HEAD_TOO_LARGE: Final = f"the head of the answer is larger than {MAX_HEADER_BYTES // 1024} KiB"
UNUSABLE: Final = "unusable://"
"""Begins the URL of what nothing can be sent to; the rest of it says why."""
KEPT_CONNECTION_BROKE: Final = "the connection closed without an answer"
TOO_LATE: Final = "the time for it was over before it could be sent"
LEASE_ENDED: Final = "its line's lease ended before an answer came"
ABANDONED: Final = -1
"""In place of libcurl's error, where the lease has ended."""
OK: Final[int] = pycurl.PREREQFUNC_OK
ABORT: Final[int] = pycurl.PREREQFUNC_ABORT
REFUSE: Final = -1
FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})
BAD: Final[int] = pycurl.SOCKET_BAD
MAX_VALUE_CHARACTERS: Final = 1024
"""A value that is longer counts as none."""
RETRY_AFTER: Final = "Retry-After"
MAX_RETRY_AFTER_CHARACTERS: Final = 64
"""No number of seconds and no date is longer."""
Ends = tuple[str, int, str, int]
"""Local address and port of a connection, and remote ones: several connections may have one local port."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class EncodedRequest:
    """A request whose headers are lines, as libcurl takes them."""

    method: str
    url: str
    lines: list[bytes]
    body: bytes
    signed_at: int = 0
    """The second since 1970 for which it is signed."""

    @property
    def headers(self) -> CaseInsensitiveDict[str]:
        """The headers by name, made when they are read."""
        pairs = (line.decode("latin-1").partition(": ") for line in self.lines)
        return CaseInsensitiveDict({name.removesuffix(";"): value for name, _, value in pairs})


def header_line(name: str, value: str) -> bytes:
    """Return a header as libcurl takes it: on one line, ended by a semicolon if it has no value."""
    return (f"{name}: {value}" if value else f"{name};").encode("latin-1", "replace").translate(None, b"\r\n\0")


@dataclass(slots=True)
class RequestNotCompleted:
    """No complete answer came back; `was_sent` says whether the endpoint may have got the request."""

    reason: str
    was_sent: bool
    timed_out: bool = False
    """Whether its deadline has passed, or that of connecting."""
    is_refused: bool = False
    """Whether nothing is sent to its address."""
    is_abandoned: bool = False
    """Whether it was sent, and ended because another worker may send it again."""
    is_poison: bool = False
    """Whether the process that sent it, and nothing else, has ended (contract 4.19)."""


class Lease(Protocol):
    """What a request is sent under, and how long: it can be renewed while the request is in flight."""

    @property
    def lease_ends_at(self) -> float:
        """Time since boot by which nothing may be in flight any more."""


@dataclass(slots=True)
class Answer:
    """What came back for the request started under `token`, and how long it took."""

    token: Hashable
    status: int
    """0: see `failure`."""
    head: bytes
    """Status line and headers as received."""
    body: bytes
    duration_ms: int
    failure: RequestNotCompleted | None = None
    """Why there is no complete answer."""


class Connections:
    """The sockets of one client's connections, by their ends; belongs to the client's thread."""

    def __init__(self) -> None:
        self._polls: dict[Ends, select.poll] = {}
        """Each asks for the socket of that connection."""
        self._ends: dict[int, Ends] = {}
        """By descriptor: what it was used for before is forgotten."""

    def opened(self, ends: Ends, descriptors: Iterable[int]) -> None:
        """Note that one of the sockets just opened has become the connection with these ends."""
        _, port, *_ = ends
        for descriptor in descriptors:
            # Of several that were tried, all but one are closed by now.
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
                if opened.getsockname()[1] == port:
                    if before := self._ends.get(descriptor):
                        self._polls.pop(before, None)
                    self._ends[descriptor] = ends
                    self._polls[ends] = select.poll()
                    self._polls[ends].register(descriptor, select.POLLIN)

    def has_unread(self, ends: Ends) -> bool:
        """Tell whether there is something to read on a kept connection, or its end, before anything was asked."""
        poll = self._polls.get(ends)
        return poll is None or bool(poll.poll(0))  # None: unknown


class Transfer:
    """A libcurl handle, the request that is in flight on it, and what libcurl calls; later the next request.

    It refuses connections to refused addresses, each time a host name is resolved: libcurl asks for each socket that
    it connects with, and again before it sends over a connection, new or kept. To libcurl a refusal is a connection
    that failed. The client sets what belongs to one request.
    """

    token: Hashable
    request: EncodedRequest
    url: str | None = None
    method: str | None = None
    """As the handle has them set; of the request before, until the next one starts."""
    burst: int
    """The number of those that it goes out with."""
    until: float
    """Time since boot of its deadline."""
    timeout_ms: int
    """How long libcurl gives it."""
    connect_ms: int = CONNECT_TIMEOUT_MS
    """How much of that to find its host and to connect."""
    is_prolonged: bool
    """Whether that was prolonged: libcurl does not look again when it is over."""
    lease: Lease | None
    opened: list[int]
    """The sockets opened for it."""
    refused_addresses: dict[str, str]
    """Addresses to which it is not sent, and what each is."""
    refused: str
    """Why it is not sent, or the head of its answer was not taken."""
    socket_failure: str
    """Why no socket could be opened for it."""
    has_allowed: bool
    """Whether an address was allowed; its connection may have failed for other reasons."""
    was_begun: bool
    is_stale: bool
    """Whether it was not sent over a kept connection, and may be over a new one."""
    is_restarted: bool
    needs_look_up: bool
    """Whether it was not sent because its host has to be looked up."""
    is_looked_up: bool
    """Whether that was done."""
    look_up_began_at: float | None
    """Time since boot at which that began, while it lasts."""
    looked_up_seconds: float
    """How long that took."""
    has_head: bool
    is_interim: bool

    def __init__(self, connections: Connections, egress: EgressPolicy, *, max_answer_bytes: int) -> None:
        self._connections = connections
        self._egress = egress
        self._max_answer_bytes = max_answer_bytes
        self._lent: socket.socket | None = None
        """What libcurl has been handed and makes a copy of."""
        self.head, self.body = bytearray(), bytearray()
        self.handle = handle = new_handle()
        handle.transfer = self
        handle.setopt(pycurl.CONNECTTIMEOUT_MS, self.connect_ms)
        handle.setopt(pycurl.RESOLVER_START_FUNCTION, self.begin_look_up)
        handle.setopt(pycurl.OPENSOCKETFUNCTION, self.open_socket)
        handle.setopt(pycurl.SOCKOPTFUNCTION, self.note_socket)
        handle.setopt(pycurl.PREREQFUNCTION, self.may_be_sent)
        handle.setopt(pycurl.HEADERFUNCTION, self.take_head)
        handle.setopt(pycurl.WRITEFUNCTION, self.take_body)

    @property
    def ends_at(self) -> float:
        """Time since boot at which it has to have ended."""
        return self.until if self.lease is None else min(self.until, self.lease.lease_ends_at)

    def extend(self, seconds: float) -> None:
        """Let it have more time for its answer, or, if it has not gone out, to find its host and to connect."""
        if self.was_begun:
            self.until += seconds
            self.timeout_ms += ceil(seconds * 1000)
            self.handle.setopt(pycurl.TIMEOUT_MS, self.timeout_ms)
        else:
            self.connect_ms += ceil(seconds * 1000)
            self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, self.connect_ms)
            self.is_prolonged = True

    def begin_look_up(self) -> int:
        """Refuse that libcurl looks up a name, of which it has no connection and no addresses: the client does."""
        self.needs_look_up = not self.is_looked_up and has_to_be_found(host_of(self.request.url))
        return int(self.needs_look_up)

    def open_socket(self, _purpose: int, wanted: Any) -> "socket.socket | int":
        """Return a socket for an address of the host; none if it is not allowed: libcurl tries the next one."""
        try:
            address = str(wanted.addr[0]) if wanted.family in FAMILIES else ""
            if refusal := self._egress.refusal(address):
                self.refused_addresses[address] = refusal
                return BAD
            self._close_lent()
            self._lent = socket.socket(wanted.family, wanted.socktype, wanted.protocol)
        except OSError as failure:
            self.socket_failure = f"No socket: {failure.strerror}"
        except Exception as failure:
            log.exception("http.socket_not_opened")
            self.socket_failure = f"No socket: {type(failure).__name__}"
        else:
            self.has_allowed = True
            return self._lent
        return BAD

    def note_socket(self, descriptor: int, _purpose: int) -> int:
        """Note a socket that was opened for this request."""
        self._close_lent()
        self.opened.append(descriptor)
        return OK

    def may_be_sent(self, address: str, host: str, to_port: int, port: int) -> int:
        """Let the request go out once: libcurl would send it again, unasked, where a kept connection broke.

        The endpoint may have got it already; only the line may repeat it, and says so (contract 4.11). Over a kept
        connection on which something has come, or to an address that is no longer allowed, it does not go out at
        all: `is_stale`. Nor does it once its time is over, at which libcurl has looked before it sent others and this
        process may have been stopped since: another worker may have the line by now.
        """
        try:
            refusal = self._egress.refusal(address)
        except Exception:
            log.exception("http.address_not_judged")
            refusal = UNREADABLE
        if refusal:
            self.refused_addresses[address] = refusal
            self.has_allowed = False
        ends = (host, port, address, to_port)
        if self.opened:
            self._connections.opened(ends, self.opened)
        elif not self.was_begun:
            self.is_stale = bool(refusal) or self._connections.has_unread(ends)
        if not self.was_begun and boot_clock.since_boot() >= self.ends_at:
            self.refused = TOO_LATE
        if refusal or self.was_begun or self.is_stale or self.refused:
            return ABORT
        self.was_begun = True
        return OK

    def take_head(self, line: bytes) -> int | None:
        """Keep a line of the answer's head, up to the cap; refuse one without a proper status."""
        if self.has_head:
            return None  # behind the body: a trailer says nothing to us
        head = self.head
        if line[0] in STATUS_LINE_BEGINS and line[:5].upper() == b"HTTP/":
            head.clear()  # an interim answer came before this one
            if not (status := STATUS_LINE.match(line)):
                self.refused = NO_STATUS
                return REFUSE
            self.is_interim = status[1] == b"1"
        if len(head) + len(line) > MAX_HEADER_BYTES:
            self.refused = HEAD_TOO_LARGE
            return REFUSE
        head += line
        if line[0] <= LAST_BLANK and not line.strip():
            self.has_head = not self.is_interim
        return None

    def take_body(self, chunk: bytes) -> int | None:
        """Keep a piece of the answer's body; beyond the cap, end the transfer."""
        body = self.body
        body += chunk[: self._max_answer_bytes - len(body)]
        return REFUSE if len(body) >= self._max_answer_bytes else None

    def failure(self, number: int, text: str, status: int) -> RequestNotCompleted | None:
        """Return why there is no complete answer; `number` is libcurl's error, 0 for none.

        Our own cap ends a transfer with a write error, but the answer itself is there: None.
        """
        self._close_lent()
        is_capped = number == pycurl.E_WRITE_ERROR and len(self.body) >= self._max_answer_bytes
        if status and (not number or is_capped):
            return None
        was_sent = self.handle.getinfo(pycurl.REQUEST_SIZE) > 0
        is_refused = not was_sent and not self.has_allowed and bool(self.refused_addresses)
        ours = self._address_refused() if is_refused else "" if was_sent or self.has_allowed else self.socket_failure
        plain = "".join(filter(str.isprintable, text))[:500]
        theirs = KEPT_CONNECTION_BROKE if number == pycurl.E_ABORTED_BY_CALLBACK else plain
        return RequestNotCompleted(
            self.refused or ours or theirs or f"libcurl error {number}",
            was_sent=was_sent,
            timed_out=number == pycurl.E_OPERATION_TIMEDOUT,
            is_refused=is_refused,
            is_abandoned=was_sent and number == ABANDONED,
        )

    def _address_refused(self) -> str:
        """Return what was refused. Only the log has the addresses, with the host and the request's `webhook-id`."""
        host, of = host_of(self.request.url), self.request.headers.get("webhook-id")
        log.info("http.address_not_allowed", host=host, of=of, addresses=self.refused_addresses)
        return f"{NOT_ALLOWED} ({', '.join(sorted({*self.refused_addresses.values()}))})"

    def _close_lent(self) -> None:
        """Close our socket: libcurl has its own copy of it, or nothing to do with it any more."""
        if self._lent:
            self._lent.close()
        self._lent = None


def host_of(url: str) -> str:
    """Return the host of a URL."""
    return urlsplit(url).hostname or ""


def has_to_be_found(host: str) -> bool:
    """Return whether a host has to be looked up: it is neither an address nor a name for this machine."""
    try:
        ip_address(host)
    except ValueError:
        return host.rstrip(".").rpartition(".")[2] != "localhost"
    return False


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
    return handle


def values_in(head: bytes, names: Collection[str]) -> dict[str, str]:
    """Return the first usable value of each of these headers, by name as asked for.

    `head` is status line and header lines as received; usable is what has 1 to 1,024 printable ASCII characters.
    """
    asked = {name.lower().encode(): name for name in names}
    found: dict[str, str] = {}
    for line in head.split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        wanted = asked.get(name.lower())
        text = value.strip(b" \t\r").decode("latin-1")
        if wanted and 0 < len(text) <= MAX_VALUE_CHARACTERS and text.isascii() and text.isprintable():
            found.setdefault(wanted, text)
    return found


def retry_after_seconds(head: bytes, *, at: datetime) -> float | None:
    """Return the seconds asked for in an answer's header lines received `at`; None where none are, or nonsense."""
    text = values_in(head, [RETRY_AFTER]).get(RETRY_AFTER) if b"retry-after" in head.lower() else None
    if not text or len(text) > MAX_RETRY_AFTER_CHARACTERS:
        return None
    if text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # of numbers that no date has
        return None
    return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - at).total_seconds())
