"""`./broker trace`: follow one TOPIC delivery through a worker and print the files and functions that it takes.

Run as a module, it is Celery's command line with a profiler in every thread; FILE says where its calls are written.
"""

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import psycopg

from broker_project.stack.application import Application
from broker_project.stack.folders import ROOT, STATE
from broker_project.stack.load.management_client import Management
from broker_project.stack.load.receiver import running_receiver
from broker_project.stack.load.wait import wait_until
from broker_project.stack.running_stack import running_stack
from broker_project.stack.supervisor import Service
from broker_project.stack.up import say

FILE: Final = "TRACE_FILE"
FOLDER: Final = STATE / "trace"
PACKAGES: Final = ("broker_project", "delivery", "subscriptions")
MESSAGES: Final = 3
"""The first answer leads to the second request. A third keeps that from being the last one."""

CLAIM: Final = "delivery/dispatch/claim.py", "claim"
REQUEST: Final = "delivery/http/client.py", "HttpClient.start"
ANSWER: Final = "delivery/http/client.py", "HttpClient._finish"
RELEASE: Final = "delivery/worker/event_loop.py", "Releaser.release"
OPEN: Final = "SELECT count(*) FROM delivery_open"
LEASED: Final = "SELECT count(*) FROM delivery_line WHERE lease_until IS NOT NULL"


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
        files = "".join(f"  {file}\n" for file in self.files)
        functions = "".join(f"  {file:<40} {function}\n" for file, function in self.functions)
        return (
            f"from the claim of the line to its release:\n{files}\n"
            f"from an answer to the next request:\n{functions}\n"
            f"files from claim to release: {len(self.files)}\n"
            f"functions from an answer to the next request: {len(self.functions)} in "
            f"{len({file for file, _ in self.functions})} files"
        )


def trace() -> int:
    """Run a stack with one traced worker, publish events to one subscriber, and print what the worker called.

    The stack has its own empty servers: your `DATABASE_URL` and `REDIS_URL` are not used.
    """
    for name in ("DATABASE_URL", "REDIS_URL", "BROKER_ALLOWED_NETWORKS"):
        os.environ.pop(name, None)
    calls = FOLDER / "calls.json"
    with (
        running_receiver() as receiver,
        running_stack(FOLDER, fresh=True, say=say, services=partial(_services, calls)) as stack,
    ):
        api = Management.of(stack)
        api.create("event-types", name="Trace", kind="TOPIC")
        api.create("subscribers", name="trace")
        api.create("subscriptions", subscriber="trace", event_type="Trace", endpoint=receiver.url())
        api.create("publishers", name="trace")
        publisher = dataclasses.replace(api, token=api.key("PUBLISHER", "trace"))
        publisher.create("events", events=[{"event": "Trace", "body": number} for number in range(MESSAGES)])
        with psycopg.connect(stack.environment["DATABASE_URL"], autocommit=True) as connection:
            for query in (OPEN, LEASED):
                wait_until(lambda query=query: connection.execute(query).fetchall() == [(0,)])  # type: ignore[misc]
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


def _services(calls: Path, application: Application) -> Sequence[Service]:
    """Return which services run: the web process, and one worker that writes its calls to a file."""
    worker = application.worker(1)
    command = [__spec__.name if word == "celery" else word for word in worker.command]
    environment = {**worker.environment, FILE: str(calls)}
    return application.web(), dataclasses.replace(worker, command=command, environment=environment)


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
