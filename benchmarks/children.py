"""The processes around the broker: the sink, the publishers, and what a bare client can do."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from ctypes import c_bool, c_int64
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, cast

from benchmarks import asker, publisher, sink
from benchmarks.answers import Manner
from benchmarks.asker import Asked, Questions
from benchmarks.bare import post_bare
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import Log, Receipts
from benchmarks.wire import path_of
from broker_project.stack.guard import die_with
from broker_project.stack.ports import LOOPBACK

CONTEXT: Final = multiprocessing.get_context("spawn")
END_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class RunningSink:
    """The sink's process, as seen from outside."""

    process: BaseProcess
    control: Connection
    port: int
    count: c_int64

    @property
    def delivered(self) -> int:
        """How many deliveries it has got."""
        return self.count.value

    def endpoint(self, subscriber: int) -> str:
        """Return a subscriber's address."""
        return f"http://{LOOPBACK}:{self.port}{path_of(subscriber)}"

    def report(self) -> Receipts:
        """Return what came since the last report."""
        self.control.send(sink.REPORT)
        return cast("Receipts", self.control.recv())

    def answer_all(self) -> None:
        """Let nobody hang any more."""
        self.control.send(sink.ANSWER_ALL)

    def bare_rate(self, request: bytes, seconds: float) -> float:
        """Return how many such requests a second a bare client can post here."""
        with _child(post_bare, self.port, request, seconds) as (_, control):
            return float(control.recv())


@dataclass(frozen=True, slots=True)
class RunningPublisher:
    """The publishers' process, as seen from outside."""

    process: BaseProcess
    control: Connection
    enough: c_bool

    def stop(self) -> list[Published]:
        """Let every stream finish its call; return what they have published."""
        self.enough.value = True
        return cast("list[Published]", self.control.recv())


@contextlib.contextmanager
def running_sink(*, log: Log | None = None, **manner: Any) -> Iterator[RunningSink]:
    """Run a sink that answers in the `Manner` that is named, or takes everything at once."""
    count, how = CONTEXT.RawValue(c_int64, 0), Manner(**manner)
    with _child(sink.serve, count, log or Log(how.hanging), how) as (process, control):
        yield RunningSink(process, control, control.recv(), count)


@contextlib.contextmanager
def publishing(plan: Plan, to: RunningSink) -> Iterator[RunningPublisher]:
    """Publish from now on; the window of the plan counts from what the sink has already got."""
    enough = CONTEXT.RawValue(c_bool, False)
    counted = replace(plan, window=plan.window + to.delivered)
    with _child(publisher.publish, counted, to.count, enough) as (process, control):
        try:
            yield RunningPublisher(process, control, enough)
        finally:
            enough.value = True


def asking(questions: Questions) -> Asked:
    """Return how the questions were answered, once all have been asked."""
    with _child(asker.ask, questions) as (_, control):
        return cast("Asked", control.recv())


@contextlib.contextmanager
def _child(target: Callable[..., None], *arguments: object) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run a function in a process of its own until we are done with it; it ends when its connection is closed."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_be, args=(os.getpid(), target, theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()
        process.join(END_SECONDS)
        process.kill()


def _be(parent: int, target: Callable[..., None], *arguments: object) -> None:
    """Live this process's life, but not longer than the one that started it; that one alone heeds Ctrl-C."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        target(*arguments)
