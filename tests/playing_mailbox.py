"""A real HTTP server that plays the API of one mailbox, and fails as it is told: for the client's tests."""

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.played_answers import LOST, Trouble
from tests.played_mailbox import PlayedMailbox
from tests.receiver import LOOPBACK

TOKEN = "brk_played"
NAME = "archive"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, mailbox: PlayedMailbox) -> None:
        super().__init__((LOOPBACK, 0), Calls)
        self.mailbox = mailbox


class Calls(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, document: Any) -> None:
        base, _, what = self.path.rpartition("/")
        is_known = self.headers["Authorization"] == f"Bearer {TOKEN}" and base == f"/api/v1/mailboxes/{NAME}"
        answer = self.server.mailbox.answer(what, document) if is_known else Trouble(401, {"title": "No such key"})
        if answer is LOST:
            self.close_connection = True
        else:
            self._send(answer)

    def _send(self, answer: Trouble) -> None:
        body = b"" if answer.document is None else json.dumps(answer.document).encode()
        self.send_response_only(answer.status)
        self.send_header("Date", format_datetime(datetime.now(UTC), usegmt=True))
        for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def playing() -> Iterator[PlayedMailbox]:
    """Play a mailbox until the test is over."""
    mailbox = PlayedMailbox()
    with Server(mailbox) as server:
        mailbox.url = f"http://{LOOPBACK}:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield mailbox
        finally:
            mailbox.end()
            server.shutdown()
