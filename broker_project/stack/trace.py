"""`./broker trace`: follow one TOPIC delivery through a worker and print the files and functions that it takes.

Run as a module, it is Celery's command line with a profiler in every thread; FILE says where its calls are written.
"""

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import psycopg

from broker_project.stack.application import Application
from broker_project.stack.bootstrap import say
from broker_project.stack.folders import ROOT, STATE
from broker_project.stack.load.management_client import Management
from broker_project.stack.load.receiver import running_receiver
from broker_project.stack.load.wait import wait_until
from broker_project.stack.running_stack import running_stack
from broker_project.stack.supervisor import Service

FILE: Final = "TRACE_FILE"
FOLDER: Final = STATE / "trace"
PACKAGES: Final = ("broker_project", "delivery", "subscriptions")
MESSAGES: Final = 3
"""The first answer leads to the second request. A third keeps that from being the last one."""

CLAIM: Final = "delivery/dispatch/claim.py", "claim"
REQUEST: Final = "delivery/http/client.py", "HttpClient.start"
ANSWER: Final = "delivery/http/client.py", "HttpClient._finish"
RELEASE: Final = "delivery/worker/release.py", "Releaser.release"
OPEN: Final = "SELECT count(*) FROM delivery_open"
LEASED: Final = "SELECT count(*) FROM delivery_line WHERE lease_until IS NOT NULL"


Call = tuple[int, str, str]
"""The thread of a call of a function of this project, the function's file, and its qualified name."""


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
    print(*report(json.loads(calls.read_text())), sep="\n")
    return 0


def report(calls: Sequence[Call]) -> Iterator[str]:
    """Yield what was called for the first delivery; raise `ValueError` if there is no whole one."""
    places = [(file, function) for _, file, function in calls]
    request = places.index(REQUEST)
    claim = max(index for index in range(request) if places[index] == CLAIM)
    release = places.index(RELEASE, request)
    threads = {calls[index][0] for index in (claim, request)}
    files = dict.fromkeys(file for thread, file, _ in calls[claim : release + 1] if thread in threads)
    answer = places.index(ANSWER, request)
    between = range(answer, places.index(REQUEST, answer) + 1)
    functions = dict.fromkeys(places[index] for index in between if calls[index][0] == calls[request][0])
    yield "from the claim of the line to its release:"
    yield from (f"  {file}" for file in files)
    yield "\nfrom an answer to the next request:"
    yield from (f"  {file:<40} {function}" for file, function in functions)
    yield f"\nfiles from claim to release: {len(files)}"
    of_functions = {file for file, _ in functions}
    yield f"functions from an answer to the next request: {len(functions)} in {len(of_functions)} files"


def _services(calls: Path, application: Application) -> Sequence[Service]:
    """Return which services run: the web process, and one worker that writes its calls to a file."""
    worker = application.worker(1)
    command = [__spec__.name if word == "celery" else word for word in worker.command]
    environment = {**worker.environment, FILE: str(calls)}
    return application.web(), dataclasses.replace(worker, command=command, environment=environment)


def _run_traced_worker() -> None:
    """Run Celery's command line; at the end write every call of this project's code to a file."""
    from celery.__main__ import main  # noqa: PLC0415 - only this process needs it

    calls: list[Call] = []
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
