"""A played mailbox behind a real HTTP server, for tests of the client. It fails as a test tells it to."""

import base64
import contextlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

from broker_client import Mailbox, MailboxReader, Message
from broker_client.message import now
from broker_client.reader import MAX_WAIT_SECONDS
from broker_project.stack.load.wait import PATIENCE_SECONDS
from broker_project.stack.ports import LOOPBACK

PUBLISHED_AT = "2026-11-22T01:02:03Z"
STALE = {"status": 409, "code": "stale_receipt"}


LOST_ANSWER = None
"""The call has its effect, and its answer is lost."""

MAILBOX_TOKEN = "brk_played"
MAILBOX_NAME = "archive"

READ_TIMEOUT_SECONDS = 4.0
"""Long enough for a busy machine, and short enough to wait for an extension."""


@dataclass(frozen=True, slots=True)
class PlayedFailure:
    """An answer instead of the right one; the call does nothing."""

    status: int
    document: object = None
    headers: dict[str, str] = field(default_factory=dict)


def message_document(number: int, body: bytes) -> dict[str, Any]:
    """Return the document of a message, without the fields that differ in each fetch."""
    try:
        text = {"body": body.decode()}
    except UnicodeDecodeError:
        text = {"body_base64": base64.b64encode(body).decode()}
    return {
        "id": f"dlv_{number}",
        "delivery_id": number,
        "message_id": number,
        "event_type": "Shop.Order.Paid",
        "subscription_id": 7,
        "published_at": PUBLISHED_AT,
        "redeliveries": 0,
        "possible_duplicate": False,
        "content_type": "application/json",
        "headers": {"X-Trace": "1"},
    } | text


@dataclass(frozen=True, slots=True)
class Call:
    what: str
    document: Any
    at: float = field(default_factory=now)


