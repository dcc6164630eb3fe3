"""`./broker trace`: follow one TOPIC delivery through a worker and print the files and functions that it takes.

A file counts if one of its functions is called in a thread of the way, between the claim of the line and its release.

A function counts if it hands on what is made of the answer: between the end of the wait for the answer and the start of
the next request, it returns an object, or calls another function with one, that was made since that wait began. Objects
are those of this project's classes, alone or in up to two levels of collections; `self` is not handed on. So a reader
who follows the answer has to open this function. Not counted is what computes strings, numbers or truths for it, looks
after other work meanwhile, or keeps the object. The wait and the start count, but not what they call.

Both definitions were chosen at commit c8ddb46, where a reader of the code had counted 69 files, and 27 functions in 16
files. They give 65, and 31 in 15.

Run as a module, it is Celery's command line with a profiler in every thread; FILE says where its calls are written.
"""

import dataclasses
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import CO_VARARGS, CO_VARKEYWORDS
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
from broker_project.stack.variables import forget_variables

FILE: Final = "TRACE_FILE"
FOLDER: Final = STATE / "trace"
PACKAGES: Final = ("broker_project", "delivery", "subscriptions")
FOLDERS: Final = tuple(f"{ROOT / package}/" for package in PACKAGES)
COLLECTIONS: Final = (list, tuple, set, frozenset)
MESSAGES: Final = 3
"""The first answer leads to the second request. A third keeps that from being the last one."""

CLAIM: Final = "delivery/dispatch/claim.py", "claim"
REQUEST: Final = "delivery/http/client.py", "HttpClient.start"
WAIT: Final = "delivery/http/client.py", "HttpClient.wait"
"""Returns the answers."""
RELEASE: Final = "delivery/worker/leases.py", "Releaser.release"
OPEN: Final = "SELECT count(*) FROM delivery_open"
LEASED: Final = "SELECT count(*) FROM delivery_line WHERE lease_until IS NOT NULL"


@dataclass(slots=True)
class TracedCall:
    """A call of a function of this project."""

    thread: int
    file: str
    function: str
    """Its qualified name."""
    hands_on: bool = False
    """Whether it has handed on what was made since the last wait of its thread."""
    end: int = 0
    """How many calls there were when it returned."""

    @property
    def place(self) -> tuple[str, str]:
        """Which function it is of."""
        return self.file, self.function


def trace() -> int:
    """Run a stack with one traced worker, publish events to one subscriber, and print what the worker called.

    The stack has its own empty servers and default settings: your variables are not used.
    """
    forget_variables()
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
    print(*report([TracedCall(*call) for call in json.loads(calls.read_text())]), sep="\n")
    return 0


def report(calls: Sequence[TracedCall]) -> Iterator[str]:
    """Yield what was called for the first delivery; raise `ValueError` if there is no whole one."""
    places = [call.place for call in calls]
    first = places.index(REQUEST)
    claim = max(index for index in range(first) if places[index] == CLAIM and calls[index].hands_on)
    release = places.index(RELEASE, first)
    threads = {calls[index].thread for index in (claim, first)}
    files = dict.fromkeys(call.file for call in calls[claim : release + 1] if call.thread in threads)
    waits = (call for call in calls[first:] if call.place == WAIT and call.hands_on)
    answer = next(waits)
    request = places.index(REQUEST, answer.end)
    between = [call for call in calls[answer.end : request] if call.thread == answer.thread and call.hands_on]
    functions = dict.fromkeys(call.place for call in (answer, *between, calls[request]))
    yield "from the claim of the line to its release:"
    yield from (f"  {file}" for file in files)
    yield "\nfrom an answer to the next request, what hands on what is made of the answer:"
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


class Profiler:
    """Notes every call of this project's code, and which of them hand on what was made since the last wait."""

    def __init__(self) -> None:
        self.calls: list[TracedCall] = []
        self._running: dict[FrameType, TracedCall] = {}
        self._made: dict[int, dict[int, object]] = defaultdict(dict)
        """By thread: the objects by their id, which no other object gets as long as they are here."""

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        """Note a call, or its end with its result."""
        code, thread = frame.f_code, threading.get_ident()
        made = self._made[thread]
        if code.co_name == "__init__" and event == "call":
            new = frame.f_locals.get("self")
            if type(new).__module__.partition(".")[0] in PACKAGES:
                made[id(new)] = new
        if not code.co_filename.startswith(FOLDERS) or code.co_name.startswith("<"):
            return  # a comprehension belongs to the function around it
        if event == "call":
            call = TracedCall(thread, code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname)
            self.calls.append(call)
            if call.place == WAIT:
                made.clear()
            elif any(_holds(argument, made) for argument in _arguments(frame)) and (caller := self._caller(frame)):
                caller.hands_on = True
            self._running[frame] = call
        elif event == "return" and (ended := self._running.pop(frame, None)):
            ended.end = len(self.calls)
            ended.hands_on |= _holds(result, made)

    def _caller(self, frame: FrameType) -> TracedCall | None:
        """Return the call of this project's function that the frame was called from."""
        while caller := frame.f_back:
            if caller in self._running:
                return self._running[caller]
            frame = caller
        return None


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    named = code.co_argcount + code.co_kwonlyargcount
    variable = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return (frame.f_locals.get(name) for name in code.co_varnames[: named + variable] if name != "self")


def _holds(value: object, made: Mapping[int, object], levels: int = 2) -> bool:
    """Tell whether it is one of these objects, or a collection with one."""
    if id(value) in made:
        return True
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, COLLECTIONS) else ()
    return levels > 0 and any(_holds(one, made, levels - 1) for one in inside)


def _run_traced_worker() -> None:
    """Run Celery's command line; at the end write every call of this project's code to a file."""
    from celery.__main__ import main  # noqa: PLC0415 - only this process needs it

    profiler = Profiler()
    threading.setprofile(profiler)
    sys.setprofile(profiler)
    try:
        main()
    finally:
        sys.setprofile(None)
        calls = [dataclasses.astuple(call) for call in profiler.calls]
        Path(os.environ[FILE]).write_text(json.dumps(calls))


if __name__ == "__main__":
    _run_traced_worker()
