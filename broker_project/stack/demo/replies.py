"""How a worker replies through a callback, and where the replies arrive: an address of the publisher's own."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter

from broker_project.stack.demo.events import fingerprint
from broker_project.stack.demo.publishers import AGAIN, TIMEOUT
from broker_project.stack.demo.records import Request, line
from broker_project.stack.ports import LOOPBACK

NAME = "replies"
TAKEN = 204


def reply(address: str, content: dict[str, object]) -> None:
    """Post a result to a callback, again and again until the broker has it."""
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=AGAIN))
        session.post(address, json=content, timeout=TIMEOUT).raise_for_status()


def reply_meanwhile(address: str, content: dict[str, object]) -> None:
    """Post a result to a callback in a thread of its own."""
    threading.Thread(target=reply, args=(address, content), daemon=True).start()


class Listener(ThreadingHTTPServer):
    """Takes replies and writes each down."""

    daemon_threads = True

    def __init__(self, log: Path) -> None:
        self.log = log
        self.lock = threading.Lock()
        super().__init__((LOOPBACK, 0), Handler)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://{LOOPBACK}:{self.server_port}/{NAME}"


class Handler(BaseHTTPRequestHandler):
    """Reads a reply, writes it down, and answers it."""

    protocol_version = "HTTP/1.1"
    server: Listener

    def do_POST(self) -> None:
        """Take one reply; it must be for the report that its address names."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        header, number = self.headers.get, int(self.path.rpartition("/")[2])
        request = Request(
            subscriber=NAME,
            path=self.path,
            webhook_id=header("webhook-id", ""),
            sequence="",
            attempt=header("Webhook-Attempt", ""),
            possible_duplicate=header("Webhook-Possible-Duplicate", ""),
            signed=json.loads(body)["number"] == number,
            number=number,
            fingerprint=fingerprint(body),
            at=time.monotonic(),
            answer=TAKEN,
        )
        with self.server.lock, self.server.log.open("a") as log:
            log.write(line(request))
        self.send_response(TAKEN)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay quiet; the log of requests says more."""


@contextlib.contextmanager
def listening(log: Path) -> Iterator[Listener]:
    """Take replies meanwhile."""
    with Listener(log) as listener:
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield listener
        finally:
            listener.shutdown()
