"""Processes of ours: how one is started, what it shares with us, and that it does not outlive us."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from broker_project.stack.guard import die_with

CONTEXT: Final = multiprocessing.get_context("spawn")
END_SECONDS: Final = 10.0


def shared(kind: Any, value: object) -> Any:
    """Return a C value that the processes it is given to share with us."""
    return CONTEXT.RawValue(kind, value)


@contextlib.contextmanager
def spawned(target: Callable[..., None], *arguments: object) -> Iterator[tuple[BaseProcess, Connection]]:
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