class PlayedMailbox:
    """Messages are handed out in order, returned to the head, and known for good once acknowledged."""

    def __init__(self) -> None:
        self.url = ""
        self.seconds = 30.0
        """The time-out; a hand-out is not taken back when it is over."""
        self.clock_is_ahead = timedelta()
        """That of the database, which says until when; that of the web server, which says `Date`, goes right."""
        self.waited = 0.0
        """Seconds that a call reports to have waited for its messages."""
        self.is_over = False
        """Whether long polls return at once."""
        self.calls: list[Call] = []
        self.acknowledged: list[int] = []
        self.troubles: defaultdict[str, deque[PlayedFailure | None]] = defaultdict(deque)
        self._available: deque[dict[str, Any]] = deque()
        self._in_flight: dict[str, dict[str, Any]] = {}
        self._hand_outs = 0
        self._changed = threading.Condition()

    # --- of the test ------------------------------------------------------------------------------------------------

    def put(self, *bodies: bytes) -> None:
        """Make messages available, numbered from 1."""
        with self._changed:
            for body in bodies:
                number = len(self._available) + len(self._in_flight) + len(self.acknowledged) + 1
                self._available.append(message_document(number, body))
            self._changed.notify_all()

    def take_back(self, receipt: str) -> None:
        """Make a receipt stale, as if another client had the message."""
        with self._changed:
            del self._in_flight[receipt]

    def said(self, what: str) -> list[Any]:
        """Return the documents sent with the calls to one operation."""
        return [call.document for call in self.calls if call.what == what]

    def end(self) -> None:
        """Let long polls return at once."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is true; it is evaluated after each call."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_SECONDS), self.calls

    # --- of the client ----------------------------------------------------------------------------------------------

    def answer(self, what: str, document: Any) -> PlayedFailure | None:
        """Execute a call; return the answer, or None if it is to be lost."""
        with self._changed:
            self.calls.append(Call(what, document))
            self._changed.notify_all()
            try:
                trouble = self.troubles[what].popleft() if self.troubles[what] else PlayedFailure(0)
                if trouble and trouble.status:
                    return trouble
                right = getattr(self, f"_{what}")(document)
                return right if trouble else LOST_ANSWER
            finally:
                self._changed.notify_all()

    def _next(self, document: Any) -> PlayedFailure:
        self._changed.wait_for(lambda: self._available or self.is_over, document["wait_seconds"])
        messages = [self._handed_out() for _ in range(min(document["max_messages"], len(self._available)))]
        fetched = {"messages": messages, "waited_seconds": self.waited}
        return PlayedFailure(200, fetched) if messages else PlayedFailure(204)

    def _ack(self, document: Any) -> PlayedFailure:
        return self._results(
            document["receipts"], "acknowledged", lambda one: self.acknowledged.append(one["message_id"])
        )

    def _nack(self, document: Any) -> PlayedFailure:
        return self._results(document["receipts"], "returned", self._available.appendleft)

    def _extend(self, document: Any) -> PlayedFailure:
        extended = {"code": "extended", "status": 200, **self._time_out()}
        results = [{"receipt": one} | (extended if one in self._in_flight else STALE) for one in document["receipts"]]
        return PlayedFailure(200, {"results": results})

    def _status(self, _: Any) -> PlayedFailure:
        return PlayedFailure(200, {"available": len(self._available), "in_flight": len(self._in_flight)})

    def _purge(self, _: Any) -> PlayedFailure:
        cancelled = len(self._available)
        self._available.clear()
        return PlayedFailure(200, {"cancelled": cancelled, "in_flight": len(self._in_flight), "complete": True})

    def _results(self, receipts: Sequence[str], code: str, end: Callable[[dict[str, Any]], object]) -> PlayedFailure:
        results: list[dict[str, object]] = []
        for receipt in receipts:
            known = self._in_flight.pop(receipt, None)
            if known:
                end(known)
            results.append({"receipt": receipt} | ({"status": 200, "code": code} if known else STALE))
        return PlayedFailure(200, {"results": results})

    def _handed_out(self) -> dict[str, Any]:
        self._hand_outs += 1
        receipt, document = f"receipt-{self._hand_outs}", self._available.popleft()
        self._in_flight[receipt] = document
        return document | {"receipt": receipt, **self._time_out()}

    def _time_out(self) -> dict[str, Any]:
        until = datetime.now(UTC) + self.clock_is_ahead + timedelta(seconds=self.seconds)
        return {"in_flight_until": until.isoformat().replace("+00:00", "Z"), "in_flight_seconds": self.seconds}


class MailboxServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, mailbox: PlayedMailbox) -> None:
        super().__init__((LOOPBACK, 0), MailboxRequestHandler)
        self.mailbox = mailbox


class MailboxRequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: MailboxServer

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, document: Any) -> None:
        base, _, what = self.path.rpartition("/")
        is_known = (
            self.headers["Authorization"] == f"Bearer {MAILBOX_TOKEN}" and base == f"/api/v1/mailboxes/{MAILBOX_NAME}"
        )
        answer = (
            self.server.mailbox.answer(what, document) if is_known else PlayedFailure(401, {"title": "No such key"})
        )
        if answer is LOST_ANSWER:
            self.close_connection = True
        else:
            self._send(answer)

    def _send(self, answer: PlayedFailure) -> None:
        body = b"" if answer.document is None else json.dumps(answer.document).encode()
        self.send_response_only(answer.status)
        self.send_header("Date", format_datetime(datetime.now(UTC), usegmt=True))
        for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def running_mailbox_server() -> Iterator[PlayedMailbox]:
    """Play a mailbox until the test is over."""
    mailbox = PlayedMailbox()
    with MailboxServer(mailbox) as server:
        mailbox.url = f"http://{LOOPBACK}:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield mailbox
        finally:
            mailbox.end()
            server.shutdown()


@dataclass(slots=True)
class StoppableHandler:
    """A handler that can be stopped in the middle."""

    begun: list[int] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def __call__(self, message: Message) -> None:
        self.begun.append(message.message_id)
        self.started.set()
        assert self.may_end.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def running_reader(
    played: PlayedMailbox,
    handler: Callable[[Message], object],
    *,
    max_messages: int = 10,
    consumers: int = 1,
    sessions: Callable[[], requests.Session] = requests.Session,
) -> Iterator[MailboxReader]:
    """Read until the block ends; then stop, and wait for the end."""
    reader = MailboxReader(
        Mailbox(played.url, MAILBOX_NAME, MAILBOX_TOKEN, sessions=sessions),
        handler,
        max_messages=max_messages,
        wait_seconds=MAX_WAIT_SECONDS,
        consumers=consumers,
    )
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()
        played.end()
        reader.join()


def held_message(number: int = 1, *, seconds: float = 30.0) -> Message:
    fetch = {"receipt": f"receipt-{number}", "in_flight_until": PUBLISHED_AT, "in_flight_seconds": seconds}
    return Message.parse(message_document(number, b"") | fetch, since=now())
