"""A sample receiver, in a process of its own: verifies, behaves as it was told, writes down every request.

Run as a module with a subscriber's name, a port, the log's path and the path of the signing secrets.
"""

import base64
import hashlib
import hmac
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from broker_project.stack.demo.events import (
    RECEIVERS,
    REFUSAL_AFTER,
    REFUSAL_SECONDS,
    Behaviour,
    failures_of,
    fingerprint,
    price_of,
    rejection_of,
)
from broker_project.stack.demo.publishers import reply_meanwhile
from broker_project.stack.demo.records import Request, line
from broker_project.stack.ports import LOOPBACK

PREFIX = "whsec_"


def is_signed(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Say whether one of the signatures in the headers fits the body."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    headers = {name.lower(): value for name, value in headers.items()}
    content = f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return any(hmac.compare_digest(expected, given) for given in headers.get("webhook-signature", "").split())


class Receiver:
    """One subscriber's application."""

    def __init__(self, name: str, log: Path, secrets: Path) -> None:
        self.name = name
        self._behaviour = next(sample.behaviour for sample in RECEIVERS if sample.name == name)
        self._log = log
        self._secrets = secrets
        self._seen: Counter[int] = Counter()
        self._refuses_until: float | None = None
        self._lock = threading.Lock()

    def answer_to(self, number: int) -> int:
        """Return the status for one more request with this event; 0: none, and be down from now on."""
        with self._lock:
            self._seen[number] += 1
            match self._behaviour:
                case Behaviour.FAILING:
                    return 500 if self._seen[number] <= failures_of(number) else 200
                case Behaviour.PICKY:
                    return rejection_of(number)
                case Behaviour.OVERLOADED:
                    return 503 if self._refuses() else 200
                case Behaviour.DOWN:
                    return 0 if self._refuses() else 200
                case _:
                    return 200

    def content_for(self, number: int) -> bytes:
        """Return what an answer says."""
        return json.dumps({"cents": price_of(number)}).encode() if self._behaviour == Behaviour.ANSWERING else b""

    def secret(self, path: str) -> str:
        """Return the signing secret of the subscription with this path."""
        secrets: dict[str, str] = json.loads(self._secrets.read_text())
        return secrets[self.name + path]

    def write_down(self, request: Request) -> None:
        """Log a request and its answer."""
        with self._lock, self._log.open("a") as log:
            log.write(line(request))

    def _refuses(self) -> bool:
        """Say whether this is the bad time, which begins after some events and ends by the clock."""
        if self._refuses_until is None and len(self._seen) > REFUSAL_AFTER:
            self._refuses_until = time.monotonic() + REFUSAL_SECONDS
        return self._refuses_until is not None and time.monotonic() < self._refuses_until


class Server(ThreadingHTTPServer):
    """Listens until it is to be down."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, receiver: Receiver) -> None:
        self.receiver = receiver
        self.goes_down = False
        super().__init__((LOOPBACK, port), Handler)


class Handler(BaseHTTPRequestHandler):
    """Reads a delivery, writes it down, and only then answers it: the next one comes after the answer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        """Take one delivery."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        at, content, receiver, header = time.monotonic(), json.loads(body), self.server.receiver, self.headers.get
        status = 0 if self.server.goes_down else receiver.answer_to(content["number"])
        if status == 0:
            self._go_down()
            return
        receiver.write_down(
            Request(
                subscriber=receiver.name,
                path=self.path,
                webhook_id=header("webhook-id", ""),
                sequence=header("Webhook-Sequence", ""),
                attempt=header("Webhook-Attempt", ""),
                possible_duplicate=header("Webhook-Possible-Duplicate", ""),
                signed=is_signed(dict(self.headers), body, receiver.secret(self.path)),
                number=content["number"],
                fingerprint=fingerprint(body),
                at=at,
                answer=status,
            )
        )
        self._answer(status, receiver.content_for(content["number"]))
        if address := header("CallbackURL", ""):
            reply_meanwhile(address, {"number": content["number"], "done_by": receiver.name})

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _go_down(self) -> None:
        """Leave the request without an answer, and stop listening."""
        self.close_connection = True
        if not self.server.goes_down:
            self.server.goes_down = True
            threading.Thread(target=self.server.shutdown).start()

    def log_message(self, *_: object) -> None:
        """Stay quiet; the log of requests says more."""


def main(name: str, port: str, log: str, secrets: str) -> None:
    """Serve for ever; when down, close the port for a while."""
    receiver = Receiver(name, Path(log), Path(secrets))
    while True:
        with Server(int(port), receiver) as server:
            server.serve_forever(poll_interval=0.05)
        time.sleep(REFUSAL_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
