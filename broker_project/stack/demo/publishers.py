"""The demo's publishers: applications that publish through the HTTP API, singly and in batches."""

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from broker_project.stack.demo.events import (
    OFFICE,
    PRICE,
    PUBLISHERS,
    REPORT,
    Event,
    event,
    fingerprint,
    price_of,
    text_of,
    wants_reply,
)
from broker_project.stack.demo.records import Answered, Published, Request, line
from broker_project.stack.ports import LOOPBACK

QUESTIONS = 120

EVENTS = 3000
"""Of the topics."""
REPORTS = 600
BATCH = 20
SECONDS = 24.0
"""How long publishing takes: time for receivers to be down and to come back meanwhile."""

TIMEOUT = 15.0
AGAIN = Retry(total=8, backoff_factor=0.2, status_forcelist=(409, 429, 500, 502, 503, 504), allowed_methods=None)
"""What a publisher sends again, under the same idempotency key."""

NAME = "replies"
TAKEN = 204


class Source(Protocol):
    """Something that publishes, as seen from outside."""

    @property
    def events(self) -> Sequence[Event]:
        """All that it has to publish."""

    @property
    def done(self) -> int:
        """How many of them it has published."""

    @property
    def problem(self) -> str:
        """Why it stopped before the end; empty: it did not."""

    def run(self) -> None:
        """Publish everything."""


def start(sources: Sequence[Source]) -> list[threading.Thread]:
    """Let all of them publish, side by side."""
    started = [threading.Thread(target=source.run, daemon=True) for source in sources]
    for thread in started:
        thread.start()
    return started


@dataclass(slots=True)
class Asking:
    """One thread that calls and writes down each answer."""

    address: str
    token: str
    log: Path
    events: Sequence[Event]

    done: int = 0
    problem: str = ""
    session: requests.Session = field(default_factory=requests.Session)

    def run(self) -> None:
        """Ask everything."""
        self.session.headers.update({"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"})
        began = time.monotonic()
        try:
            with self.log.open("a", buffering=1) as log:
                for each in self.events:
                    wait_until(began + SECONDS * self.done / len(self.events))
                    log.write(line(self._ask(each)))
                    self.done += 1
        except requests.RequestException as problem:
            self.problem = str(problem)

    def _ask(self, each: Event) -> Answered:
        began = time.monotonic()
        answer = self.session.post(self.address, text_of(each.body), timeout=TIMEOUT)
        seconds = time.monotonic() - began
        is_right = answer.ok and answer.json() == {"cents": price_of(each.number)}
        return Answered(each.number, seconds, answer.status_code, is_right)


def asking(web: str, tokens: dict[str, str], suffix: str, folder: Path) -> Asking:
    """Return who asks for prices."""
    first = EVENTS + REPORTS + 1
    events = [event(number, PRICE) for number in range(first, first + QUESTIONS)]
    return Asking(f"{web}/api/v1/events/{PRICE}{suffix}", tokens[OFFICE], folder / "asked.jsonl", events)


class NotPublished(Exception):
    """The broker refused an event."""


@dataclass(slots=True)
class Publisher:
    """One thread of an application: publishes its events evenly over time and writes down each."""

    web: str
    token: str
    suffix: str
    log: Path
    events: Sequence[Event]
    size: int
    """Events in a call; 1: singly."""

    replies: str = ""
    """Where it wants replies to some of its events; empty: it wants none."""

    done: int = 0
    problem: str = ""
    session: requests.Session = field(default_factory=requests.Session)

    def run(self) -> None:
        """Publish everything."""
        self.session.headers["Authorization"] = f"Bearer {self.token}"
        self.session.mount("http://", HTTPAdapter(max_retries=AGAIN))
        began = time.monotonic()
        try:
            with self.log.open("a", buffering=1) as log:
                for events in chunks(self.events, self.size):
                    wait_until(began + SECONDS * self.done / len(self.events))
                    log.writelines(line(published) for published in self._publish(events))
                    self.done += len(events)
        except (NotPublished, requests.RequestException) as problem:
            self.problem = str(problem)

    def _publish(self, events: Sequence[Event]) -> Iterator[Published]:
        """Publish one call's events and return what to write down."""
        started = time.monotonic()
        call = self._one if self.size == 1 else self._batch
        announced = call(events)
        ended = time.monotonic()
        for position, (each, answer) in enumerate(zip(events, announced, strict=True)):
            mark, deliveries, message = fingerprint(text_of(each.body)), answer["deliveries"], answer["id"]
            yield Published(each.number, each.type, each.region, mark, started, ended, position, deliveries, message)

    def _one(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        (only,) = events
        headers = {"FILTER_STRING": only.region, "Idempotency-Key": key(only), "Content-Type": "application/json"}
        if self.replies and wants_reply(only.number):
            headers["CallbackURL"] = f"{self.replies}/{only.number}"
        return [self._post(f"/{only.type}{self.suffix}", text_of(only.body), headers)]

    def _batch(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        items = [
            {
                "event": each.type + self.suffix,
                "body": each.body,
                "filter_string": each.region,
                "idempotency_key": key(each),
            }
            for each in events
        ]
        answer = self._post("", text_of({"events": items}), {"Content-Type": "application/json"})
        results: list[dict[str, Any]] = answer["results"]
        return results

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        """Call the broker; what it answers badly is repeated under the same idempotency keys."""
        address = f"{self.web}/api/v1/events{path}"
        answer = self.session.post(address, body, headers=headers, timeout=TIMEOUT)
        if not answer.ok:
            raise NotPublished(f"{answer.status_code}: {answer.text}")
        content: dict[str, Any] = answer.json()
        return content


def publishers(web: str, tokens: dict[str, str], suffix: str, folder: Path) -> list[Publisher]:
    """Return two threads for each application, one that publishes singly and one in batches."""
    made = []
    numbers = itertools.count(1)
    share = EVENTS // (2 * len(PUBLISHERS))
    for name in PUBLISHERS:
        for size in (1, BATCH):
            events = [event(number, _type_for(name, number)) for number in itertools.islice(numbers, share)]
            made.append(Publisher(web, tokens[name], suffix, folder / f"published-{name}-{size}.jsonl", events, size))
    return made


def office(web: str, tokens: dict[str, str], suffix: str, folder: Path, replies: str) -> Publisher:
    """Return a thread that publishes reports singly, and wants a reply to some."""
    events = [event(EVENTS + number, REPORT) for number in range(1, REPORTS + 1)]
    return Publisher(web, tokens[OFFICE], suffix, folder / "published-reports.jsonl", events, 1, replies)


def chunks(events: Sequence[Event], size: int) -> Iterator[Sequence[Event]]:
    """Split events into calls."""
    for start_at in range(0, len(events), size):
        yield events[start_at : start_at + size]


def key(each: Event) -> str:
    """Return the idempotency key of an event."""
    return f"demo-{each.number}"


def wait_until(moment: float) -> None:
    """Wait for a moment of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))


def _type_for(publisher: str, number: int) -> str:
    return random.Random(-number).choice(PUBLISHERS[publisher])  # noqa: S311 - samples, no secrets


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
        super().__init__((LOOPBACK, 0), ReplyHandler)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://{LOOPBACK}:{self.server_port}/{NAME}"


class ReplyHandler(BaseHTTPRequestHandler):
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
