"""`./broker trace`: follow one TOPIC delivery through a worker and print the files and functions that it takes.

Run as a module, it is Celery's command line with a profiler in every thread; FILE says where its calls are written.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import psycopg
import requests

from broker_project.stack import stacks
from broker_project.stack.folders import ROOT, STATE
from broker_project.stack.ports import LOOPBACK
from broker_project.stack.services import Application, Service, python
from broker_project.stack.up import say

FILE: Final = "TRACE_FILE"
FOLDER: Final = STATE / "trace"
PACKAGES: Final = ("broker_project", "delivery", "subscriptions")
MESSAGES: Final = 3
"""The first answer leads to the second request. A third keeps that from being the last one."""
WAIT_SECONDS: Final = 30.0

CLAIM: Final = "delivery/dispatch/claim.py", "claim"
REQUEST: Final = "delivery/http/client.py", "HttpClient.start"
ANSWER: Final = "delivery/http/client.py", "HttpClient._finish"
RELEASE: Final = "delivery/worker/event_loop.py", "Releaser.release"
RELEASED: Final = "SELECT count(*) FROM delivery_line WHERE lease_until IS NOT NULL"


class FunctionCall(NamedTuple):
    """One call of a function of this project."""

    thread: int
    file: str
    """Relative to the repository."""
    function: str
    """Its qualified name."""

    @property
    def place(self) -> tuple[str, str]:
        """Where the function is defined."""
        return self.file, self.function


@dataclass(frozen=True, slots=True)
class Trace:
    """What a worker called for one delivery."""

    files: Sequence[str]
    """From the claim of the line to its release, in the order of their first call."""
    functions: Sequence[tuple[str, str]]
    """From the first answer to the next request, each with its file, in the order of their first call."""

    def __str__(self) -> str:
        """Return both lists and their lengths."""
        of_functions = {file for file, _ in self.functions}
        return "\n".join(
            (
                "from the claim of the line to its release:",
                *(f"  {file}" for file in self.files),
                "",
                "from an answer to the next request:",
                *(f"  {file:<40} {function}" for file, function in self.functions),
                "",
                f"files from claim to release: {len(self.files)}",
                f"functions from an answer to the next request: {len(self.functions)} in {len(of_functions)} files",
            )
        )


def trace() -> int:
    """Run a stack with one traced worker, publish events to one subscriber, and print what the worker called.

    The stack has its own empty servers: your `DATABASE_URL` and `REDIS_URL` are not used.
    """
    for name in ("DATABASE_URL", "REDIS_URL", "BROKER_ALLOWED_NETWORKS"):
        os.environ.pop(name, None)
    calls = FOLDER / "calls.json"
    with _receiver() as endpoint, stacks.running(FOLDER, fresh=True, say=say, services=_services(calls)) as stack:
        _publish(stack, endpoint)
        _wait_until_released(stack)
    print(trace_of([FunctionCall(*call) for call in json.loads(calls.read_text())]))
    return 0


def trace_of(calls: Sequence[FunctionCall]) -> Trace:
    """Return what belongs to the first delivery among the calls of all threads.

    Raises:
        ValueError: no line was claimed, sent for and released.

    """
    places = [call.place for call in calls]
    request = places.index(REQUEST)
    claim = max(index for index in range(request) if places[index] == CLAIM)
    release = places.index(RELEASE, request)
    threads = {calls[index].thread for index in (claim, request)}
    files = [call.file for call in calls[claim : release + 1] if call.thread in threads]
    answer = places.index(ANSWER, request)
    functions = [
        call.place for call in calls[answer : places.index(REQUEST, answer) + 1] if call.thread == calls[request].thread
    ]
    return Trace(list(dict.fromkeys(files)), list(dict.fromkeys(functions)))


def _services(calls: Path) -> Callable[[Application], Sequence[Service]]:
    """Return which services run: the web process, and one worker that writes its calls to a file."""

    def services(application: Application) -> Sequence[Service]:
        worker = application.worker(1)
        command = [__spec__.name if word == "celery" else word for word in worker.command]
        environment = {**worker.environment, FILE: str(calls)}
        return application.web(), dataclasses.replace(worker, command=command, environment=environment)

    return services


def _publish(stack: stacks.Stack, endpoint: str) -> None:
    """Create an event type, a subscriber and a subscription over the API, and publish one batch."""
    key = subprocess.run(  # noqa: S603 - our own command
        python("django", "create_api_key", "--scope", "all", "--label", "trace"),
        cwd=ROOT,
        env={**os.environ, **stack.environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()
    with requests.Session() as api:
        api.headers["Authorization"] = f"Bearer {key}"

        def post(path: str, body: Any) -> Any:
            answer = api.post(f"{stack.web}/api/v1/{path}", json=body, timeout=WAIT_SECONDS)
            answer.raise_for_status()
            return answer.json()

        post("event-types", {"name": "Trace", "kind": "TOPIC"})
        post("subscribers", {"name": "trace"})
        post("subscriptions", {"subscriber": "trace", "event_type": "Trace", "endpoint": endpoint})
        post("publishers", {"name": "trace"})
        publisher = post("api-keys", {"kind": "PUBLISHER", "publisher": "trace", "label": "trace"})
        api.headers["Authorization"] = f"Bearer {publisher['token']}"
        post("events", {"events": [{"event": "Trace", "body": {"number": number}} for number in range(MESSAGES)]})


def _wait_until_released(stack: stacks.Stack) -> None:
    """Wait until all deliveries have ended and no line is leased; raise `TimeoutError` if that does not come."""
    deadline = time.monotonic() + WAIT_SECONDS
    with psycopg.connect(stack.environment["DATABASE_URL"], autocommit=True) as connection:
        for query in ("SELECT count(*) FROM delivery_open", RELEASED):
            while connection.execute(query).fetchall() != [(0,)]:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"deliveries were not finished after {WAIT_SECONDS:.0f} s; logs: {stack.logs}")
                time.sleep(0.05)


@contextlib.contextmanager
def _receiver() -> Iterator[str]:
    """Run an endpoint that answers 204 to every request; give its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def _run_traced_worker() -> None:
    """Run Celery's command line; at the end write every call of this project's code to a file."""
    from celery.__main__ import main  # noqa: PLC0415 - only this process needs it

    calls: list[tuple[int, str, str]] = []
    folders = tuple(f"{ROOT / package}/" for package in PACKAGES)

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        is_function = not code.co_name.startswith("<")  # a comprehension belongs to the function around it
        if event == "call" and is_function and code.co_filename.startswith(folders):
            calls.append((threading.get_ident(), code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main()
    finally:
        sys.setprofile(None)
        Path(os.environ[FILE]).write_text(json.dumps(calls))


if __name__ == "__main__":
    _run_traced_worker()
